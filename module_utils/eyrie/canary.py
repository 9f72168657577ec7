# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""The canary's spec: the whole chain of a run on a few dozen prompts, in its own run folder. Pure.

Standard library only and Python 3.9 or later: the same file serves the modules and the node package
(src/eyrie/ops/canary/derive.py is a link to it). The target, the servers, the layers, the template and the versions
are the run's own: what is wrong with them shows here first.
"""

from __future__ import annotations

import copy
import json
import os
from typing import Any

SUFFIX = "-canary"
PROMPTS = "prompts.jsonl"
#: tokens of one training sequence; short ones make enough steps of few prompts, on eight GPUs too
SEQUENCE = 512
#: tokens of one of the canary's prompts in a chat template
PROMPT_TOKENS = 50
#: what learns a few dozen prompts by heart in `steps`; the run's own rate is meant for a hundred thousand
BY_HEART = {
    "optimizer": "muon",
    "lr": 3e-3,
    "muon_lr": None,
    "scheduler_type": "linear",
    "scheduler_warmup_ratio": None,
}
#: stages in order; the report is of the run itself
STAGES = ("target", "dataset", "responses", "tokens", "hidden_states", "draft", "benchmark")

DEFAULTS: dict[str, Any] = {
    "prompts": 40,
    "answer_tokens": 64,
    "steps": 96,
    "benchmark_prompts": 16,
    "min_acceptance": 1.3,
    "min_gain": 0.25,
}

_ABOUT = (
    "the water cycle", "a bicycle's gears", "how bread rises", "the phases of the moon", "a good night's sleep",
    "the rules of chess", "why leaves turn red", "the metric system", "a library's catalogue", "how a lens works",
    "the history of paper", "an honest budget", "why the sea is salty", "a fair coin", "the sound of a violin",
    "how bees find flowers", "a map's scale", "the colour of the sky", "keeping a diary", "how locks work",
)  # fmt: skip
_ASK = (
    "Explain {} in two sentences.",
    "What should a child know about {}?",
    "Write three short facts about {}.",
    "Give one common mistake about {} and correct it.",
)


def prompts(count: int) -> list[str]:
    """The canary's own prompts: always the same, so that two canaries can be compared."""
    every = [ask.format(about) for ask in _ASK for about in _ABOUT]
    if not 8 <= count <= len(every):
        raise ValueError(f"prompts must lie in 8..{len(every)}, not {count}.")
    return every[:count]


def prompts_text(count: int) -> str:
    """The file of prompts, one JSON object a line."""
    return "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts(count))


def folder(spec: dict[str, Any]) -> str:
    """Where the file of prompts is on the node."""
    return os.path.join(str(spec["root"]), "canary")


def settings(given: dict[str, Any] | None) -> dict[str, Any]:
    """Defaults, and what was given over them. Raises ValueError on unknown keys."""
    values = dict(DEFAULTS)
    for key, value in (given or {}).items():
        if key not in DEFAULTS:
            raise ValueError(f"unknown canary setting {key!r}. Known: {', '.join(sorted(DEFAULTS))}.")
        values[key] = type(DEFAULTS[key])(value)
    prompts(values["prompts"])
    return values


def derive(spec: dict[str, Any], given: dict[str, Any] | None = None) -> dict[str, Any]:
    """The spec of a run's canary; the run's own spec is not changed.

    It trains on `prompts` prompts until it knows them by heart and is measured on the same prompts: what it then
    does not reach is not for want of data.
    """
    values = settings(given)
    derived = copy.deepcopy(spec)
    if str(derived["run"]).endswith(SUFFIX):
        raise ValueError(f"{derived['run']} is a canary already.")
    derived["run"] = str(derived["run"]) + SUFFIX
    stages = derived["stages"]
    for stage in STAGES:
        stages[stage] = dict(stages.get(stage) or {})
    _dataset(stages["dataset"], spec, values)
    stages["responses"].update(
        regenerate=True, temperature=0.0, mix=[], max_tokens=values["answer_tokens"], truncated="keep"
    )
    stages["responses"]["min_answer"] = min(int(stages["responses"].get("min_answer", 16)), values["answer_tokens"])
    stages["tokens"]["coverage_policy"] = "warn"
    if stages["hidden_states"].get("storage") == "window":
        stages["hidden_states"]["storage"] = stages["hidden_states"].get("window_dtype", "bf16")
    _draft(stages["draft"], values)
    _benchmark(stages["benchmark"], spec, values)
    return derived


def _dataset(stage: dict[str, Any], spec: dict[str, Any], values: dict[str, Any]) -> None:
    source = {"kind": "local", "adapter": "prompt", "format": "jsonl", "path": os.path.join(folder(spec), PROMPTS)}
    stage.update(
        registry={"canary": source},
        sources=["canary"],
        exclude=[],
        exclude_sources=[],
        samples=values["prompts"],
        heldout=0,
        dedup="exact",
        max_prompt_tokens=0,
        max_conversation_tokens=0,
    )


def _draft(stage: dict[str, Any], values: dict[str, Any]) -> None:
    sequence = min(int(stage.get("total_seq_len") or SEQUENCE), SEQUENCE)
    tokens = 0.9 * values["prompts"] * (PROMPT_TOKENS + values["answer_tokens"])
    each = max(1, int(tokens / sequence) // int(stage.get("processes") or 1))  # steps of one epoch
    stage.update(
        BY_HEART,
        total_seq_len=sequence,
        epochs=-(-values["steps"] // each),
        val_ratio=0.1,
        select="last",
        checkpoint_freq=max(1, -(-values["steps"] // each) // 4),
        min_predicted=0.0,
        hosts=[],
        addresses=[],
    )


def _benchmark(stage: dict[str, Any], spec: dict[str, Any], values: dict[str, Any]) -> None:
    cell = {
        "set": "canary",
        "concurrency": [1],
        "output_tokens": values["answer_tokens"],
        "prompts": min(values["benchmark_prompts"], values["prompts"]),
        "variants": ["baseline", "eagle3", "untrained"],
    }
    stage.update(
        grid=[cell],
        rounds=1,
        repeats=1,
        warmup=1,
        streams=1,
        k_sweep=[],
        lossless_prompts=0,
        prompt_files=[{"name": "canary", "src": PROMPTS}],
        prompt_folder=folder(spec),
        promote=False,
        after="restore",
    )

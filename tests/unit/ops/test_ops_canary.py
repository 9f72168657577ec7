"""The canary's spec: a pure function of the run's own, and it loads."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from eyrie.cli import main
from eyrie.core import spec as specs
from eyrie.ops.canary import derive

SPEC: dict[str, Any] = {
    "root": "/srv/eyrie",
    "run": "main",
    "host": "box",
    "target": {"name": "m", "aux_layers": [2, 30, 58]},
    "server": {"port": 8000, "args": {"tensor_parallel_size": 8}},
    "stages": {
        "dataset": {"registry": {"sharegpt": {"kind": "hub"}}, "sources": ["sharegpt"], "samples": 100000},
        "responses": {"max_tokens": 4096, "temperature": 0.7, "mix": [{"weight": 1}]},
        "tokens": {"seq_length": 8192, "draft_vocab_size": 32000, "coverage_policy": "fail"},
        "hidden_states": {"storage": "window", "window_bytes": 1000, "window_dtype": "fp8"},
        "draft": {"epochs": 3, "lr": 1e-4, "hosts": ["a", "b"], "rdzv_endpoint": "a:29400"},
        "benchmark": {"grid": [{"set": "heldout"}], "k_sweep": [1, 2], "promote": True},
        "report": {},
    },
}


def test_derive_is_pure_and_keeps_what_can_be_wrong() -> None:
    before = copy.deepcopy(SPEC)
    derived = derive.derive(SPEC)
    assert before == SPEC
    assert derived == derive.derive(SPEC)
    assert derived["run"] == "main-canary"
    for same in ("root", "host", "target", "server"):
        assert derived[same] == SPEC[same]
    assert derived["stages"]["tokens"]["draft_vocab_size"] == 32000
    assert derived["stages"]["draft"]["rdzv_endpoint"] == "a:29400"


def test_derive_is_small_and_touches_nothing_of_the_run() -> None:
    stages = derive.derive(SPEC, {"prompts": 24, "answer_tokens": 32, "steps": 9})["stages"]
    assert list(stages["dataset"]["registry"]) == ["canary"]
    assert stages["dataset"]["samples"] == 24
    assert (stages["responses"]["max_tokens"], stages["responses"]["temperature"]) == (32, 0.0)
    assert stages["hidden_states"]["storage"] == "fp8"
    assert (stages["draft"]["epochs"], stages["draft"]["hosts"]) == (3, [])  # three steps of 512 tokens an epoch
    assert stages["benchmark"]["promote"] is False
    assert stages["benchmark"]["after"] == "restore"
    assert stages["benchmark"]["grid"][0]["set"] == "canary"
    assert stages["benchmark"]["grid"][0]["prompts"] == 16


@pytest.mark.parametrize("processes", [1, 2, 8])
@pytest.mark.parametrize("sequence", [256, 512, 8192])
def test_training_is_as_long_on_eight_gpus_as_on_one(processes: int, sequence: int) -> None:
    """Few prompts are a step or two of a GPU host's batches: the steps are what learns them by heart."""
    spec = copy.deepcopy(SPEC)
    spec["stages"]["draft"].update(processes=processes, total_seq_len=sequence, optimizer="adamw", lr=1e-5)
    draft = derive.derive(spec)["stages"]["draft"]
    assert draft["total_seq_len"] == min(sequence, derive.SEQUENCE)
    tokens = 0.9 * 40 * (derive.PROMPT_TOKENS + 64)
    steps = draft["epochs"] * max(1, int(tokens / draft["total_seq_len"]) // processes)
    assert 96 <= steps < 96 + tokens / draft["total_seq_len"]
    assert (draft["optimizer"], draft["lr"]) == ("muon", 3e-3)
    assert 1 <= draft["checkpoint_freq"] <= draft["epochs"]


@pytest.mark.parametrize("stage", ["dataset", "responses", "tokens", "hidden_states", "draft", "benchmark"])
def test_derived_settings_are_settings_of_the_stages(stage: str) -> None:
    """Nothing here needs the node environment: settings modules are plain."""
    from importlib import import_module

    kind = {"hidden_states": "HiddenStatesSettings", "draft": "DraftSettings"}.get(stage, "Settings")
    settings = getattr(import_module(f"eyrie.{stage}.settings"), kind)
    specs.load(settings, derive.derive(SPEC)["stages"][stage], stage)


def test_prompts_are_distinct_and_the_same_each_time() -> None:
    every = derive.prompts(80)
    assert len(set(every)) == 80
    assert derive.prompts_text(10).count("\n") == 10
    assert json.loads(derive.prompts_text(8).splitlines()[3]) == {"prompt": every[3]}


@pytest.mark.parametrize(
    ("given", "said"),
    [({"prompts": 3}, "8..80"), ({"step": 3}, "unknown canary setting"), ({"steps": "x"}, "invalid")],
)
def test_wrong_settings_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        derive.settings(given)


def test_canary_of_a_canary_is_refused() -> None:
    with pytest.raises(ValueError, match="a canary already"):
        derive.derive(derive.derive(SPEC))


def test_command(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(SPEC))
    assert main(["canary", "derive", "--spec", str(path), "--settings", '{"steps": 5}']) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["spec"]["run"] == "main-canary"
    assert answer["settings"]["steps"] == 5
    assert main(["canary", "derive", "--spec", str(path), "--settings", '{"step": 5}']) == 2

"""Write docs/sizing.md, the run of 100,000 samples on paper, from the profiles' own plans: python docs/make_sizing.py

The plan is the one that `ansible-playbook train.yml -l rtx6000bw --check` shows of a host that has nothing yet: the
inventory's spec through module_utils/eyrie/estimate.py. Figures of others are data here, each with its public source.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "module_utils" / "eyrie"))

from estimate import estimate, states_bytes, token_bytes  # noqa: E402
from text import human_bytes, human_seconds, plan_lines  # noqa: E402

HOSTS = {"rtx6000bw": "rtx6000bw-1", "b200nvl8": "b200nvl8-1"}
STAGES = ("target", "dataset", "responses", "tokens", "hidden_states", "draft", "benchmark", "report")
GPUS = 8
CONTROL = PROJECT / "docs" / "control_100k.json"

HEAD = """# The run of 100,000 samples on paper

Kimi-K2.5 (hidden size 7168, 61 layers, states of layers 2, 30, 58 and the last), 100,000 prompts from ten sources, on
the two GPU profiles. Everything here is a plan: it comes from the same function as `ansible-playbook train.yml -l
rtx6000bw --check` on a host that has nothing yet, and from the profiles' planning figures
(`group_vars/<profile>/planning.yml`, each marked published, calculated or an estimate). Counted tokens and measured
rates replace them on the host as the run goes on. No figure of this page was measured on such a host, except where a
public source is named, and the last section's, which were measured on a small machine.

This file is written by `python docs/make_sizing.py`.
"""


def spec_of(host: str) -> dict[str, Any]:
    """The spec that the inventory composes for a host."""
    argv = ["ansible", host, "-m", "ansible.builtin.debug", "-a", "var=eyrie_spec", "-c", "local"]
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
    }
    done = subprocess.run(argv, cwd=PROJECT, env=env, capture_output=True, text=True, check=True)
    spec = json.JSONDecoder().raw_decode(done.stdout, done.stdout.index("{"))[0]["eyrie_spec"]
    return dict(spec)


def changed(spec: dict[str, Any], **values: Any) -> dict[str, Any]:
    """The spec with other values; 'a__b__c' names spec['a']['b']['c']."""
    made = copy.deepcopy(spec)
    for name, value in values.items():
        *path, last = name.split("__")
        place = made
        for key in path:
            place = place[key]
        place[last] = value
    return made


def plans(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The plans of a bare host, as eyrie_info makes them."""
    return [
        {"stage": stage, "up_to_date": False, "status": "absent", "gates": [], "running": None, "record": None,
         "differences": [{"name": "node package", "current": "absent", "desired": "installed"}],
         "forecast": estimate(stage, spec)}
        for stage in STAGES
    ]  # fmt: skip


def hours(spec: dict[str, Any]) -> dict[str, float]:
    """Hours by stage, and 'all'."""
    found = {stage: estimate(stage, spec)["seconds"] / 3600 for stage in ("runtime", *STAGES)}
    return {**found, "all": sum(found.values())}


def corpus(spec: dict[str, Any]) -> tuple[int, float]:
    """(samples, tokens)."""
    planning, samples = spec["planning"], int(spec["stages"]["dataset"]["samples"])
    return samples, samples * (planning["prompt_tokens"] + planning["answer_tokens"])


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines) + "\n"


def h(value: float) -> str:
    return f"{value:.2f}" if value < 1 else f"{value:.1f}"


def the_plan(specs: dict[str, dict[str, Any]]) -> str:
    out = ["## The plan\n"]
    for profile, spec in specs.items():
        install = {"current": "absent", "desired": "installed", "forecast": estimate("runtime", spec)}
        lines = "\n".join(line.rstrip() for line in plan_lines(plans(spec), install))
        out.append(f"`{profile}`:\n\n```\n{lines}\n```\n")
    return "\n".join(out)


def by_stage(specs: dict[str, dict[str, Any]]) -> str:
    found = {profile: hours(spec) for profile, spec in specs.items()}
    rows = [[stage, *(h(found[profile][stage]) for profile in specs)] for stage in ("runtime", *STAGES)]
    rows.append(["**all**", *(f"**{h(found[profile]['all'])}**" for profile in specs)])
    rows.append(["GPU-hours (8 GPUs)", *(f"{found[profile]['all'] * GPUS:.0f}" for profile in specs)])
    share = found["rtx6000bw"]["responses"] / found["rtx6000bw"]["all"]
    return (
        "## Hours by stage\n\n"
        + table(["stage", *specs], rows)
        + f"\nThe target's own answers take {share:.0%} of it on the PCIe host: they are kept by content, and a port "
        "carries them (docs/porting.md). The benchmark's share is the same whatever the number of samples.\n"
    )


def cost(specs: dict[str, dict[str, Any]]) -> str:
    prices = (1.0, 2.0, 4.0, 6.0)
    rows = []
    for price in prices:
        paid = (f"{hours(spec)['all'] * GPUS * price:,.0f}" for spec in specs.values())
        rows.append([f"{price:.0f} per GPU-hour", *paid])
    wasted = hours(changed(specs["rtx6000bw"], planning__decode_tok_s=90.0))["responses"]
    port = hours(specs["b200nvl8"])
    after = sum(port[stage] for stage in ("runtime", "target", "hidden_states", "draft", "benchmark"))
    return (
        "## Cost per draft\n\n"
        "In any currency; set `eyrie_planning_price_hour` (of the whole host) and the plan names its own cost.\n\n"
        + table(["price", *specs], rows)
        + "\nA second draft from the same answers needs neither them nor the capture: only training and the benchmark "
        f"({h(port['draft'] + port['benchmark'])} h on `b200nvl8`). A run that is ported to `b200nvl8` after its "
        f"answers were made elsewhere needs {h(after)} h there. Asking for the answers one at a time (90 tokens a "
        f"second) would take {wasted:,.0f} h: concurrency is worth more than anything else.\n"
    )


def storage(specs: dict[str, dict[str, Any]]) -> str:
    spec = specs["rtx6000bw"]
    hidden, layers = spec["target"]["hidden_size"], len(spec["target"]["aux_layers"]) + 1
    rows = []
    for samples in (10_000, 83_288, 100_000, 300_000):
        row = [f"{samples:,}"]
        for dtype in ("bf16", "fp8"):
            varied = changed(spec, stages__dataset__samples=samples, stages__hidden_states__storage=dtype)
            row.append(human_bytes(estimate("hidden_states", varied)["bytes"]))
        window = changed(
            spec, stages__dataset__samples=samples, stages__hidden_states__storage="window",
            stages__hidden_states__window_bytes=10**12,
        )  # fmt: skip
        row.append(human_bytes(estimate("hidden_states", window)["bytes"]))
        row.append(human_bytes(estimate("tokens", varied)["bytes"]))
        rows.append(row)
    per = {dtype: f"{token_bytes(hidden, layers, dtype):,.0f}" for dtype in ("bf16", "fp8")}
    mean = spec["planning"]["prompt_tokens"] + spec["planning"]["answer_tokens"]
    longest = states_bytes(8192, 1, hidden, layers, "fp8")
    return (
        "## Bytes\n\n"
        f"One token's states take {per['bf16']} bytes in bf16 and {per['fp8']} in fp8; a sample has {mean:,.0f} tokens "
        f"on average, and one of 8,192 tokens takes {human_bytes(longest)} in fp8.\n\n"
        + table(["samples", "bf16", "fp8 (the profiles')", "window of 1 TB", "tokens and masks"], rows)
        + "\nBeside them: the model (595 GB), three checkpoints of the draft with their optimizers "
        f"({human_bytes(estimate('draft', spec)['bytes'])}), the answers "
        f"({human_bytes(estimate('responses', spec)['bytes'])}).\n"
    )


def moves(specs: dict[str, dict[str, Any]]) -> str:
    """What the hours hang on: the plan with one figure changed."""
    spec = specs["rtx6000bw"]
    base = hours(spec)["all"]
    epochs = spec["stages"]["draft"]["epochs"]
    cases = [
        ("as planned", {}),
        ("decode 900 tok/s (16 requests in flight)", {"planning__decode_tok_s": 900.0}),
        ("decode 5,000 tok/s", {"planning__decode_tok_s": 5000.0}),
        ("NCCL misreads the topology: prefill 876 tok/s", {"planning__prefill_tok_s": 876.0}),
        ("states in bf16", {"stages__hidden_states__storage": "bf16"}),
        ("a disk of 7 GB/s", {"planning__disk_bytes_s": 7e9}),
        (f"one epoch more than {epochs}", {"stages__draft__epochs": epochs + 1}),
        ("10,000 samples", {"stages__dataset__samples": 10_000}),
        ("300,000 samples", {"stages__dataset__samples": 300_000}),
    ]
    rows = []
    for name, values in cases:
        found = hours(changed(spec, **values))
        shown = [h(found[stage]) for stage in ("responses", "hidden_states", "draft", "all")]
        rows.append([name, *shown, "" if not values else f"{found['all'] - base:+,.1f}"])
    return (
        "## What the hours hang on (`rtx6000bw`)\n\n"
        + table(["", "responses", "hidden_states", "draft", "all", "difference"], rows)
        + "\nTraining reads every state once an epoch, so the disk bounds it before the GPUs do: at 1 GB/s each epoch "
        "takes as long as reading the states, and half the bytes (fp8) is half the time.\n"
    )


def porting(specs: dict[str, dict[str, Any]]) -> str:
    spec = specs["rtx6000bw"]
    parts = [
        ("answers, tokens, prompts", sum(estimate(name, spec)["bytes"] for name in ("dataset", "responses", "tokens"))),
        ("the newest checkpoint with its optimizer", int(spec["planning"]["draft_bytes"])),
        ("hidden states, fp8", estimate("hidden_states", spec)["bytes"]),
        ("hidden states, bf16",
         estimate("hidden_states", changed(spec, stages__hidden_states__storage="bf16"))["bytes"]),
        ("the model", int(spec["planning"]["model_bytes"])),
    ]  # fmt: skip
    links = (1, 10, 25)
    rows = [
        [name, human_bytes(size), *(human_seconds(size * 8 / gbit / 1e9) for gbit in links)] for name, size in parts
    ]
    again = estimate("hidden_states", specs["b200nvl8"])["seconds"]
    return (
        "## Carrying it to another host\n\n"
        + table(["what", "bytes", *(f"{gbit} Gb/s" for gbit in links)], rows)
        + f"\n`b200nvl8` captures the states again in {human_seconds(again)} by plan; the port's plan compares that "
        "with the link that it measures.\n"
    )


def checks(specs: dict[str, dict[str, Any]]) -> str:
    """The planning figures and formulas beside published ones."""
    spec = specs["rtx6000bw"]
    planning = spec["planning"]
    first = changed(spec, stages__dataset__samples=83_288, stages__hidden_states__storage="bf16")
    tutorial = states_bytes(8192, 1, 4096, 4)
    oss = states_bytes(65536, 1, 2880, 3)
    _, tokens = corpus(spec)
    entries: list[tuple[str, str, str, float]] = [
        ("states of one 8,192-token sample, Llama-3.1-8B (hidden 4096, 4 layers)", human_bytes(tutorial),
         "268 MB: speculators, tutorial `train.md`", tutorial / 268e6),
        ("states of 50,000 of them", human_bytes(50_000 * tutorial), "13 TB: the same tutorial",
         50_000 * tutorial / 13e12),
        ("states of one 64K sample, gpt-oss-120b (hidden 2880)", human_bytes(oss), "1.17 GB: SpecForge issue 426",
         oss / 1.17e9),
        ("states of the first run: 83,288 samples in bf16", human_bytes(estimate("hidden_states", first)["bytes"]),
         "11 TB: its disk", estimate("hidden_states", first)["bytes"] / 11e12),
        ("prefill", f"{planning['prefill_tok_s']:,.0f} tok/s",
         "7,283 tok/s at 8K on 8x RTX PRO 6000: voipmonitor/rtx6kpro", planning["prefill_tok_s"] / 7283),
        ("answers", f"{planning['decode_tok_s']:,.0f} tok/s",
         "1,992 to 2,026 tok/s at 128 requests, the same host", planning["decode_tok_s"] / 2009),
        ("weights on disk", human_bytes(planning["model_bytes"]), "595 GB: the model card",
         planning["model_bytes"] / 595e9),
        ("training, tokens a second", f"{planning['train_tok_s']:,.0f} tok/s",
         "59,500 tok/s: lightseekorg/kimi-k2.5-eagle3 (TorchSpec), 6B tokens in two phases of some 14 h on 32 H200, "
         "target and draft together", planning["train_tok_s"] / (6e9 / (2 * 14 * 3600))),
    ]  # fmt: skip
    rows = [[name, ours, theirs, f"{ratio:.2f}"] for name, ours, theirs, ratio in entries]
    public = 1500.0
    ours = hours(spec)["all"] * GPUS
    return (
        "## Beside published figures\n\n"
        + table(["figure", "here", "published", "ratio"], rows)
        + "\nThe issue about the 64K sample does not name its layers: three are taken here.\n\n"
        f"The best public Kimi-K2.5 draft took {public:,.0f} H200-hours for 600,000 samples (6B tokens, states never "
        f"stored); this plan takes {ours:,.0f} GPU-hours for 100,000 ({tokens / 1e6:,.0f}M tokens), most of them for "
        "answers that can be used again. More samples make better drafts: public advice is 500,000 and more "
        "(speculators issue 751, SpecForge issues 113 and 128, the EAGLE-3 paper), and published acceptance lengths to "
        "hold a draft against are 2.69 to 2.94 on MT-Bench with three draft tokens (model cards of kimi-k2.5-eagle3 "
        "and kimi-k2.5-eagle3-mla).\n"
    )


def control() -> str:
    """The control plane at this size, as bench/control_100k.py left it."""
    found = json.loads(CONTROL.read_text("utf-8"))
    aims = found["aims"]
    rows = [
        [item["name"], f"{item['seconds']:.2f} s", f"{item['rss_mb']:.0f} MB" if item.get("rss_mb") else "-",
         aims.get(item["key"], "-")]
        for item in found["rows"]
    ]  # fmt: skip
    return (
        "## The control plane at this size\n\n"
        f"{found['what']}\n\n```\n{found['command']}\n```\n\n"
        + table(["what", "time", "memory", "aim"], rows)
        + f"\n{found['note']}\n"
    )


def page() -> str:
    specs = {profile: spec_of(host) for profile, host in HOSTS.items()}
    parts = [HEAD, the_plan(specs), by_stage(specs), cost(specs), storage(specs), moves(specs), porting(specs)]
    lines = [line for part in [*parts, checks(specs), control()] for line in wrapped(part)]
    return "\n".join(lines).rstrip("\n") + "\n"


def wrapped(text: str) -> list[str]:
    """Lines of at most 120 characters; tables and what is shown as typed stay as they are."""
    out, typed = [], False
    for line in text.splitlines():
        typed ^= line.startswith("```")
        plain = len(line) > 120 and not typed and not line.startswith("|")
        out += textwrap.wrap(line, 120, break_long_words=False, break_on_hyphens=False) if plain else [line]
    return [*out, ""]


if __name__ == "__main__":
    (PROJECT / "docs" / "sizing.md").write_text(page(), "utf-8")

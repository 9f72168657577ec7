"""The report stage over outputs as the other stages leave them."""

from __future__ import annotations

import json
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import made_report as made
import pytest

from eyrie.benchmark import summary
from eyrie.core import atomic, planner, registry, runner
from eyrie.core.errors import EyrieError
from eyrie.core.pipeline import Pipeline
from eyrie.core.stage import Outcome, Stage, Work

pytestmark = pytest.mark.node

INPUTS = {
    "target": (),
    "dataset": ("target",),
    "responses": ("target", "dataset"),
    "tokens": ("target", "responses"),
    "hidden_states": ("target", "tokens"),
    "draft": ("target", "tokens", "hidden_states"),
    "benchmark": ("target", "dataset", "draft"),
}
CONTRACT = ["run", "host", "target", "draft", "stages", "acceptance", "throughput", "break_even_acceptance", "verdict"]


@dataclass
class Nothing:
    version: int = 0


class StandIn(Stage):
    settings_type = Nothing

    def __init__(self, name: str):
        self.name, self.inputs = name, INPUTS[name]

    def run(self, ctx: Any, work: Work) -> Outcome:
        raise NotImplementedError


def outputs(name: str, folder: Path, gain: float) -> None:
    """What the report reads of a stage."""
    folder.mkdir(parents=True, exist_ok=True)
    if name == "tokens":
        import pyarrow as pa
        import pyarrow.parquet as pq

        sample = {"id": "c0", "turn": 0, "length": 3, "supervised": 2}
        parts = [{"text": "why", "supervised": False}, {"text": "because <b>&", "supervised": True}]
        listed = [{**sample, "source": name, "segments": parts} for name in ("chat", "chat", "chat", "made")]
        atomic.write_json(folder / "audit.json", {**made.AUDIT, "samples": listed})
        samples = {"source": ["chat", "made"] * 3, "length": [3] * 6, "supervised": [2, 1] * 3}
        pq.write_table(pa.table(samples), folder / "samples.parquet")
        with zipfile.ZipFile(folder / "token_freq.pt", "w") as archive:
            archive.writestr("token_freq/data.pkl", pickle.dumps({1: 4, 2: 9, 3: 1}, protocol=2))
        known = {"draft_vocab_size": 2, "coverage": 0.93, "coverage_by_source": {"chat": 0.9}, "distinct_supervised": 3}
        atomic.write_json(folder / "vocab.json", known)
    if name == "draft":
        atomic.write_json(folder / "metrics.json", made.metrics())
    if name == "benchmark":
        given = made.settings()
        sessions = made.measured(gain, given=given)
        cells = summary.cells(sessions)
        decision = summary.decision(given, cells)
        promotion = {
            "promoted": decision["promote"],
            "reason": decision["promote_reason"],
            "version": "v",
            "before": "",
        }
        results = {
            "formula": "1 + accepted/drafts",
            "num_speculative_tokens": 3,
            "draft": {"version": "5ab31c02de77"},
            "predecessor": None,
            "sets": {"heldout": {"prompts": 16, "source": "eval.parquet", "skipped": {}}},
            "sessions": [{key: run[key] for key in ("key", "variant", "k", "round")} for run in sessions],
            "cells": cells,
            "same_text": summary.same_text(sessions),
            "lossless": None,
            "decision": decision,
            "promotion": promotion,
            "serving": {"profile": "", "base_url": "", "draft": ""},
            "environment": made.report()["environment"],
        }
        atomic.write_json(folder / "results.json", results)


class House:
    def __init__(self, root: Path):
        self.root = root

    def pipeline(self, version: int = 0, gain: float = 1.0) -> Pipeline:
        target = {"name": "m", "source": {"kind": "path", "path": "/x"}, "hidden_size": 8, "num_hidden_layers": 8}
        target |= {"num_attention_heads": 2, "vocab_size": 99, "aux_layers": [1, 2, 3]}
        stages = {"draft": {"version": version}}
        raw = {"root": str(self.root), "run": "main", "host": "here", "target": target, "stages": stages}
        pipeline = Pipeline(raw)
        for entry in made.stages():
            ctx = pipeline.context(entry["name"])
            outputs(entry["name"], ctx.out, gain)
            ctx.state.path.mkdir(parents=True, exist_ok=True)
            account = {key: entry[key] for key in ("in", "kept", "dropped", "failed")}
            record = {"fingerprint": ctx.fingerprint, "status": "done", "outputs": ["."], "output_sizes": {".": 0}}
            record |= {key: entry[key] for key in ("seconds", "bytes", "forecast", "started", "finished")}
            ctx.state.write({**record, "identity": ctx.identity, "account": account, "attempt": 1})
        return pipeline

    def run(self, version: int = 0, gain: float = 1.0) -> dict[str, Any]:
        pipeline = self.pipeline(version, gain)
        runner.run(pipeline, "report")
        return dict(json.loads((pipeline.context("report").out / "report.json").read_text()))


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    stand_ins = {name: StandIn(name) for name in INPUTS}
    real = registry.get
    monkeypatch.setattr(registry, "get", lambda name: stand_ins.get(name) or real(name))
    return House(tmp_path)


def test_the_report_holds_what_was_measured(house: House) -> None:
    value = house.run()
    assert set(CONTRACT) <= set(value)
    assert [entry["name"] for entry in value["stages"]] == list(INPUTS)
    dataset = value["stages"][1]
    assert (dataset["in"], dataset["kept"], dataset["failed"]) == (5414, 350, {"not JSON": 1})
    assert value["acceptance"]["trained"] == pytest.approx(1.87, abs=0.02)
    assert value["acceptance"]["untrained"] == 1.0
    assert value["acceptance"]["predicted"] == 2.01
    assert [line["concurrency"] for line in value["throughput"]] == [1, 8]
    assert value["supervision"] == {
        "rows": 6,
        "tokens": 18,
        "supervised": 9,
        "sources": {
            "chat": {"rows": 3, "tokens": 9, "supervised": 6},
            "made": {"rows": 3, "tokens": 9, "supervised": 3},
        },
    }
    assert value["vocabulary_curve"][-1] == [3, 1.0]
    assert value["changes"] is None
    assert value["summary_lines"][0] == "m on here, run main"


def test_the_page_shows_samples_with_their_mask(house: House) -> None:
    house.run()
    text = (house.pipeline().context("report").out / "report.html").read_text()
    assert "<mark>because &lt;b&gt;&amp;</mark>" in text
    assert text.count("chat, 2 of 3 tokens supervised") == 2  # of three: two of each source are shown
    assert text.count("made, 2 of 3 tokens supervised") == 1


def test_the_page_and_the_json_show_what_has_no_mask(house: House) -> None:
    value = house.run()
    assert value["audit"]["zero_mask"] == 6
    assert value["audit"]["sources"]["silent"]["rows"] == 0
    assert "samples" not in value["audit"]
    text = (house.pipeline().context("report").out / "report.html").read_text()
    for part in ("without a mask", "cut at the end", "silent", "9 of 396 turns do not fit seq_length 512"):
        assert part in text


def test_a_run_without_an_audit_has_a_report_too(house: House) -> None:
    pipeline = house.pipeline()
    (pipeline.context("tokens").out / "audit.json").unlink()
    runner.run(pipeline, "report")
    ctx = pipeline.context("report")
    assert json.loads((ctx.out / "report.json").read_text())["audit"] is None
    assert "What the loss sees" not in (ctx.out / "report.html").read_text()


def test_a_second_run_says_what_changed_since_the_first(house: House) -> None:
    house.run()
    value = house.run(version=1, gain=0.9)
    assert value["changes"]["settings"] == [{"stage": "draft", "name": "settings.version", "current": 0, "desired": 1}]
    figures = {item["name"]: item for item in value["changes"]["figures"]}
    assert figures["ratio at concurrency 1"]["now"] < figures["ratio at concurrency 1"]["before"]


def test_it_is_made_once_and_verified_against_its_source(house: House) -> None:
    house.run()
    ctx = house.pipeline().context("report")
    assert planner.plan(ctx)["up_to_date"]
    assert ctx.stage.verify(ctx) == []
    path = ctx.out / "report.json"
    value = json.loads(path.read_text())
    value["cells"][0]["tok_s"] += 1
    path.write_text(json.dumps(value))
    assert [fault.code for fault in ctx.stage.verify(ctx)] == ["report-stale"]


def test_states_that_were_given_up_do_not_matter(house: House) -> None:
    pipeline = house.pipeline()
    states = pipeline.context("hidden_states")
    states.state.write({**states.record(), "released": {"by": "gc", "reason": "can be made again", "when": 0}})
    states.out.rmdir()
    runner.run(pipeline, "report")
    assert planner.plan(pipeline.context("report"))["up_to_date"]


def test_missing_results_are_named(house: House) -> None:
    pipeline = house.pipeline()
    (pipeline.context("benchmark").out / "results.json").write_text("{")
    with pytest.raises(EyrieError, match=r"results\.json of benchmark is missing or torn") as caught:
        runner.run(pipeline, "report")
    assert caught.value.code == "report-input"

"""Stand-ins for the stages before the report, with outputs of any size, and a root in which the report runs."""

from __future__ import annotations

import json
import pickle
import random
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import made_report as made

from eyrie.benchmark import summary
from eyrie.core import atomic, registry, runner
from eyrie.core.pipeline import Pipeline
from eyrie.core.stage import Outcome, Stage, Work

INPUTS = {
    "target": (),
    "dataset": ("target",),
    "responses": ("target", "dataset"),
    "tokens": ("target", "responses"),
    "hidden_states": ("target", "tokens"),
    "draft": ("target", "tokens", "hidden_states"),
    "benchmark": ("target", "dataset", "draft"),
}


@dataclass
class Nothing:
    version: int = 0


class StandIn(Stage):
    settings_type = Nothing

    def __init__(self, name: str):
        self.name, self.inputs = name, INPUTS[name]

    def run(self, ctx: Any, work: Work) -> Outcome:
        raise NotImplementedError


@dataclass
class Size:
    """rows: of the training data; sources: they are spread over; steps: of the training; tokens: distinct ones."""

    rows: int = 6
    sources: int = 2
    steps: int = 600
    tokens: int = 3


NAMES = ("chat", "made", *(f"source{number}" for number in range(2, 100)))


def outputs(name: str, folder: Path, gain: float, size: Size) -> None:
    """What the report reads of a stage."""
    folder.mkdir(parents=True, exist_ok=True)
    if name == "tokens":
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = NAMES[: size.sources]
        sample = {"id": "c0", "turn": 0, "length": 3, "supervised": 2}
        parts = [
            {"text": "why", "supervised": False},
            {"text": "because <b>&" * (size.rows // 1000 + 1), "supervised": True},
        ]
        listed = [{**sample, "source": source, "segments": parts} for source in ("chat", "chat", *names)]
        atomic.write_json(folder / "audit.json", {**made.AUDIT, "samples": listed})
        table = {
            "source": [names[number % len(names)] for number in range(size.rows)],
            "length": [3] * size.rows,
            "supervised": [2 - number % 2 for number in range(size.rows)],
        }
        pq.write_table(pa.table(table), folder / "samples.parquet")
        dice = random.Random(1)
        counts = (
            {1: 4, 2: 9, 3: 1}
            if size.tokens == 3
            else {n: 1 + int(dice.paretovariate(0.8)) for n in range(size.tokens)}
        )
        with zipfile.ZipFile(folder / "token_freq.pt", "w") as archive:
            archive.writestr("token_freq/data.pkl", pickle.dumps(counts, protocol=2))
        known = {"draft_vocab_size": 2, "coverage": 0.93, "coverage_by_source": {"chat": 0.9}, "distinct_supervised": 3}
        atomic.write_json(folder / "vocab.json", known)
    if name == "draft":
        atomic.write_json(folder / "metrics.json", made.metrics(size.steps))
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


def spec(root: Path, version: int = 0) -> Pipeline:
    target = {"name": "m", "source": {"kind": "path", "path": "/x"}, "hidden_size": 8, "num_hidden_layers": 8}
    target |= {"num_attention_heads": 2, "vocab_size": 99, "aux_layers": [1, 2, 3]}
    stages = {"draft": {"version": version}}
    return Pipeline({"root": str(root), "run": "main", "host": "here", "target": target, "stages": stages})


class House:
    def __init__(self, root: Path, size: Size | None = None):
        self.root, self.size = root, size or Size()

    def pipeline(self, version: int = 0, gain: float = 1.0) -> Pipeline:
        pipeline = spec(self.root, version)
        for entry in made.stages():
            ctx = pipeline.context(entry["name"])
            outputs(entry["name"], ctx.out, gain, self.size)
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


def stand_in(name: str) -> Stage:
    """registry.get with stand-ins for every stage but the report."""
    return StandIn(name) if name in INPUTS else registry_get(name)


registry_get = registry.get

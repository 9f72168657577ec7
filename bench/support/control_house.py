"""A finished run of many samples as its stages would have left it: real lists, records and links, sparse large files.

    python bench/support/control_house.py SPEC.json make        # the whole house
    python bench/support/control_house.py SPEC.json half        # the capture was killed half-way
    python bench/support/control_house.py SPEC.json missing     # what a resumed capture finds out before it asks

Run by the node environment's Python. Answers one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE.parents[1] / "tests" / "unit" / "report")]

from eyrie.core import atomic, planner  # noqa: E402
from eyrie.core.pipeline import Pipeline  # noqa: E402

SUPERVISED = 0.82  # share of a sample's tokens that is the answer


def sparse(path: Path, size: int) -> None:
    """A file of that size that takes no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as stream:
        stream.truncate(size)


class House:
    def __init__(self, pipeline: Pipeline):
        self.pipeline = pipeline
        self.sources = list(pipeline.raw["stages"]["dataset"]["sources"])
        planning, samples = pipeline.raw["planning"], int(pipeline.raw["stages"]["dataset"]["samples"])
        rng = random.Random(1)
        mean = planning["prompt_tokens"] + planning["answer_tokens"]
        self.lengths = [max(64, min(8192, round(rng.gammavariate(4, mean / 4)))) for _ in range(samples)]
        self.tokens = sum(self.lengths)

    def done(self, name: str, outputs: list[str], size: int, figures: dict[str, Any] | None = None) -> None:
        """The record that the runner writes."""
        ctx = self.pipeline.context(name)
        count = len(self.lengths)
        account = {"in": count, "kept": count, "dropped": {}, "failed": {}, "examples": {}}
        ctx.state.write(
            {
                "stage": name, "status": "done", "fingerprint": ctx.fingerprint, "identity": ctx.identity,
                "inputs": ctx.inputs, "forecast": {"bytes": size, "seconds": 3600.0, "basis": "made up"},
                "started": time.time() - 3600, "finished": time.time(), "seconds": 3600.0, "seconds_before": 0.0,
                "attempt": 1, "pid": 0, "account": account, "outputs": outputs,
                "output_sizes": {item: planner.output_size(ctx.out / item) for item in outputs},
                "figures": figures or {}, "bytes": size, "error": None,
            }
        )  # fmt: skip

    def out(self, name: str) -> Path:
        folder = self.pipeline.context(name).out
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def make(self) -> dict[str, Any]:
        for act in (self.target, self.dataset, self.responses, self.prepared, self.states, self.draft, self.benchmark):
            act()
        self.pipeline.hashes.path.parent.mkdir(parents=True, exist_ok=True)
        self.pipeline.hashes.save()
        return {"samples": len(self.lengths), "tokens": self.tokens}

    def target(self) -> None:
        out = self.out("target")
        model = self.pipeline.target
        shards = [f"model-{number:05d}-of-00064.safetensors" for number in range(1, 65)]
        for name in shards:
            sparse(out / name, int(self.pipeline.raw["planning"]["model_bytes"]) // 64)
        config = {key: getattr(model, key) for key in ("hidden_size", "num_hidden_layers", "vocab_size")}
        atomic.write_json(out / "config.json", {**config, "model_type": "llama"})
        digest = "0" * 64
        files = {name: {"bytes": (out / name).stat().st_size, "sha256": digest} for name in (*shards, "config.json")}
        atomic.write_json(out / "manifest.json", {"files": files, "config": config})
        self.done("target", sorted([*files, "manifest.json"]), int(self.pipeline.raw["planning"]["model_bytes"]))

    def dataset(self) -> None:
        out = self.out("dataset")
        names = ["train.parquet", "eval.parquet", "sources.json", "lock.json"]
        sparse(out / names[0], len(self.lengths) * 600)
        sparse(out / names[1], 200 * 600)
        share = len(self.lengths) // len(self.sources)
        atomic.write_json(out / names[2], {name: {"in": share, "kept": share} for name in self.sources})
        atomic.write_json(out / names[3], {name: {"revision": "0" * 40, "files": {}} for name in self.sources})
        self.done("dataset", names, len(self.lengths) * 600)

    def responses(self) -> None:
        size = int(self.tokens * SUPERVISED * 12)
        sparse(self.out("responses") / "responses.parquet", size)
        turns = {"kept": len(self.lengths)}
        figures = {"turns": turns, "output_tokens": int(self.tokens * SUPERVISED), "prompt_tokens": 0, "warnings": []}
        self.done("responses", ["responses.parquet"], size, figures)

    def prepared(self) -> None:
        """Real rows: ids of a small alphabet, every row another one."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as parquet

        from eyrie.tokens import arrow
        from eyrie.tokens.stage import write_frequencies

        out = self.out("tokens")
        ids = np.random.default_rng(1).integers(0, 30_000, size=16_384, dtype=np.int32)
        with arrow.DatasetWriter(out / "data", self.tokens) as data:
            for row, length in enumerate(self.lengths):
                start = row % 8192
                one = ids[start : start + length].copy()
                one[: min(4, len(one))] = [row % 997, row // 997 % 997, row // 994_009, length % 997][: len(one)]
                mask = np.ones(len(one), dtype=np.int8)
                mask[: int(len(one) * (1 - SUPERVISED))] = 0
                data.add(one, mask)
        count = len(self.lengths)
        names = [self.sources[row % len(self.sources)] for row in range(count)]
        columns = {
            "key": [f"{row:064x}" for row in range(count)], "id": [f"{row:032x}" for row in range(count)],
            "source": names, "turn": pa.array([0] * count, pa.int32()), "length": pa.array(self.lengths, pa.int32()),
            "supervised": pa.array([int(length * SUPERVISED) for length in self.lengths], pa.int32()),
        }  # fmt: skip
        parquet.write_table(pa.table(columns), out / "samples.parquet")
        write_frequencies(out / "token_freq.pt", np.arange(self.pipeline.target.vocab_size)[::-1] + 1)
        known = {
            "target_vocab_size": self.pipeline.target.vocab_size, "draft_vocab_size": 32_000, "coverage": 0.98,
            "coverage_by_source": dict.fromkeys(self.sources, 0.98), "distinct_supervised": 120_000,
        }  # fmt: skip
        atomic.write_json(out / "vocab.json", known)
        atomic.write_json(out / "audit.json", self.audit(names))
        outputs = ["data/state.json", "data/dataset_info.json", "samples.parquet", "token_freq.pt", "vocab.json"]
        figures = {"rows": count, "tokens": self.tokens, "supervised_tokens": int(self.tokens * SUPERVISED)}
        self.done("tokens", [*outputs, "audit.json"], self.tokens * 5, figures)

    def audit(self, names: list[str]) -> dict[str, Any]:
        each = len(names) // len(self.sources)
        entry = {"rows": each, "tokens": each * 2300, "supervised": each * 1900, "clipped": 0, "dropped": {}}
        text = [{"supervised": False, "text": "Why? " * 60}, {"supervised": True, "text": "Because. " * 200}]
        samples = [
            {"source": name, "id": "0" * 32, "turn": 0, "length": 2300, "supervised": 1900, "segments": text}
            for name in self.sources
            for _ in range(4)
        ]
        return {
            "rows": len(names), "clipped": 0, "dropped": {}, "double_bos": 0, "warnings": [], "supervised_share": 0.82,
            "sources": dict.fromkeys(self.sources, entry), "samples": samples,
        }  # fmt: skip

    def states(self) -> None:
        from eyrie.core.progress import Progress
        from eyrie.core.stage import Work
        from eyrie.hidden_states import files, manifest, plan
        from eyrie.hidden_states.store import Entry, Store

        ctx = self.pipeline.context("hidden_states")
        out = self.out("hidden_states")
        shape = plan.shape_of(ctx)
        corpus = plan.Corpus(ctx.input("tokens").out / "data")
        rows = list(corpus.rows(shape))
        layers = ",".join(map(str, shape.layers))
        entries = []
        with Store(ctx.base / "store") as store:
            for row in rows:
                size = files.file_bytes(row.tokens, len(shape.layers), shape.hidden_size, shape.dtype)
                sparse(store.file(row.key), size)
                entries.append(Entry(row.key, row.tokens, size, shape.dtype, layers, "0" * 32, shape.digest))
            store.record(entries)
            size = manifest.write(out, store, rows, Work(Progress(self.pipeline.root / "progress.json")))
        self.done("hidden_states", [manifest.LINKS, manifest.NAME], size, {"rows": len(rows), "captured": len(rows)})

    def draft(self) -> None:
        import made_report

        out = self.out("draft")
        size = int(self.pipeline.raw["planning"]["draft_bytes"]) // 6
        for name in ("checkpoint", "untrained"):
            sparse(out / name / "model.safetensors", size)
            atomic.write_json(out / name / "config.json", {})
        epochs = int(self.pipeline.raw["stages"]["draft"]["epochs"])
        steps = epochs * self.tokens // (8 * int(self.pipeline.raw["stages"]["draft"]["total_seq_len"]))
        atomic.write_json(out / "metrics.json", made_report.metrics(steps, epochs))
        names = ["checkpoint", "untrained", "metrics.json", "checkpoint/config.json", "checkpoint/model.safetensors"]
        self.done("draft", names, size, {"predicted_acceptance": 2.01})

    def benchmark(self) -> None:
        import made_report as made

        from eyrie.benchmark import summary

        out = self.out("benchmark")
        given = made.settings()
        sessions = made.measured(1.0, given=given)
        cells = summary.cells(sessions)
        decision = summary.decision(given, cells)
        results = {
            "formula": "1 + accepted/drafts", "num_speculative_tokens": 3, "draft": {"version": "5ab31c02de77"},
            "predecessor": None, "sets": {"heldout": {"prompts": 200, "source": "eval.parquet", "skipped": {}}},
            "sessions": [{key: run[key] for key in ("key", "variant", "k", "round")} for run in sessions],
            "cells": cells, "same_text": summary.same_text(sessions), "lossless": None, "decision": decision,
            "promotion": {"promoted": False, "reason": "", "version": "", "before": ""},
            "serving": {"profile": "", "base_url": "", "draft": ""}, "environment": made.report()["environment"],
        }  # fmt: skip
        atomic.write_json(out / "results.json", results)
        self.done("benchmark", ["results.json"], 100_000, {"verdict": decision["verdict"], "lines": decision["lines"]})

    # -- a capture that was killed ---------------------------------------------------------------------------

    def half(self) -> dict[str, Any]:
        from eyrie.hidden_states import manifest
        from eyrie.hidden_states.store import Store

        ctx = self.pipeline.context("hidden_states")
        keys = [line["key"] for line in manifest.read(ctx.out / manifest.NAME)]
        gone = keys[len(keys) // 2 :]
        with Store(ctx.base / "store") as store:
            store.drop(gone)
        record = ctx.record()
        ctx.state.write({**record, "status": "running", "outputs": [], "output_sizes": {}})
        return {"captured": len(keys) - len(gone), "missing": len(gone)}

    def missing(self) -> dict[str, Any]:
        """What the stage does before its first request, timed here: heavy imports count as they do in a run."""
        import resource

        from eyrie.hidden_states import plan

        begin = time.monotonic()
        todo = plan.todo(self.pipeline.context("hidden_states"))
        seconds = time.monotonic() - begin
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {"rows": len(todo.rows), "missing": len(todo.missing), "seconds": seconds, "rss_mb": peak}


def main() -> None:
    path, act = sys.argv[1:]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    house = House(Pipeline(json.loads(Path(path).read_text("utf-8"))))
    print(json.dumps(getattr(house, act)()))


if __name__ == "__main__":
    main()

"""A run whose inputs are fixed folders, with a fake extract server: what the stage needs and nothing else."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import toy_states
from datasets import Dataset
from fake_extract import FakeExtract

from eyrie.core import planner, registry, runner
from eyrie.core.pipeline import Pipeline
from eyrie.core.stage import Stage
from eyrie.hidden_states import plan

ROWS = [[(7 * row + 3 * at) % toy_states.VOCAB for at in range(4 + row)] for row in range(10)]


@dataclass
class Tag:
    value: str = ""


class Fixed(Stage):
    """An input that is there already."""

    settings_type = Tag

    def __init__(self, name, inputs, path):
        self.name, self.inputs, self.path = name, inputs, Path(path)

    def folder(self, ctx):
        return self.path

    def run(self, ctx, work):
        raise AssertionError("inputs are not run")


class House:
    def __init__(self, tmp_path, monkeypatch):
        self.tmp, self.patch = tmp_path, monkeypatch
        self.target = toy_states.checkpoint(tmp_path / "target")
        self.server = FakeExtract(tmp_path / "root/server/extract", self.target)
        self.urls = [self.server.url]
        self.revived = []
        self.tag = "a"
        self.fixed = {}
        real = registry.get
        self.settings = {"reference_max_bytes": 0, "probe_samples": 2, "reserve_bytes": 0, "high_water": 1.0}
        self.settings.update(request_timeout_s=5, write_timeout_s=2, concurrency=3, outage_wait_s=20)
        monkeypatch.setattr(registry, "get", lambda name: self.fixed.get(name) or real(name))
        planned = planner.plan
        monkeypatch.setattr(
            planner, "plan", lambda ctx: {"up_to_date": True} if ctx.name in self.fixed else planned(ctx)
        )
        judged = planner.is_up_to_date
        monkeypatch.setattr(planner, "is_up_to_date", lambda ctx: ctx.name in self.fixed or judged(ctx))
        monkeypatch.setattr(runner, "_serve", lambda ctx, work: self.served.append(ctx.stage.wants_server(ctx)))
        monkeypatch.setattr(plan, "endpoints", lambda ctx: list(self.urls))
        monkeypatch.setattr(plan, "reviver", lambda ctx, work: self._revive)
        monkeypatch.setattr(plan, "storage", lambda ctx: self.server.folder)
        self.served = []
        self.on_revive = lambda: None
        self.prepare(ROWS)

    def _revive(self, url, why):
        self.revived.append(why)
        self.on_revive()

    def close(self):
        self.server.forever = None
        self.server.stop()

    def prepare(self, rows, tag=None):
        """Lay out a tokens stage's outputs for these rows; another tag is another fingerprint."""
        self.tag = tag or self.tag
        folder = self.tmp / f"tokens-{self.tag}"
        data = Dataset.from_dict(
            {
                "input_ids": rows,
                "loss_mask": [[0] + [1] * (len(ids) - 1) for ids in rows],
                "seq_len": [len(ids) for ids in rows],
            }
        )
        data.save_to_disk(str(folder / "data"))
        parquet.write_table(
            pa.table(
                {
                    "id": [f"c{row // 2}" for row in range(len(rows))],
                    "length": [len(ids) for ids in rows],
                    "supervised": [len(ids) - 1 for ids in rows],
                }
            ),
            folder / "samples.parquet",
        )
        self.fixed = {
            "target": Fixed("target", (), self.target),
            "tokens": Fixed("tokens", ("target",), folder),
        }

    def pipeline(self):
        return Pipeline(
            {
                "root": str(self.tmp / "root"),
                "run": "main",
                "host": "here",
                "target": {
                    "name": "toy",
                    "source": {"kind": "path", "path": str(self.target)},
                    "hidden_size": toy_states.HIDDEN,
                    "num_hidden_layers": 6,
                    "num_attention_heads": 2,
                    "vocab_size": toy_states.VOCAB,
                    "aux_layers": list(toy_states.LAYERS[:-1]),
                },
                "stages": {"target": {}, "tokens": {"value": self.tag}, "hidden_states": dict(self.settings)},
            }
        )

    def context(self):
        return self.pipeline().context("hidden_states")

    def run(self):
        return runner.run(self.pipeline(), "hidden_states")

    def captured(self):
        """How often each row's ids were asked for, beyond what the probe asked."""
        return {ids: count for ids, count in self.server.requests.items() if count}

    def files(self):
        return sorted((self.tmp / "root/runs/main/hidden_states/store").glob("??/*.safetensors"))

"""A run of eight small stages, real in everything but their work, for what stands above the stages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyrie.core import registry, runner
from eyrie.core.accounting import Account
from eyrie.core.fingerprint import short
from eyrie.core.pipeline import Context, Pipeline
from eyrie.core.stage import Outcome, Stage, Work

INPUTS = {
    "target": (),
    "dataset": ("target",),
    "responses": ("target", "dataset"),
    "tokens": ("target", "responses"),
    "hidden_states": ("target", "tokens"),
    "draft": ("target", "tokens", "hidden_states"),
    "benchmark": ("target", "dataset", "draft"),
    "report": ("benchmark",),
}


@dataclass
class Settings:
    value: int = 1
    fail: str = ""


class Small(Stage):
    """Writes data.txt from its settings and its inputs' files."""

    settings_type = Settings

    def __init__(self, name: str):
        self.name = name
        self.inputs = INPUTS[name]

    def folder(self, ctx: Context) -> Path:
        if self.name == "target":
            return ctx.pipeline.root / "models" / f"{ctx.target.name}-{short(ctx.fingerprint)}"
        return super().folder(ctx)

    def run(self, ctx: Context, work: Work) -> Outcome:
        if ctx.settings.fail:
            raise OSError(ctx.settings.fail)
        account = Account()
        account.keep(10)
        text = f"{self.name} {ctx.settings.value}\n" + "".join(
            (ctx.input(name).out / "data.txt").read_text() for name in self.inputs
        )
        (ctx.out / "data.txt").write_text(text)
        if self.name == "draft":
            checkpoint = ctx.out / "checkpoint"
            checkpoint.mkdir(exist_ok=True)
            (checkpoint / "config.json").write_text("{}")
            (checkpoint / "model.safetensors").write_bytes(safetensors(text.encode()))
        return Outcome(account, ["data.txt"], {}, len(text))


def safetensors(data: bytes) -> bytes:
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (len(data), len(data))
    return len(header).to_bytes(8, "little") + header + data


class House:
    """The small run, with what tests do to it."""

    def __init__(self, root: Path):
        self.root = root

    def spec(self, run: str = "main", **settings: dict[str, Any]) -> dict[str, Any]:
        return {
            "root": str(self.root),
            "run": run,
            "host": "here",
            "target": {
                "name": "tiny",
                "source": {"kind": "path", "path": "/nowhere"},
                "hidden_size": 8,
                "num_hidden_layers": 12,
                "num_attention_heads": 2,
                "vocab_size": 32,
                "aux_layers": [2, 6, 9],
            },
            "stages": {name: settings.get(name, {}) for name in registry.NAMES},
        }

    def pipeline(self, run: str = "main", **settings: dict[str, Any]) -> Pipeline:
        return Pipeline(self.spec(run, **settings))

    def run(self, last: str = "report", run: str = "main", **settings: dict[str, Any]) -> Pipeline:
        """Bring all stages up to `last` up to date."""
        for name in registry.NAMES[: registry.NAMES.index(last) + 1]:
            runner.run(self.pipeline(run, **settings), name)
        return self.pipeline(run, **settings)

    def promote(self, pipeline: Pipeline) -> str:
        """Keep and promote the run's draft, as the benchmark does."""
        from eyrie.benchmark import drafts

        draft = pipeline.context("draft")
        version = short(draft.fingerprint)
        record = {"run": pipeline.run, "draft_fingerprint": draft.fingerprint, "acceptance": 2.5}
        drafts.keep(self.root, version, draft.out / "checkpoint", record)
        drafts.point(self.root, version)
        return version

"""Three toy stages under real names, and a process that runs one of them: python toy_core.py SPEC STAGE."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyrie.core import registry, runner
from eyrie.core.accounting import Account
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import file_sha256
from eyrie.core.pipeline import Pipeline
from eyrie.core.spec import setting
from eyrie.core.stage import Outcome, Stage

TARGET = {
    "name": "toy",
    "source": {"kind": "path", "path": "/nowhere"},
    "hidden_size": 8,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "vocab_size": 40,
    "aux_layers": [2, 6, 9],
}


@dataclass
class Inner:
    depth: int = 1
    note: str = setting("", identity=False)


@dataclass
class ToySettings:
    items: int = 6
    pause_s: float = setting(0.0, identity=False)
    fail_at: int = setting(-1, identity=False)
    refuse: str = setting("", identity=False)
    drop: int = setting(0, identity=False)
    prompts: str = setting("", identity=False)
    inner: Inner = field(default_factory=Inner)


class Toy(Stage):
    """Writes one line per item into out/lines.txt, resuming from what is there; reads its input's lines first."""

    settings_type = ToySettings
    tools = ("pytest",)

    def __init__(self, name: str, inputs: tuple[str, ...] = ()):
        self.name, self.inputs = name, inputs

    def identity(self, ctx: Any) -> dict[str, Any]:
        value = super().identity(ctx)
        if ctx.settings.prompts:
            value["prompts"] = ctx.pipeline.hashes.sha256(Path(ctx.settings.prompts))
        return value

    def gates(self, ctx: Any) -> list[dict[str, Any]]:
        return [{"name": "toy", "ok": not ctx.settings.refuse, "message": ctx.settings.refuse}]

    def run(self, ctx: Any, work: Any) -> Outcome:
        lines = ctx.out / "lines.txt"
        have = lines.read_text().splitlines() if lines.exists() else []
        work.progress.start("toy", total=ctx.settings.items, unit="lines", done=len(have))
        account = Account()
        account.keep(len(have))
        for number in range(len(have), ctx.settings.items):
            work.check_stop()
            if number == ctx.settings.fail_at:
                raise EyrieError("the toy broke", where=f"line {number}", code="toy-broke")
            with open(lines, "a") as stream:
                stream.write(f"{number} {ctx.settings.inner.depth}\n")
                stream.flush()
                os.fsync(stream.fileno())
            account.keep()
            work.progress.advance()
            time.sleep(ctx.settings.pause_s)
        account.drop("toy rule", count=ctx.settings.drop)
        account.check(self.name)
        return Outcome(
            account, outputs=["lines.txt"], figures={"sha256": file_sha256(lines)}, bytes=lines.stat().st_size
        )


TOYS = {
    "dataset": Toy("dataset"),
    "responses": Toy("responses", ("dataset",)),
    "tokens": Toy("tokens", ("responses",)),
}


def spec_of(root: Path, **stages: dict[str, Any]) -> dict[str, Any]:
    return {"root": str(root), "run": "main", "target": TARGET, "stages": {"dataset": {}, **stages}}


def install() -> None:
    registry.NAMES = tuple(TOYS)
    registry.get = TOYS.__getitem__


if __name__ == "__main__":
    install()
    try:
        runner.run(Pipeline(json.loads(Path(sys.argv[1]).read_text())), sys.argv[2])
    except EyrieError as error:
        print(error, file=sys.stderr)
        sys.exit(1)

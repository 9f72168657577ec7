"""Two hosts as two folders, with stages of plain text files in place of the real ones."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eyrie.core import registry, runner
from eyrie.core.accounting import Account
from eyrie.core.errors import Interrupted
from eyrie.core.pipeline import Context, Pipeline
from eyrie.core.spec import setting
from eyrie.core.stage import Outcome, Stage, Work

INPUTS = {
    "target": (),
    "dataset": (),
    "responses": ("target", "dataset"),
    "tokens": ("target", "responses"),
    "hidden_states": ("target", "tokens"),
    "draft": ("target", "tokens", "hidden_states"),
    "benchmark": ("target", "dataset", "draft"),
    "report": ("benchmark",),
}


@dataclass
class Settings:
    """text: what the stage writes; tool: the version of the tool that 'decides the bytes'."""

    text: str = "a"
    size: int = 2000
    tool: str = setting("1.2.3", identity=False)
    seconds: float = setting(10.0, identity=False)
    stop: bool = setting(False, identity=False)


class TextStage(Stage):
    """Writes `<text>` files; 'responses' keeps a store beside its output, 'hidden_states' links into one."""

    settings_type = Settings

    def __init__(self, name: str):
        self.name, self.inputs = name, INPUTS[name]
        self.adopted: list[str] = []
        self.mends = False

    def identity(self, ctx: Context) -> dict[str, Any]:
        tool = {"responses": "vllm", "hidden_states": "vllm", "draft": "torch"}.get(self.name, "pyarrow")
        return {"settings": {"text": ctx.settings.text, "size": ctx.settings.size}, "tools": {tool: ctx.settings.tool}}

    def forecast(self, ctx: Context) -> dict[str, Any]:
        return {"bytes": ctx.settings.size, "seconds": ctx.settings.seconds, "basis": "test"}

    def folder(self, ctx: Context) -> Path:
        if self.name == "target":
            return ctx.pipeline.root / "models" / f"toy-{ctx.fingerprint[:12]}"
        return super().folder(ctx)

    def carry(self, ctx: Context) -> list[Path]:
        return [ctx.out, ctx.base / "store"] if self.name in ("responses", "hidden_states") else [ctx.out]

    merged = ("store/answers-*",)

    def merge(self, ctx: Context, arrived: Path, present: Path) -> None:
        arrived.rename(present.with_name("answers-1.log"))

    def adopt(self, ctx: Context) -> None:
        self.adopted.append(str(ctx.pipeline.root))
        if self.mends:
            with open(ctx.out / "result", "a") as stream:
                stream.write(", adopted")

    def run(self, ctx: Context, work: Work) -> Outcome:
        body = f"{ctx.pipeline.host}:{ctx.settings.text}:".encode()
        body += bytes(i % 251 for i in range(ctx.settings.size))
        if self.name == "hidden_states":
            for row in range(3):
                (ctx.base / "store" / "ab").mkdir(parents=True, exist_ok=True)
                (ctx.base / "store" / "ab" / f"k{row}").write_bytes(body + bytes([row]))
                (ctx.out / "states").mkdir(exist_ok=True)
                (ctx.out / "states" / f"hs_{row}").symlink_to(f"../../store/ab/k{row}")
            return Outcome(Account(3, 3), ["states"], {"tokens": 300})
        if self.name == "responses":
            (ctx.base / "store").mkdir(parents=True, exist_ok=True)
            (ctx.base / "store" / "answers-0.log").write_bytes(body)
        (ctx.out / "part").mkdir(exist_ok=True)
        (ctx.out / "part" / "data").write_bytes(body)
        if ctx.settings.stop:
            raise Interrupted("asked to stop", code="interrupted")
        (ctx.out / "result").write_text(f"{self.name} of {ctx.pipeline.host}")
        return Outcome(Account(3, 3), ["result", "part"], {"tokens": 300})


@pytest.fixture(autouse=True)
def stages(monkeypatch: pytest.MonkeyPatch) -> dict[str, TextStage]:
    """The registry answers with text stages."""
    made = {name: TextStage(name) for name in registry.NAMES}
    monkeypatch.setattr(registry, "get", lambda name: made[name])
    return made


def spec(root: Path, host: str, **stage_settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "root": str(root),
        "run": "main",
        "host": host,
        "target": {
            "name": "toy",
            "source": {"kind": "path", "path": "/nowhere"},
            "hidden_size": 8,
            "num_hidden_layers": 12,
            "num_attention_heads": 2,
            "vocab_size": 100,
            "aux_layers": [2, 6, 9],
        },
        "stages": {name: stage_settings.get(name, {}) for name in registry.NAMES},
        "execution": {"supervisor": "supervisord"},
    }


class Hosts:
    """Source 'alpha' and destination 'beta' below one temporary folder."""

    def __init__(self, tmp: Path):
        self.tmp = tmp
        self.server: dict[str, dict[str, Any]] = {}
        self.settings: dict[str, dict[str, dict[str, Any]]] = {"alpha": {}, "beta": {}}

    def set(self, host: str, stage: str, **values: Any) -> None:
        self.settings[host].setdefault(stage, {}).update(values)

    def pipeline(self, host: str) -> Pipeline:
        raw = spec(self.tmp / host, host, **self.settings[host])
        raw["server"] = self.server.get(host, {})
        return Pipeline(json.loads(json.dumps(raw)))

    @property
    def alpha(self) -> Pipeline:
        return self.pipeline("alpha")

    @property
    def beta(self) -> Pipeline:
        return self.pipeline("beta")

    def run(self, host: str, *names: str) -> None:
        for name in names or registry.NAMES:
            runner.run(self.pipeline(host), name)

    def run_stopped(self, host: str, name: str) -> None:
        """Run a stage that is stopped in the middle."""
        self.set(host, name, stop=True)
        with pytest.raises(Interrupted):
            runner.run(self.pipeline(host), name)
        self.set(host, name, stop=False)


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)

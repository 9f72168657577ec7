"""A run whose target and dataset are there already, so that `responses` and `tokens` run through the core's runner."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import write_dataset

from eyrie.core import registry, state
from eyrie.core.pipeline import Pipeline
from eyrie.core.stage import Outcome, Stage, Work
from eyrie.responses import asking

sys.path.insert(0, str(Path(__file__).parents[1] / "tokens"))
import toy


@dataclass
class NoSettings:
    version: int = 0


class Ready(Stage):
    """An input stage that never runs: its record says done."""

    settings_type = NoSettings

    def __init__(self, name: str):
        self.name = name

    def run(self, ctx: Any, work: Work) -> Outcome:
        raise AssertionError("it is done")


READY = {"target": Ready("target"), "dataset": Ready("dataset")}
_get = registry.get


def get(name: str) -> Stage:
    return READY.get(name) or _get(name)


def spec(
    root: Path, responses: dict[str, Any] | None = None, tokens: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    target = {
        "name": "toy",
        "source": {"kind": "path", "path": "/nowhere"},
        "hidden_size": 8,
        "num_hidden_layers": 8,
        "num_attention_heads": 1,
        "vocab_size": 264,
        "aux_layers": [2, 4, 5],
        "max_model_len": 4096,
        **more.pop("target", {}),
    }
    values = {"concurrency": 8, "max_tokens": 64, "outage_limit_s": 10, "request_timeout_s": 5, **(responses or {})}
    stages = {"target": {}, "dataset": more.pop("dataset", {}), "responses": values, "tokens": tokens or {}}
    return {"root": str(root), "run": "r", "host": "h", "target": target, "stages": stages, **more}


def ready(pipeline: Pipeline, conversations: list[Any], template: str = toy.PLAIN, **dataset: Any) -> None:
    """Leave what the stages target and dataset would."""
    for name in ("target", "dataset"):
        ctx = pipeline.context(name)
        ctx.state.path.mkdir(parents=True, exist_ok=True)
        ctx.out.mkdir(parents=True, exist_ok=True)
        account = {"in": len(conversations), "kept": len(conversations), "dropped": {}, "failed": {}}
        ctx.state.write(
            {"stage": name, "status": state.DONE, "fingerprint": ctx.fingerprint, "outputs": [], "account": account}
        )
    toy.make_model(pipeline.context("target").out, template)
    write_dataset(pipeline.context("dataset").out / "train.parquet", conversations, **dataset)


def serve_with(monkeypatch: Any, urls: list[str], prove: Any = lambda url: None) -> None:
    """The stage asks these servers, and the runner switches none."""
    monkeypatch.setattr(registry, "get", get)
    monkeypatch.setattr(asking, "surroundings", lambda ctx: (urls, prove, None))
    monkeypatch.setattr(type(_get("responses")), "server", "")

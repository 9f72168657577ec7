"""The dataset stage: many sources in, one canonical conversation table out."""

from __future__ import annotations

from typing import Any

from eyrie.core.pipeline import Context
from eyrie.core.stage import Fault, Outcome, Stage, Work
from eyrie.dataset import identity as identities
from eyrie.dataset import without
from eyrie.dataset.settings import Settings


class DatasetStage(Stage):
    """Makes train.parquet, eval.parquet, sources.json and lock.json (docs/architecture.md has their columns)."""

    name = "dataset"
    inputs = ("target",)
    settings_type = Settings

    def identity(self, ctx: Context) -> dict[str, Any]:
        return identities.identity(ctx)

    def forecast(self, ctx: Context) -> dict[str, Any]:
        from eyrie.dataset.forecast import forecast

        return forecast(ctx)

    def gates(self, ctx: Context) -> list[dict[str, Any]]:
        from eyrie.dataset.gates import gates

        return gates(ctx)

    def again(self, ctx: Context) -> list[dict[str, Any]]:
        return without.again(ctx)

    def run(self, ctx: Context, work: Work) -> Outcome:
        from eyrie.dataset import engine

        return engine.run(ctx, work)

    def verify(self, ctx: Context) -> list[Fault]:
        faults = super().verify(ctx)
        if not faults and ctx.record():
            from eyrie.dataset.verify import verify

            faults = verify(ctx)
        return faults


STAGE = DatasetStage()

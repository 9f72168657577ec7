"""The hidden_states stage: the target's states of every prepared sample, captured once and proven."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from eyrie.core.errors import EyrieError, Interrupted
from eyrie.core.pipeline import Context
from eyrie.core.stage import Fault, Outcome, Stage, Work
from eyrie.hidden_states import fidelity, forecast, manifest, plan, window
from eyrie.hidden_states.capture import Capture, Originals, Result, account_of
from eyrie.hidden_states.disk import DiskGuard
from eyrie.hidden_states.settings import HiddenStatesSettings
from eyrie.hidden_states.store import Store


class HiddenStatesStage(Stage):
    """Captures what is not in the store yet; links the states of every row for the trainer."""

    name = "hidden_states"
    inputs = ("target", "tokens")
    settings_type = HiddenStatesSettings
    tools = ("vllm",)
    server = "extract"

    def forecast(self, ctx: Context) -> dict[str, Any]:
        return forecast.of(ctx)

    def gates(self, ctx: Context) -> list[dict[str, Any]]:
        return forecast.gates(ctx)

    def wants_server(self, ctx: Context) -> bool:
        """Only when something is left to capture."""
        return ctx.settings.storage != "window" and bool(self._todo(ctx).missing)

    def run(self, ctx: Context, work: Work) -> Outcome:
        started = time.monotonic()
        todo = self._todo(ctx, fresh=False)
        settings: HiddenStatesSettings = ctx.settings
        if settings.storage == "window":
            return window.declare(ctx, todo)
        with Store(ctx.base / "store") as store:
            figures: dict[str, Any] = {"rows": len(todo.rows), "unique": len({row.key for row in todo.rows})}
            figures["reused"] = figures["unique"] - len(todo.missing)
            originals = fidelity.originals(ctx, store, todo) if settings.dtype == "fp8" else None
            result = Result()
            plan.sweep_server_folder(ctx)
            if todo.missing:
                figures["probe"] = plan.prove(ctx, todo, work)
                figures["forecast"] = forecast.of_rows(ctx, todo, figures["probe"])
                result = self._capture(ctx, store, todo, work, originals)
                forecast.remember_rate(ctx.base, result)
            if originals:
                figures["fidelity"] = fidelity.check(ctx, store, todo, originals)
            figures.update(forecast.outcome(figures.get("forecast"), result))
            failed = {f"row {row.row}": result.failures[row.key][0] for row in todo.rows if row.key in result.failures}
            self._check_failures(settings, todo, result, failed)
            if todo.others:
                raise Interrupted(
                    f"this host's share is captured; {todo.others} samples are the shares of other hosts.",
                    code="share-captured",
                    todo="Gather the shares on one host and run again there (train.yml does).",
                )
            kept = [row for row in todo.rows if row.key not in result.failures]
            size = manifest.write(ctx.out, store, kept, work)
            if not settings.keep_unreferenced:
                figures["pruned_bytes"] = plan.prune(ctx, store)
        plan.sweep_server_folder(ctx)
        figures["warnings"] = result.warnings[:20]
        figures["seconds"] = round(time.monotonic() - started, 1)
        return Outcome(account_of(len(todo.rows), failed), [manifest.LINKS, manifest.NAME], figures, size)

    def verify(self, ctx: Context) -> list[Fault]:
        from eyrie.hidden_states import verify

        return verify.faults(ctx)

    #: a host's own list of its store takes in the list that came with carried states
    merged = ("store/manifest.sqlite",)

    def carry(self, ctx: Context) -> list[Path]:
        """The rows' links, the states and their list; what verify put aside stays."""
        store = ctx.base / "store"
        return [ctx.out, *sorted(store.glob("??")), *sorted(store.glob("manifest.sqlite*"))]

    def merge(self, ctx: Context, arrived: Path, present: Path) -> None:
        with Store(arrived.parent) as carried, Store(present.parent) as own:
            known = {entry.key for entry in own.entries()}
            own.record(entry for entry in carried.entries() if entry.key not in known and own.file(entry.key).exists())

    # -- parts of run --------------------------------------------------------------------------------------

    def _todo(self, ctx: Context, fresh: bool = True) -> plan.Todo:
        """What there is and what is missing; kept between the server's start and the run."""
        known: plan.Todo | None = getattr(self, "_known", None)
        if known is None or known.fingerprint != ctx.fingerprint or fresh:
            known = plan.todo(ctx)
            self._known = known
        return known

    def _capture(self, ctx: Context, store: Store, todo: plan.Todo, work: Work, originals: Originals | None) -> Result:
        settings: HiddenStatesSettings = ctx.settings
        _, size = store.totals()
        work.progress.bytes = size
        unique = len({row.key for row in todo.rows})
        work.progress.start("capture", unique, "samples", unique - len(todo.missing))
        capture = Capture(
            store=store,
            shape=todo.shape,
            corpus=todo.corpus,
            settings=settings,
            endpoints=plan.endpoints(ctx),
            model=ctx.target.name,
            work=work,
            guard=DiskGuard(ctx.base, settings),
            revive=plan.reviver(ctx, work),
            originals=originals,
        )
        return capture.run(todo.missing)

    @staticmethod
    def _check_failures(
        settings: HiddenStatesSettings, todo: plan.Todo, result: Result, failed: dict[str, str]
    ) -> None:
        if len(failed) > settings.max_failed_share * len(todo.rows):
            first = "; ".join(f"{detail}" for _, detail in list(result.failures.values())[:3])
            raise EyrieError(
                f"{len(failed)} of {len(todo.rows)} samples could not be captured: {first}",
                code="capture-incomplete",
                todo="Run again to try only these again, or allow a share of them (max_failed_share).",
            )


STAGE = HiddenStatesStage()

"""The report stage."""

from __future__ import annotations

import os
from typing import Any

from eyrie.core import atomic, registry
from eyrie.core.accounting import Account
from eyrie.core.fingerprint import fingerprint
from eyrie.core.pipeline import Context
from eyrie.core.stage import Fault, Outcome, Stage, Work, tree_bytes
from eyrie.report.settings import Settings

JSON, HTML = "report.json", "report.html"
#: raised when the same inputs would give another page
LAYOUT = 2


class Report(Stage):
    """report.json and report.html of everything before it."""

    name = "report"
    inputs = tuple(name for name in registry.NAMES if name != "report")
    settings_type = Settings
    tools = ("matplotlib",)

    @property
    def reads(self) -> tuple[str, ...]:
        """Of the other stages only the records count: their outputs may have been given up by now."""
        return ("target", "dataset", "tokens", "draft", "benchmark")

    def identity(self, ctx: Context) -> dict[str, Any]:
        return {**super().identity(ctx), "layout": LAYOUT}

    def run(self, ctx: Context, work: Work) -> Outcome:
        from eyrie.report import collect, curves, lines, masked, page, previous

        # matplotlib keeps its font list there; a home folder may not be writable
        os.environ.setdefault("MPLCONFIGDIR", str(ctx.pipeline.root / "cache" / "matplotlib"))
        work.progress.start("gathering", len(self.inputs), "stages")
        value = collect.gather(ctx)
        value["changes"] = previous.changes(ctx, value)
        value["summary_lines"] = lines.summary(value)
        work.check_stop()
        work.progress.start("drawing")
        settings: Settings = ctx.settings
        shown = masked.samples(masked.read(ctx.input("tokens").out), settings.masked_samples)
        atomic.write_text(ctx.out / HTML, page.build(value, shown, settings.curve_points))
        # the whole curve stays in the draft's metrics.json: with it 50,000 steps would be most of the file
        value["training"]["loss"] = curves.thin(curves.finite(value["training"]["loss"]), 4 * settings.curve_points)
        atomic.write_json(ctx.out / JSON, value)
        account = Account()
        account.keep(len(value["stages"]))
        return Outcome(account, [JSON, HTML], {"verdict": value["verdict"]}, tree_bytes(ctx.out))

    def verify(self, ctx: Context) -> list[Fault]:
        found = super().verify(ctx)
        if found:
            return found
        path = ctx.out / JSON
        value = atomic.read_json(path)
        if not isinstance(value, dict):
            return [Fault(str(path), "is torn", "Run the stage again.", "report-torn")]
        # the figures must be those that were measured: the report is compared with its sources
        results = atomic.read_json(ctx.input("benchmark").out / "results.json", {})
        if results and fingerprint(value.get("cells")) != fingerprint(results.get("cells")):
            found.append(
                Fault(str(path), "does not show the benchmark's cells", "Run the stage again.", "report-stale")
            )
        return found


STAGE = Report()

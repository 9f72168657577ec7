"""plan: compare what is with what the spec wants. Read-only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyrie.core import registry, state
from eyrie.core.fingerprint import differences, short
from eyrie.core.pipeline import Context, Pipeline


def plan(ctx: Context) -> dict[str, Any]:
    """{stage, fingerprint, up_to_date, status, differences, inputs, outputs, forecast, gates, running, record}."""
    record = ctx.record()
    status = ctx.state.status_of(record)
    missing = missing_outputs(ctx, record)
    done = status == state.DONE and not missing
    again = ctx.stage.again(ctx) if done else []
    up_to_date = done and not again
    running = ctx.state.running()
    return {
        "stage": ctx.name,
        "fingerprint": ctx.fingerprint,
        "up_to_date": up_to_date,
        "status": status,
        "differences": again if done else _why(ctx, status, missing),
        "inputs": ctx.inputs,
        "outputs": str(ctx.out),
        "forecast": {"bytes": 0, "seconds": 0, "basis": "up to date"} if up_to_date else ctx.stage.forecast(ctx),
        "gates": [] if up_to_date else ctx.stage.gates(ctx),
        "server": ctx.stage.server,
        "running": running,
        "record": {key: record.get(key) for key in ("seconds", "account", "bytes", "error")} if record else None,
    }


def is_up_to_date(ctx: Context) -> bool:
    """Done, and the outputs are present, or were given up and nothing needs them now.

    A stage with something to try again (Stage.again) is up to date in this sense: its outputs may be used.
    """
    record = ctx.record()
    return ctx.state.status_of(record) == state.DONE and not missing_outputs(ctx, record)


def needed_by(ctx: Context) -> list[str]:
    """Stages that read this one's outputs and are not up to date themselves.

    A record whose `released` says why ({by, reason, when}) stands for large outputs that can be made again: they
    are not made again while all that was made from them is there.
    """
    readers = [name for name in registry.NAMES if ctx.name in registry.get(name).reads]
    return [name for name in readers if not is_up_to_date(ctx.pipeline.context(name))]


def missing_outputs(ctx: Context, record: dict[str, Any]) -> list[str]:
    """Outputs of a record that are gone or, for files, no longer of the size that was verified."""
    if record.get("released"):
        return [f"(given up, needed by {name})" for name in needed_by(ctx)]
    sizes = record.get("output_sizes") or {}
    return [name for name in record.get("outputs", []) if output_size(ctx.out / name) != sizes.get(name)]


def output_size(path: Path) -> int:
    """Bytes of a file, 0 for a folder, -1 when it is not there."""
    try:
        return 0 if path.is_dir() else path.stat().st_size
    except OSError:
        return -1


def _why(ctx: Context, status: str, missing: list[str]) -> list[dict[str, Any]]:
    """Why the stage would run, as differences: changed keys first, else its own state."""
    if missing:
        return [
            {"name": f"output {name}", "current": "missing or changed", "desired": "as verified"} for name in missing
        ]
    if status != "absent":
        return [{"name": "state", "current": status, "desired": state.DONE}]
    last = ctx.state.latest()
    if not last:
        return [{"name": "state", "current": "absent", "desired": state.DONE}]
    changed = differences(last.get("identity"), ctx.identity)
    for name, digest in ctx.inputs.items():
        before = (last.get("inputs") or {}).get(name)
        if before != digest:
            changed.append({"name": f"input {name}", "current": short(before), "desired": short(digest)})
    return changed


def plan_all(pipeline: Pipeline) -> dict[str, Any]:
    """The plans of all stages, in order."""
    plans = [plan(pipeline.context(name)) for name in registry.NAMES]
    pipeline.hashes.save()
    return {"stages": plans}

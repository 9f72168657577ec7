"""run: do a stage's work under its lock, and write `done` only after the outputs were verified."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
import traceback
from types import FrameType
from typing import Any

from eyrie.core import planner, state
from eyrie.core.errors import EyrieError, GateError, Interrupted
from eyrie.core.fingerprint import short
from eyrie.core.lock import Held, Lock
from eyrie.core.pipeline import Context, Pipeline
from eyrie.core.progress import Progress
from eyrie.core.stage import Outcome, Renamed, Work

_ROOM = ("disk-full", "Make room, or move eyrie_root to a larger disk, then run again: what is finished is kept.")
_RIGHTS = ("disk-read-only", "Mount it for writing, then run again: what is finished is kept.")
#: what a disk refuses, whoever meets it first
DISK = {errno.ENOSPC: _ROOM, errno.EDQUOT: _ROOM, errno.EROFS: _RIGHTS}


def run(pipeline: Pipeline, name: str) -> dict[str, Any]:
    """Bring one stage up to date; returns its record. Raises EyrieError."""
    ctx = pipeline.context(name)
    if pipeline.server.get("secrets"):
        from eyrie.serve import key

        key.hold(pipeline)
    ctx.state.path.mkdir(parents=True, exist_ok=True)
    pipeline.hashes.path.parent.mkdir(parents=True, exist_ok=True)
    attempts = int(ctx.record().get("attempt", 0))
    owner = {"fingerprint": ctx.fingerprint, "since": time.time(), "unit": os.environ.get("EYRIE_UNIT", "")}
    try:
        with Lock(ctx.state.lock_path, owner):
            if planner.plan(ctx)["up_to_date"]:
                return ctx.record()
            return _run_locked(ctx)
    except Held as held:
        raise _already_running(ctx, held) from None
    finally:
        pipeline.hashes.save()
        if pipeline.execution.get("notify"):
            from eyrie.ops import notify

            notify.after(ctx, attempts)


def _already_running(ctx: Context, held: Held) -> EyrieError:
    other = str(held.owner.get("fingerprint", ""))
    if other == ctx.fingerprint:
        return EyrieError(
            f"{ctx.name} is already running with the same settings (pid {held.owner.get('pid')}).",
            code="running-same",
            todo="Attach to it: `eyrie status`.",
        )
    return EyrieError(
        f"{ctx.name} is running with other settings (pid {held.owner.get('pid')}): "
        f"running {short(other)}, asked for {short(ctx.fingerprint)}.",
        code="running-other",
        todo="Wait for it or stop it with `eyrie stop`; what it finished is kept.",
    )


def _run_locked(ctx: Context) -> dict[str, Any]:
    started, clock = time.time(), time.monotonic()
    earlier = ctx.record()
    record: dict[str, Any] = {
        "stage": ctx.name,
        "status": state.RUNNING,
        "fingerprint": ctx.fingerprint,
        "identity": ctx.identity,
        "inputs": ctx.inputs,
        "forecast": ctx.stage.forecast(ctx),
        "started": started,
        "pid": os.getpid(),
        "attempt": int(earlier.get("attempt", 0)) + 1,
        "seconds_before": float(earlier.get("seconds_before", 0)) + float(earlier.get("seconds", 0)),
    }
    if earlier.get("imported_from") and earlier.get("status") != state.DONE:
        record["imported_from"] = earlier["imported_from"]  # work that began on another host and goes on here
    work = Work(Progress(ctx.state.progress_path))
    with _signals(work):  # before the record: who reads it may ask for a stop
        ctx.state.write(record)
        try:
            _check_inputs(ctx)
            _check_gates(ctx)
            _serve(ctx, work)
            ctx.out.mkdir(parents=True, exist_ok=True)
            outcome = ctx.stage.run(ctx, work)
            outcome.account.check(ctx.name)
            _check_outputs(ctx, outcome)
        except Renamed:
            return _renamed(ctx, record)
        except BaseException as error:
            stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
            failure = {
                **record,
                "status": state.INTERRUPTED if stopped else state.FAILED,
                "seconds": round(time.monotonic() - clock, 3),
                "error": _described(error),
            }
            with contextlib.suppress(OSError):  # a full or read-only disk is what failed: its error is the one to tell
                ctx.state.write(failure)
            if isinstance(error, EyrieError) or not isinstance(error, Exception):
                raise
            raise EyrieError(**failure["error"]) from error
    record.update(
        status=state.DONE,
        seconds=round(time.monotonic() - clock, 3),
        finished=time.time(),
        account=outcome.account.as_dict(),
        outputs=outcome.outputs,
        output_sizes={name: planner.output_size(ctx.out / name) for name in outcome.outputs},
        figures=outcome.figures,
        bytes=outcome.bytes,
        error=None,
    )
    work.progress.write(force=True)
    ctx.state.write(record)
    return record


def _renamed(ctx: Context, record: dict[str, Any]) -> dict[str, Any]:
    """Go on under the fingerprint that the spec has now. Who waits for the old one learns how it ended.

    The old record vouches for nothing afterwards.
    """
    ctx.pipeline.hashes.save()
    now = Pipeline(ctx.pipeline.raw).context(ctx.name)
    if now.fingerprint == ctx.fingerprint:
        raise EyrieError(f"{ctx.name} was renamed to itself.", code="renamed", todo="This is a defect in Eyrie.")
    old = {**record, "outputs": [f"(became {short(now.fingerprint)})"], "output_sizes": {}}
    try:
        final = _run_locked(now)
    except BaseException:
        ended = now.record()
        ctx.state.write({**old, "status": ended.get("status"), "error": ended.get("error")}, latest=False)
        raise
    kept = {name: final[name] for name in ("status", "seconds", "account", "figures", "bytes", "error")}
    ctx.state.write({**old, **kept}, latest=False)
    return final


def _check_inputs(ctx: Context) -> None:
    for name in ctx.stage.inputs:
        if not planner.is_up_to_date(ctx.input(name)):
            raise EyrieError(
                f"{ctx.name} needs {name}, which is not up to date.",
                code="input-stale",
                todo=f"Run {name} first (train.yml does).",
            )


def _check_gates(ctx: Context) -> None:
    refused = [gate for gate in ctx.stage.gates(ctx) if not gate["ok"]]
    if refused:
        raise GateError(
            f"{ctx.name} is refused: " + " ".join(f"[{gate['name']}] {gate['message']}" for gate in refused),
            code="gate-refused",
        )


def _serve(ctx: Context, work: Work) -> None:
    """Bring up the server profile that the stage declares, with proof."""
    if ctx.stage.server and ctx.stage.wants_server(ctx):
        from eyrie.serve import switch

        switch.ensure(ctx.pipeline, ctx.stage.server, progress=work.progress)


def _check_outputs(ctx: Context, outcome: Outcome) -> None:
    if not outcome.outputs:
        raise EyrieError(f"{ctx.name} declared no outputs.", code="no-outputs", todo="This is a defect in Eyrie.")
    for name in outcome.outputs:
        if not (ctx.out / name).exists():
            raise EyrieError(f"{ctx.name} did not leave {name}.", where=str(ctx.out), code="output-missing")


def _described(error: BaseException) -> dict[str, Any]:
    if isinstance(error, EyrieError):
        return error.as_dict()
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    where = f"{frame[0].filename}:{frame[0].lineno}" if frame else ""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno in DISK:
        code, todo = DISK[error.errno]
        return EyrieError(f"{text}.", where=error.filename or where, code=code, todo=todo).as_dict()
    return EyrieError(f"{type(error).__name__}: {text}", where=where, code="unexpected").as_dict()


class _signals:
    """SIGTERM and SIGINT set the stop flag; a second one ends at once."""

    def __init__(self, work: Work):
        self.work = work
        self.before: dict[int, Any] = {}

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.work.stop_requested:
            raise Interrupted("asked to stop twice", code="interrupted", todo="Run again: it resumes.")
        self.work.stop_requested = True

    def __enter__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self.before[number] = signal.signal(number, self._stop)

    def __exit__(self, *exc: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

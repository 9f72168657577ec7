"""Jobs: one stage's work under the supervisor, attached to when it runs already."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from eyrie.core import atomic, planner, state
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import short
from eyrie.core.pipeline import Context, Pipeline
from eyrie.supervise import backend, processes
from eyrie.supervise.base import Program, Supervisor, tail
from eyrie.supervise.interpreter import python_path, venv_python

#: a loaded host needs a while to start Python and read a spec
START_LIMIT_S = 180.0
STOP_TIMEOUT_S = 180
#: from a job's last record to the end of its process
ENDING_LIMIT_S = 15.0


def unit_of(pipeline: Pipeline, stage: str) -> str:
    """eyrie-<run>-<stage>-<6 digits of the root>: two roots on a host never meet."""
    run = re.sub(r"[^A-Za-z0-9_.]", "_", pipeline.run)
    root = hashlib.sha256(str(pipeline.root.absolute()).encode()).hexdigest()[:6]
    return f"eyrie-{run}-{stage}-{root}"


def start(pipeline: Pipeline, stage: str) -> dict[str, Any]:
    """Start a stage's job, or attach to it.

    Returns {started, attached, unit, log} as soon as the job has written its first record, so that a status read
    afterwards is the job's own. Raises EyrieError: 'running-other' when the stage runs with other settings,
    'job-died' when the job ended before it got so far.
    """
    ctx = pipeline.context(stage)
    supervisor = backend(pipeline.root, pipeline.execution)
    unit = unit_of(pipeline, stage)
    ctx.state.path.mkdir(parents=True, exist_ok=True)
    with _starting(ctx):
        answer = {"started": False, "attached": False, "unit": unit, "log": str(ctx.state.log_path)}
        if planner.plan(ctx)["up_to_date"]:
            return answer
        if _running(ctx, supervisor, unit):
            return {**answer, "attached": True}
        atomic.write_json(ctx.state.spec_path, pipeline.raw, mode=0o600)
        atomic.write_json(_job_path(ctx), {"unit": unit, "fingerprint": ctx.fingerprint, "since": time.time()})
        begin, offset = time.time(), _size(ctx.state.log_path)
        supervisor.stop(unit)  # a finished unit of that name
        supervisor.start(_program(pipeline, ctx, unit))
        _await_record(ctx, supervisor, unit, begin, offset)
        return {**answer, "started": True}


def stop(pipeline: Pipeline, stage: str) -> dict[str, Any]:
    """Ask a running stage to stop (SIGTERM: it keeps what it finished) and wait until it has."""
    ctx = pipeline.context(stage)
    supervisor = backend(pipeline.root, pipeline.execution)
    unit = unit_of(pipeline, stage)
    owner = ctx.state.running()
    active = supervisor.status(unit).active
    if active:
        supervisor.stop(unit)
    elif owner and owner.get("pid"):  # it runs in someone's foreground
        pid = int(owner["pid"])
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        if processes.wait_gone({pid}, STOP_TIMEOUT_S):
            raise EyrieError(
                f"{stage} (pid {pid}) did not stop within {STOP_TIMEOUT_S} s.", code="stop-timeout", where=unit
            )
    return {"stopped": bool(active or owner), "unit": unit, "log": str(ctx.state.log_path)}


def _running(ctx: Context, supervisor: Supervisor, unit: str) -> bool:
    """True when this very work runs. Raises 'running-other' when the stage runs with other settings."""
    owner = _worker(ctx, supervisor, unit)
    if owner is None:
        return False
    other = str(owner.get("fingerprint") or "")
    if other == ctx.fingerprint:
        return True
    raise EyrieError(
        f"{ctx.name} is running with other settings (pid {owner.get('pid', '?')}): "
        f"running {short(other)}, asked for {short(ctx.fingerprint)}.",
        where=unit,
        code="running-other",
        todo="Wait for it or stop it with `eyrie stop`; what it finished is kept.",
    )


def _worker(ctx: Context, supervisor: Supervisor, unit: str) -> dict[str, Any] | None:
    """Who works on the stage: the holder of its lock, or the job that has yet to take it.

    A job that wrote its last record but has not ended yet, or that was killed and not yet missed by the supervisor, is
    waited for: it must not be attached to.
    """
    deadline = time.monotonic() + ENDING_LIMIT_S
    while True:
        owner = ctx.state.running()
        if owner is None:
            status = supervisor.status(unit)
            if not status.active:
                return None
            owner = {"pid": status.pid, "fingerprint": (atomic.read_json(_job_path(ctx), {}) or {}).get("fingerprint")}
        latest = ctx.state.latest()
        recorded = owner.get("pid") == latest.get("pid") and latest.get("status") != state.RUNNING
        gone = bool(owner.get("pid")) and processes.read(int(owner["pid"])) is None
        if not (recorded or gone) or time.monotonic() > deadline:
            return owner
        time.sleep(0.05)


def _program(pipeline: Pipeline, ctx: Context, unit: str) -> Program:
    argv = (venv_python(), "-m", "eyrie", "run", ctx.name, "--spec", str(ctx.state.spec_path))
    environment = {**job_environment(pipeline), "EYRIE_UNIT": unit}
    return Program(unit, argv, ctx.state.log_path, pipeline.root, environment, STOP_TIMEOUT_S)


def job_environment(pipeline: Pipeline) -> dict[str, str]:
    """Caches and temporary files on the big disk, never on the root disk; then what `execution.environment` adds."""
    cache = pipeline.root / "cache"
    (cache / "tmp").mkdir(parents=True, exist_ok=True)
    environment = {
        "HF_HOME": str(cache / "hf"),
        "HF_DATASETS_CACHE": str(cache / "datasets"),
        "HF_XET_CACHE": str(cache / "xet"),
        "TMPDIR": str(cache / "tmp"),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }
    token = pipeline.root / "secrets" / "hf_token"
    if token.exists():
        environment["HF_TOKEN_PATH"] = str(token)
    environment |= python_path()
    extra = pipeline.execution.get("environment") or {}
    return environment | {str(key): str(value) for key, value in extra.items()}


def _await_record(ctx: Context, supervisor: Supervisor, unit: str, begin: float, offset: int) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        ended = not supervisor.status(unit).active
        if float(ctx.record().get("updated", 0)) >= begin:
            return
        if ended:
            break
        if time.monotonic() > deadline:
            raise EyrieError(
                f"{ctx.name} has not begun within {START_LIMIT_S:.0f} s.",
                where=unit,
                code="job-silent",
                todo=f"See {ctx.state.log_path}.",
            )
        time.sleep(0.05)
    if planner.plan(ctx)["up_to_date"]:
        return
    lines = tail(ctx.state.log_path, 8, offset)
    raise EyrieError(
        f"The job of {ctx.name} ended before it began ({supervisor.status(unit).detail or 'no detail'}).",
        where=unit,
        code="job-died",
        why=" | ".join(lines) or "It wrote nothing.",
        todo=f"See {ctx.state.log_path}.",
    )


def _job_path(ctx: Context) -> Path:
    return ctx.state.path / "job.json"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def _starting(ctx: Context) -> Iterator[None]:
    """Two starts of a stage at the same moment: the second attaches to the first."""
    fd = os.open(ctx.state.path / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)

"""A switch under the supervisor: it outlives the connection that asked for it, and is attached to, not repeated.

<root>/server/switch.json holds where it stands; `begin` starts it, `look` reads it, `act` is the job itself.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import short
from eyrie.core.pipeline import Pipeline
from eyrie.core.progress import Progress
from eyrie.serve import launch, records, switch
from eyrie.serve import settings as server_settings
from eyrie.serve.house import House
from eyrie.supervise import Program
from eyrie.supervise.base import tail
from eyrie.supervise.interpreter import venv_python
from eyrie.supervise.jobs import ENDING_LIMIT_S, job_environment

RUNNING, DONE, FAILED = "running", "done", "failed"


def record_path(root: Path) -> Path:
    return launch.folder(root) / "switch.json"


def progress_path(root: Path) -> Path:
    return launch.folder(root) / "switch-progress.json"


def log_path(root: Path) -> Path:
    return launch.folder(root) / "log" / "switch.log"


def unit_of(root: Path) -> str:
    return f"eyrie-switch-{hashlib.sha256(str(root.absolute()).encode()).hexdigest()[:6]}"


def begin(pipeline: Pipeline, profile: str) -> dict[str, Any]:
    """Start the switch to a profile, or attach to it; nothing when that serves already, proven.

    Returns {started, finished, serving?}. Raises GateError before anything is touched, 'running-other' while a
    switch to something else is under way.
    """
    document = launch.document(pipeline, profile)
    house = House(pipeline, server_settings.load(pipeline))
    unit, known = unit_of(house.root), records.read(record_path(house.root))
    if known.get("status") in (DONE, FAILED):  # its job may be between its last word and its end
        with suppress(EyrieError):
            house.supervisor.wait_stopped(unit, ENDING_LIMIT_S)
    if house.supervisor.status(unit).active:
        if known.get("fingerprint") == document["fingerprint"]:
            return {"started": False, "finished": False}
        raise EyrieError(
            f"a switch to {known.get('profile')} ({short(known.get('fingerprint'))}) is under way, "
            f"asked for {profile} ({short(document['fingerprint'])}).",
            where=unit,
            code="running-other",
            todo="Wait for it; `eyrie server look` shows where it stands.",
        )
    if serving := switch.current(pipeline, document):
        switch.point_to_declared(pipeline, profile)
        return {"started": False, "finished": True, "serving": shown(pipeline, serving)}
    switch.check_gates(pipeline, house, document)
    spec = launch.folder(house.root) / "switch-spec.json"
    atomic.write_json(spec, pipeline.raw, mode=0o600)
    begun = {"profile": profile, "fingerprint": document["fingerprint"], "status": RUNNING, "since": time.time()}
    atomic.write_json(record_path(house.root), begun)
    argv = (venv_python(), "-m", "eyrie", "server", "act", profile, "--spec", str(spec))
    stop_s = house.settings.stop_timeout_s + 60
    house.supervisor.stop(unit)
    house.supervisor.start(
        Program(unit, argv, log_path(house.root), house.root, job_environment(pipeline), stop_timeout_s=stop_s)
    )
    return {"started": True, "finished": False}


def act(pipeline: Pipeline, profile: str) -> dict[str, Any]:
    """The job: switch, and leave the outcome where `look` finds it."""
    root = pipeline.root
    begun = records.read(record_path(root))
    base = {**begun, "profile": profile}
    try:
        serving = switch.ensure(pipeline, profile, Progress(progress_path(root)))
    except Exception as error:
        known = error if isinstance(error, EyrieError) else EyrieError(f"{type(error).__name__}: {error}")
        atomic.write_json(record_path(root), {**base, "status": FAILED, "error": known.as_dict()})
        raise
    result = {**base, "status": DONE, "serving": shown(pipeline, serving)}
    atomic.write_json(record_path(root), result)
    return result


def look(pipeline: Pipeline, profile: str, seconds: float = 0.0) -> dict[str, Any]:
    """Wait up to `seconds` for the end of the switch: {finished, text, seconds, serving?}.

    Raises the switch's own error when it failed, 'switch-killed' when its job is gone.
    """
    deadline = time.monotonic() + seconds
    while True:
        known = records.read(record_path(pipeline.root))
        if known.get("profile") != profile:
            raise EyrieError(f"no switch to {profile} was begun here.", code="no-switch")
        if known.get("status") == DONE:
            return {"finished": True, "text": f"{profile} serves", "serving": known["serving"]}
        if known.get("status") == FAILED:
            raise EyrieError(**known["error"])
        _check_alive(pipeline, profile)
        if time.monotonic() >= deadline:
            return {"finished": False, "text": _text(pipeline.root, known), "serving": None}
        time.sleep(0.25)


def _check_alive(pipeline: Pipeline, profile: str) -> None:
    house = House(pipeline, server_settings.load(pipeline))
    if house.supervisor.status(unit_of(house.root)).active:
        return
    if records.read(record_path(house.root)).get("status") == RUNNING:  # read again: it may have ended just now
        raise EyrieError(
            f"the switch to {profile} was killed.",
            where=unit_of(house.root),
            code="switch-killed",
            why=" | ".join(tail(log_path(house.root), 5)),
            todo="Run again: it converges from whatever serves now.",
        )


def _text(root: Path, known: dict[str, Any]) -> str:
    progress = records.read(progress_path(root))
    fresh = float(progress.get("updated") or 0) >= float(known.get("since") or 0)
    said = (progress.get("detail") or {}).get("server") if fresh else None
    return f"{known['profile']}: {said or 'starting'}"


def shown(pipeline: Pipeline, serving: switch.Serving) -> dict[str, Any]:
    """A proven server as plain data, with the times of the switch that brought it up."""
    record = records.read(records.serving_path(pipeline.root))
    kept = ("switch_s", "stop_s", "load_s", "overhead_s", "identity", "foreign_gpu_mib")
    return {**asdict(serving), "log": str(serving.log), **{key: record.get(key) for key in kept}}

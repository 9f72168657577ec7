"""Sending from this machine in the background: by a process of its own that a lost play or a Ctrl-C does not end.

The controller has no supervisor of Eyrie's. A folder stands for the job: request.json, progress.json, result.json, log,
and the lock that its process holds. The same request attaches to it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from eyrie.core import atomic, children, lock
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import fingerprint
from eyrie.port import moving
from eyrie.port.cli import need
from eyrie.supervise.base import tail

#: a started process that has not taken its lock by then did not come up
START_LIMIT_S = 60.0
LOG_LINES = 5


def start(request: dict[str, Any]) -> dict[str, Any]:
    """Start sending, or attach to the same send; {started, attached, unit, log}. request['job']: the folder."""
    folder = Path(need(request, "job")[0])
    moving.Move.of(request)  # refuse a bad request here, not in the job's log
    wanted = fingerprint({key: request.get(key) for key in ("sha256", "to", "pull")})
    told = {"unit": str(folder), "log": str(folder / "log")}
    owner = lock.holder(folder / "lock")
    if owner is not None:
        if owner.get("fingerprint") == wanted:
            return {"started": False, "attached": True, **told}
        raise EyrieError(
            "another port is being sent from here.",
            where=str(folder),
            code="running-other",
            todo=f"Wait for it, or end its process ({owner.get('pid', 'unknown')}).",
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").unlink(missing_ok=True)
    (folder / "progress.json").unlink(missing_ok=True)
    job = {**request, "progress": str(folder / "progress.json"), "fingerprint": wanted}
    atomic.write_json(folder / "request.json", job, mode=0o600)
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "eyrie.port.job", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=children.environment(),
            start_new_session=True,
        )
    _await(folder, process)
    return {"started": True, "attached": False, **told}


def _await(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the job holds its lock or is over; afterwards `status` tells the truth."""
    deadline = time.monotonic() + START_LIMIT_S
    while lock.holder(folder / "lock") is None and not (folder / "result.json").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise EyrieError(
                "the sending process did not come up.",
                where=str(folder / "log"),
                code="job-died",
                why=" | ".join(tail(folder / "log", LOG_LINES)),
                todo="Read the log and run again.",
            )
        time.sleep(0.05)


def status(request: dict[str, Any]) -> dict[str, Any]:
    """{finished, running, lost, progress, result, error, log}, as `eyrie port status` tells of a supervised job."""
    return moving.stands(Path(need(request, "job")[0]))

"""wait: look at one fingerprint's job until it ends or the time is over. `eyrie wait`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eyrie.core.fingerprint import short
from eyrie.core.registry import NAMES
from eyrie.core.state import DONE, FAILED, INTERRUPTED, RUNNING, StateDir

POLL_S = 0.5
#: a started job that has neither taken its lock nor written a record by then did not come up
START_GRACE_S = 60.0
LOG_LINES = 15


def look(state: StateDir, fingerprint: str, since: float, now: float) -> dict[str, Any]:
    """Where the job of a fingerprint stands.

    since: when the job was started (node clock); a record that is older belongs to an earlier attempt. 0 = any.
    Returns {status, finished, record, error, seconds}; status is starting, running, done, failed or interrupted.
    """
    record = state.read(fingerprint)
    owner = state.running()
    if owner is not None and owner.get("fingerprint") in (None, fingerprint):
        started = float(record.get("started") or owner.get("since") or now)
        return _answer(RUNNING, record, max(0.0, now - started))
    fresh = bool(record) and float(record.get("updated", 0)) >= since
    status = state.status_of(record) if fresh else "starting"
    if status in (DONE, FAILED, INTERRUPTED):
        return _answer(status, record, float(record.get("seconds") or 0))
    if since and now - since > START_GRACE_S:
        error = {
            "code": "job-not-up",
            "what": f"The job did not come up within {START_GRACE_S:.0f} s of its start.",
            "where": str(state.log_path),
            "why": "Its last words: " + " | ".join(_last_lines(state.log_path)),
            "todo": "Read the log; `eyrie run` shows the same in the foreground.",
        }
        return {**_answer(FAILED, {}, now - since), "error": error}
    return _answer("starting", {}, max(0.0, now - since) if since else 0.0)


def _answer(status: str, record: dict[str, Any], seconds: float) -> dict[str, Any]:
    done = status == DONE
    kept = ("seconds", "account", "bytes", "figures")
    return {
        "status": status,
        "finished": done,
        "record": {key: record.get(key) for key in kept} if done else None,
        "error": record.get("error") if status in (FAILED, INTERRUPTED) else None,
        "seconds": round(seconds, 1),
    }


def _last_lines(path: Path) -> list[str]:
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return ["(no log)"]
    return [line for line in text.splitlines() if line.strip()][-LOG_LINES:] or ["(empty log)"]


def wait(
    run_dir: Path,
    stage: str,
    fingerprint: str,
    since: float = 0.0,
    seconds: float = 0.0,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Look until the job ended or `seconds` are over; the last look, with the progress of a running job."""
    state = StateDir(run_dir / "state" / stage)
    deadline = clock() + seconds
    while True:
        answer = look(state, fingerprint, since, clock())
        left = deadline - clock()
        if answer["status"] in (DONE, FAILED, INTERRUPTED) or left <= 0:
            break
        sleep(min(POLL_S, left))
    answer.update(stage=stage, fingerprint=short(fingerprint), log=str(state.log_path))
    answer["progress"] = state.progress() if answer["status"] == RUNNING else None
    return answer


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="eyrie wait", description="Wait for a stage's job, a bounded time.")
    top.add_argument("stage", choices=NAMES)
    top.add_argument("--root", required=True)
    top.add_argument("--run", default="main")
    top.add_argument("--fingerprint", required=True, help="the plan's fingerprint of the job")
    top.add_argument("--since", type=float, default=0.0, help="when the job was started; older records do not count")
    top.add_argument("--seconds", type=float, default=0.0, help="how long to wait at most")
    return top


def run(args: argparse.Namespace) -> dict[str, Any]:
    return wait(Path(args.root) / "runs" / args.run, args.stage, args.fingerprint, args.since, args.seconds)

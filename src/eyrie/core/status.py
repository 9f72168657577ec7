"""status: where each stage stands, without the spec and without disturbing anything."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from eyrie.core import registry
from eyrie.core.state import RUNNING, StateDir


def stage_status(run_dir: Path, name: str) -> dict[str, Any]:
    """{stage, status, fingerprint, seconds, progress, error, account, bytes, pid}."""
    folder = StateDir(run_dir / "state" / name)
    record = folder.latest()
    status = folder.status_of(record)
    owner = folder.running()
    if owner is not None and status != RUNNING:
        status = RUNNING  # it has the lock but has not written its record yet
    seconds = record.get("seconds")
    if status == RUNNING and record.get("started"):
        seconds = round(time.time() - float(record["started"]), 1)
    return {
        "stage": name,
        "status": status,
        "fingerprint": record.get("fingerprint"),
        "seconds": seconds,
        "progress": folder.progress() if status == RUNNING else None,
        "error": record.get("error"),
        "account": record.get("account"),
        "bytes": record.get("bytes"),
        "figures": record.get("figures"),
        "pid": (owner or {}).get("pid"),
        "log": str(folder.log_path),
    }


def run_status(root: Path, run: str, names: list[str] | None = None) -> dict[str, Any]:
    """Status of the named stages (all by default)."""
    run_dir = root / "runs" / run
    return {
        "root": str(root),
        "run": run,
        "stages": [stage_status(run_dir, name) for name in names or registry.NAMES],
    }

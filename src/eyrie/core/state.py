"""What is known of a stage: one JSON file per fingerprint, the latest one, and a history of lines.

runs/<run>/state/<stage>/<fingerprint12>.json   the record of one fingerprint
runs/<run>/state/<stage>/latest.json            the record written last (what `eyrie status` shows)
runs/<run>/state/<stage>/history.jsonl          one line per transition
runs/<run>/state/<stage>/{lock,progress.json,spec.json}

A record is written tmp + fsync + rename, `done` only after the outputs were verified.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from eyrie.core import atomic, lock
from eyrie.core.fingerprint import short

RUNNING, DONE, FAILED, INTERRUPTED = "running", "done", "failed", "interrupted"


class StateDir:
    """The state folder of one stage of one run."""

    def __init__(self, path: Path):
        self.path = path
        self.lock_path = path / "lock"
        self.progress_path = path / "progress.json"
        self.spec_path = path / "spec.json"
        self.log_path = path / "log"

    def read(self, fingerprint: str) -> dict[str, Any]:
        """The record of a fingerprint; {} when there is none (or a foreign one under its short name)."""
        record = atomic.read_json(self.path / f"{short(fingerprint)}.json", {})
        return record if isinstance(record, dict) and record.get("fingerprint") == fingerprint else {}

    def latest(self) -> dict[str, Any]:
        record = atomic.read_json(self.path / "latest.json", {})
        return record if isinstance(record, dict) else {}

    def running(self) -> dict[str, Any] | None:
        """The owner of the lock while the stage runs, else None."""
        return lock.holder(self.lock_path)

    def progress(self) -> dict[str, Any]:
        return atomic.read_json(self.progress_path, {}) or {}

    def write(self, record: dict[str, Any], latest: bool = True) -> None:
        """Write a record; latest: it is what `eyrie status` shows from now on."""
        record = {**record, "updated": time.time()}
        atomic.write_json(self.path / f"{short(record['fingerprint'])}.json", record)
        if latest:
            atomic.write_json(self.path / "latest.json", record)
        line = {key: record.get(key) for key in ("updated", "status", "fingerprint", "seconds", "pid")}
        line["error"] = (record.get("error") or {}).get("what")
        atomic.append_line(self.path / "history.jsonl", json.dumps(line))

    def status_of(self, record: dict[str, Any]) -> str:
        """A record that says 'running' without a live lock holder was killed: interrupted."""
        status = str(record.get("status", "absent"))
        if status == RUNNING:
            owner = self.running()
            if owner is None or owner.get("fingerprint") not in (None, record.get("fingerprint")):
                return INTERRUPTED
        return status

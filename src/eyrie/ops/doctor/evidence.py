"""What the doctor reads: logs, state records and facts, as documents. Read-only, bounded in size."""

from __future__ import annotations

import json
import os
import re
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyrie.core import registry, state
from eyrie.core.fingerprint import flatten

TAIL_BYTES = 256 * 1024
LINE_CHARS = 2000
LOG_DEPTH = 3
MAX_LOGS = 40
#: rows left out because so many were wanted and no more: nothing is wrong with them
WANTED = ("held_out", "over_quota", "not_sampled")
_ANSWER = re.compile(r'\{"stage": "\w+", "status": "done"')
_STOPPING, _STARTING = "[shutdown]", re.compile(r"vLLM API server version|Initializing a V1 LLM engine")


@dataclass
class Document:
    """One piece of evidence. source: log, state, host or play; origin: a path or name that a person can open."""

    source: str
    origin: str
    stage: str = ""
    text: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    whole: bool = True  # False: only the end of a long file, so that line numbers would mislead

    def lines(self) -> list[str]:
        """Its lines, cut; in a log those that are no evidence are empty, so that numbers stay."""
        lines = [line[:LINE_CHARS] for line in self.text.splitlines()]
        return list(telling(lines)) if self.source == "log" else lines


def telling(lines: list[str]) -> Iterator[str]:
    """Lines without the record of a stage that is done (its settings name everything), and without what an engine
    says after it was told to stop: it calls itself dead then. An engine that breaks says so before it shuts down.
    """
    stopping = False
    for line in lines:
        if _STARTING.search(line):
            stopping = False
        elif _STOPPING in line:
            stopping = True
        yield "" if stopping or _ANSWER.match(line) else line


def tail(path: Path, limit: int = TAIL_BYTES) -> tuple[str, bool]:
    """(the last `limit` bytes of a text file, whether that is all of it); ('', True) when it cannot be read.

    Carriage returns of progress bars become line ends.
    """
    try:
        with open(path, "rb") as stream:
            end = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, end - limit))
            text = stream.read(limit).decode("utf-8", "replace")
    except OSError:
        return "", True
    return text.replace("\r\n", "\n").replace("\r", "\n"), end <= limit


def log_document(path: Path, stage: str, source: str = "log") -> Document | None:
    """A log file's end, None when there is nothing in it."""
    text, whole = tail(path)
    return Document(source, str(path), stage, text, whole=whole) if text.strip() else None


def stage_documents(run_dir: Path, name: str) -> Iterator[Document]:
    """A stage's record as text and facts, and its job log."""
    folder = state.StateDir(run_dir / "state" / name)
    record = folder.latest()
    if record:
        yield record_document(record, folder.status_of(record), name, str(folder.path / "latest.json"))
    progress = folder.progress()
    if progress.get("updated") and folder.running() is not None:
        silent = time.time() - float(progress["updated"])
        facts = {"progress.silent_s": silent, **flatten(progress, "progress")}
        yield Document("state", str(folder.progress_path), name, "", facts)
    log = log_document(folder.log_path, name)
    if log is not None:
        yield log


def record_document(record: dict[str, Any], status: str, name: str, origin: str) -> Document:
    """A record as `key: value` lines and as facts; shares of what was dropped or failed are added."""
    record = {**record, "status": status}
    facts = flatten(record)
    account = record.get("account") or {}
    entered = account.get("in") or 0
    for kind in ("dropped", "failed"):
        reasons = account.get(kind) or {}
        for reason, count in reasons.items():
            facts[f"share.{kind}.{reason}"] = count / entered if entered else 0.0
        unwanted = sum(count for reason, count in reasons.items() if reason not in WANTED)
        facts[f"share.{kind}"] = unwanted / entered if entered else 0.0
    error = record.get("error") or {}
    facts["error.present"] = bool(error)
    shown = {key: value for key, value in facts.items() if not key.startswith(("identity.", "inputs."))}
    lines = [f"{key}: {value if isinstance(value, str) else json.dumps(value)}" for key, value in shown.items()]
    if error:  # first, as one line, so that the finding quotes it
        parts = [str(error.get(key)) for key in ("code", "where", "what", "why") if error.get(key)]
        lines.insert(0, "error: " + " | ".join(parts).replace("\n", " "))
    return Document("state", origin, name, "\n".join(lines), facts)


def log_documents(root: Path, run_dir: Path, since: float) -> Iterator[Document]:
    """Server and tool logs below the root's log folders and the run, written to since a moment, newest first."""
    found: list[tuple[float, Path]] = []
    for top in (root / "logs", root / "server", root / "supervisor", root / "state", run_dir):
        found.extend(_logs_below(top, LOG_DEPTH, since))
    for _, path in sorted(found, reverse=True)[:MAX_LOGS]:
        log = log_document(path, _stage_of(path, run_dir))
        if log is not None:
            yield log


def _logs_below(top: Path, depth: int, since: float) -> Iterator[tuple[float, Path]]:
    try:
        entries = list(os.scandir(top))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if depth and not entry.name.startswith("states"):
                yield from _logs_below(Path(entry.path), depth - 1, since)
        elif entry.name.endswith((".log", ".err", ".out")) and entry.is_file(follow_symlinks=False):
            changed = entry.stat().st_mtime
            if changed >= since:
                yield changed, Path(entry.path)


def _stage_of(path: Path, run_dir: Path) -> str:
    try:
        parts = path.relative_to(run_dir).parts
    except ValueError:
        return "server"
    name = parts[1] if parts[0] == "state" and len(parts) > 1 else parts[0]
    return name if name in registry.NAMES else ""


def host_document(snapshot: dict[str, Any]) -> Document:
    """The host's facts, flattened; limits of this process and the number of GPUs are added."""
    facts = flatten({key: value for key, value in snapshot.items() if key not in ("gpus", "load")})
    facts["gpus.count"] = len(snapshot.get("gpus") or [])
    facts["limit.nofile"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    hottest = max((gpu.get("celsius") or 0 for gpu in snapshot.get("gpus") or []), default=0)
    facts["gpus.hottest"] = hottest
    return Document("host", "this host", "", "", facts)

"""Delete what a plan says, under the stages' locks, in an order in which no crash leaves a lie behind."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from eyrie.core import atomic, registry, state
from eyrie.core.errors import EyrieError
from eyrie.core.lock import Held, Lock
from eyrie.core.pipeline import Pipeline
from eyrie.hidden_states.store import Store
from eyrie.ops.gc import find
from eyrie.ops.gc.find import Item

TRASH = ".trash"


def apply(pipeline: Pipeline, expected: str = "") -> dict[str, Any]:
    """Delete; returns {deleted: [...], bytes, skipped: [...], id}. Raises EyrieError when the plan is another now.

    expected: the id of the plan that was looked at; '' takes the plan of this moment.
    """
    try:
        with Lock(pipeline.root / "state" / "gc.lock", {"since": time.time()}):
            found = find.plan(pipeline)
            shown = found.as_dict()
            if expected and shown["id"] != expected:
                raise EyrieError(
                    f"what may be deleted has changed since it was planned ({expected}, now {shown['id']}).",
                    code="gc-plan-stale",
                    todo="Look at the plan again.",
                )
            shutil.rmtree(pipeline.root / TRASH, ignore_errors=True)  # what a crash of an earlier one left half deleted
            deleted: list[dict[str, Any]] = []
            skipped: list[dict[str, Any]] = []
            for item in found.items:
                why = _delete(pipeline.root, item)
                (skipped if why else deleted).append({**item.as_dict(), **({"why": why} if why else {})})
            return {
                "deleted": deleted,
                "bytes": sum(item["bytes"] for item in deleted),
                "skipped": skipped,
                "id": shown["id"],
            }
    except Held as held:
        raise EyrieError(
            f"another gc is at work (pid {held.owner.get('pid')}).", code="running-gc", todo="Wait for it."
        ) from None


def _delete(root: Path, item: Item) -> str:
    """'' when it went, else why it stayed."""
    path = Path(item.path)
    if not _inside(root, path):
        return "it lies outside the root"
    try:
        with ExitStack() as held:
            if item.run:
                for name in registry.NAMES:
                    folder = state.StateDir(root / "runs" / item.run / "state" / name)
                    if folder.path.is_dir():
                        held.enter_context(Lock(folder.lock_path, {"gc": True, "since": time.time()}))
            _remove(root, item, path)
    except Held as owner:
        return f"a stage works there now (pid {owner.owner.get('pid')})"
    except FileNotFoundError:
        return ""
    return ""


def _remove(root: Path, item: Item, path: Path) -> None:
    if item.stage and item.run and item.digest:
        _mark(root, item)  # first: a crash from here on leaves outputs that nobody trusts, not a record that lies
    if item.rule == "unreferenced":
        with Store(path) as store:
            store.drop(item.keys)
        return
    if item.keys:
        with Store(path.parent / "store") as store:
            store.drop(item.keys)
    if path.is_symlink() or path.is_file():
        path.unlink()
        return
    doomed = root / TRASH / uuid.uuid4().hex
    doomed.parent.mkdir(parents=True, exist_ok=True)
    os.rename(path, doomed)
    atomic.fsync_dir(path.parent)
    shutil.rmtree(doomed)


def _mark(root: Path, item: Item) -> None:
    """Say in the record that its outputs were given up ('released', made again when needed) or deleted."""
    folder = state.StateDir(root / "runs" / item.run / "state" / item.stage)
    record = atomic.read_json(folder.path / f"{item.digest}.json", {})
    if not isinstance(record, dict) or not record:
        return
    key = "released" if item.release else "deleted"
    record[key] = {"by": "gc", "reason": item.because, "when": time.time(), "bytes": item.bytes}
    atomic.write_json(folder.path / f"{item.digest}.json", record)
    if folder.latest().get("fingerprint") == record.get("fingerprint"):
        atomic.write_json(folder.path / "latest.json", record)


def _inside(root: Path, path: Path) -> bool:
    """A path of the root, by its own folders: a link in the middle could lead anywhere."""
    try:
        return path.parent.resolve().is_relative_to(root.resolve()) and path.resolve() != root.resolve()
    except OSError:
        return False

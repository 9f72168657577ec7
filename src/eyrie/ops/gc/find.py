"""What may be deleted: one function per rule, each item with why it may go. Read-only."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eyrie.core import atomic, registry, state
from eyrie.core.fingerprint import fingerprint, short
from eyrie.core.pipeline import Pipeline
from eyrie.hidden_states import manifest
from eyrie.ops import provenance
from eyrie.ops.gc import needed as needs
from eyrie.ops.gc import settings as retention
from eyrie.ops.gc.needed import CANARY, Needed
from eyrie.ops.gc.settings import Retention

DAY_S = 86400.0
DIGEST = re.compile(r"[0-9a-f]{12}")
PARTIAL = re.compile(r"\..+\.tmp|.*\.(part|partial|incomplete|tmp)|\.[0-9a-f]{12}\..+|\.trash")
ROTATED = re.compile(r".+\.log\.\d+")


@dataclass(frozen=True)
class Item:
    """One thing that may go.

    because: from what, or why, it can be made again. keys: content keys of a states store (then `path` is the store).
    seconds: what making it took. release: the record that is marked as given up.
    """

    rule: str
    path: str
    bytes: int
    because: str
    run: str = ""
    stage: str = ""
    digest: str = ""
    seconds: float = 0.0
    keys: tuple[str, ...] = ()
    release: bool = False

    def as_dict(self) -> dict[str, Any]:
        shown = asdict(self)
        shown["keys"] = len(self.keys)
        return shown


@dataclass
class Plan:
    """items may go; kept says what stays and why, of what a rule looked at."""

    items: list[Item] = field(default_factory=list)
    kept: list[dict[str, str]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        items = [item.as_dict() for item in self.items]
        return {
            "items": items,
            "kept": self.kept,
            "bytes": sum(item.bytes for item in self.items),
            "id": fingerprint([[item.path, item.rule, sorted(item.keys)] for item in self.items])[:12],
        }


def plan(pipeline: Pipeline, now: float | None = None) -> Plan:
    """All rules, in the order in which they are applied."""
    wanted, now = retention.load(pipeline.execution), time.time() if now is None else now
    canaries = old_canaries(pipeline, wanted, now)
    needed = needs.find(pipeline, frozenset(canaries))
    found = Plan()
    for run in canaries:
        _canary(pipeline.root, run, needed, found)
    for run in provenance.runs(pipeline.root):
        if run in canaries:
            continue
        if run in needed.running:
            found.kept.append({"path": str(pipeline.root / "runs" / run), "why": f"a stage of run {run} works now"})
            continue
        for name in registry.NAMES:
            if name != "target":
                _superseded(pipeline.root, run, name, wanted, needed, found)
        _released_states(pipeline.root, run, wanted, needed, found)
        if wanted.unreferenced_states:
            _unreferenced_states(pipeline.root, run, found)
    if not needed.running:
        _targets(pipeline.root, wanted, needed, found)
        found.items += _leftovers(pipeline.root, wanted, now)
    found.items += _logs(pipeline.root, wanted, now)
    return found


def size_of(path: Path) -> int:
    """Bytes that deleting a path frees: a file that has another name (a kept draft's) frees nothing."""
    info = path.lstat()
    if not path.is_dir() or path.is_symlink():
        return info.st_size if info.st_nlink == 1 else 0
    total = 0
    with os.scandir(path) as entries:
        for entry in entries:
            total += size_of(Path(entry.path))
    return total


def old_canaries(pipeline: Pipeline, wanted: Retention, now: float) -> list[str]:
    """Runs of the canary whose state has not changed for canary_days."""
    found = []
    for run in provenance.runs(pipeline.root):
        if run.endswith(CANARY) and run != pipeline.run:
            folders = [pipeline.root / "runs" / run / "state" / name for name in registry.NAMES]
            newest = max((state.StateDir(folder).latest().get("updated") or 0 for folder in folders), default=0)
            if now - float(newest) > wanted.canary_days * DAY_S:
                found.append(run)
    return found


def _canary(root: Path, run: str, needed: Needed, found: Plan) -> None:
    path = root / "runs" / run
    if run in needed.running:
        found.kept.append({"path": str(path), "why": f"a stage of run {run} works now"})
    elif protected := [why for (stage, digest), why in needed.why.items() if _is_of(root, run, stage, digest)]:
        found.kept.append({"path": str(path), "why": protected[0]})
    else:
        because = "the canary makes it again in minutes (playbooks/canary.yml)"
        found.items.append(Item("canary", str(path), size_of(path), because, run))


def _is_of(root: Path, run: str, stage: str, digest: str) -> bool:
    return stage != "target" and (root / "runs" / run / stage / digest).is_dir()


def _superseded(root: Path, run: str, name: str, wanted: Retention, needed: Needed, found: Plan) -> None:
    """Outputs of earlier settings: made again from their inputs, whose settings the record keeps."""
    base = root / "runs" / run / name
    folders = [path for path in base.glob("*") if path.is_dir() and DIGEST.fullmatch(path.name)]
    spare = []
    for path in folders:
        record = atomic.read_json(root / "runs" / run / "state" / name / f"{path.name}.json", {}) or {}
        if not record:
            found.kept.append({"path": str(path), "why": "no record says what it is"})
        elif why := needed.reason(name, path.name):
            found.kept.append({"path": str(path), "why": why})
        else:
            spare.append((float(record.get("updated") or 0), path, record))
    spare.sort(key=lambda item: item[0], reverse=True)
    for _, path, _ in spare[: wanted.keep_superseded]:
        found.kept.append({"path": str(path), "why": f"the newest {wanted.keep_superseded} of earlier settings stay"})
    for _, path, record in spare[wanted.keep_superseded :]:
        behind = ", ".join(f"{stage} {short(digest)}" for stage, digest in (record.get("inputs") or {}).items())
        because = f"outputs of earlier settings: made again from {behind or 'its sources'}"
        seconds = float(record.get("seconds") or 0)
        found.items.append(Item("superseded", str(path), size_of(path), because, run, name, path.name, seconds))


def _released_states(root: Path, run: str, wanted: Retention, needed: Needed, found: Plan) -> None:
    """The states of a finished draft: large, and captured again from tokens and target when something needs them."""
    if wanted.states == "keep":
        return
    base = root / "runs" / run / "hidden_states"
    for listed in sorted(base.glob(f"*/{manifest.NAME}")):
        digest = listed.parent.name
        records = _readers(root, run, digest)
        record = atomic.read_json(root / "runs" / run / "state" / "hidden_states" / f"{digest}.json", {}) or {}
        why = ""
        if not records or any(item.get("status") != state.DONE for item in records):
            why = "no finished draft was trained from these states yet"
        elif wanted.states == "after_promotion" and ("hidden_states", digest) not in needed.promoted:
            why = "the draft that was trained from these states is not promoted"
        elif record.get("status") != state.DONE:
            why = "the capture is not done"
        if why:
            found.kept.append({"path": str(listed.parent), "why": why})
            continue
        keys = _keys(listed) - _keys_of_others(base, listed)
        stored = _store_sizes(base / "store")
        size = sum(stored.get(key, 0) for key in keys) + size_of(listed.parent)
        because = f"the draft is trained: captured again from tokens {_input(record, 'tokens')} when it is needed"
        seconds = float(record.get("seconds") or 0)
        found.items.append(
            Item(
                "states",
                str(listed.parent),
                size,
                because,
                run,
                "hidden_states",
                digest,
                seconds,
                tuple(sorted(keys)),
                True,
            )
        )


def _input(record: dict[str, Any], name: str) -> str:
    return short(str((record.get("inputs") or {}).get(name, "")))


def _readers(root: Path, run: str, digest: str) -> list[dict[str, Any]]:
    """Records of the drafts that were trained from a hidden_states fingerprint."""
    found = []
    for path in (root / "runs" / run / "state" / "draft").glob("[0-9a-f]*.json"):
        record = atomic.read_json(path, {}) or {}
        if _input(record, "hidden_states") == digest:
            found.append(record)
    return found


def _keys(listed: Path) -> set[str]:
    return {str(line["key"]) for line in manifest.read(listed)}


def _keys_of_others(base: Path, own: Path) -> set[str]:
    found: set[str] = set()
    for other in base.glob(f"*/{manifest.NAME}"):
        if other != own:
            found |= _keys(other)
    return found


def _store_sizes(path: Path) -> dict[str, int]:
    """{key: bytes} of a content store, without creating or locking anything."""
    listed = path / "manifest.sqlite"
    if not listed.exists():
        return {}
    with closing(sqlite3.connect(f"file:{listed}?mode=ro", uri=True, timeout=5.0)) as db:
        return {str(key): int(size) for key, size in db.execute("SELECT key, bytes FROM samples")}


def _unreferenced_states(root: Path, run: str, found: Plan) -> None:
    """States in the content store that no manifest names: data that was prepared anew left them behind."""
    base = root / "runs" / run / "hidden_states"
    stored = _store_sizes(base / "store")
    if not stored:
        return
    latest = state.StateDir(root / "runs" / run / "state" / "hidden_states").latest()
    if latest.get("status") != state.DONE:  # a capture that was cut off has states and no manifest yet
        found.kept.append({"path": str(base / "store"), "why": "the newest capture is not done: it resumes from these"})
        return
    wanted = _keys_of_others(base, Path())
    spare = {key: size for key, size in stored.items() if key not in wanted}
    if spare:
        because = "no prepared data refers to these states: captured again if it ever does"
        keys = tuple(sorted(spare))
        place = str(base / "store")
        found.items.append(Item("unreferenced", place, sum(spare.values()), because, run, "hidden_states", keys=keys))


def _targets(root: Path, wanted: Retention, needed: Needed, found: Plan) -> None:
    """Target models that no run and no kept draft uses."""
    for path in sorted((root / "models").glob("*-*")):
        digest = path.name.rpartition("-")[2]
        if not wanted.unused_targets or not path.is_dir() or not DIGEST.fullmatch(digest):
            continue
        if why := needed.reason("target", digest):
            found.kept.append({"path": str(path), "why": why})
            continue
        because = "no run and no kept draft uses this model: fetched or converted again from its source"
        found.items.append(Item("target", str(path), size_of(path), because, "", "target", digest))


def _leftovers(root: Path, wanted: Retention, now: float) -> Iterator[Item]:
    """Half-made files that a crash left, quarantined states, and temporary files of libraries."""
    tops = [root / "models", root / "drafts", root / "runs", root / "cache" / "tmp"]
    for top in tops:
        for path in _walk(top, 4):
            whole = top.name == "tmp" or path.parent.name == "quarantine"
            if (whole or PARTIAL.fullmatch(path.name)) and now - path.lstat().st_mtime > wanted.tmp_days * DAY_S:
                kind = "quarantined states: captured anew already" if path.parent.name == "quarantine" else ""
                yield Item("leftover", str(path), size_of(path), kind or "half-made or temporary: nothing trusts it")


def _walk(top: Path, depth: int) -> Iterator[Path]:
    """Paths below a folder, not into what a rule takes whole, nor along links, nor into sharded stores."""
    try:
        entries = sorted(os.scandir(top), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path = Path(entry.path)
        yield path
        deeper = entry.is_dir(follow_symlinks=False) and depth and not PARTIAL.fullmatch(entry.name)
        if deeper and not (len(entry.name) == 2 and top.name == "store") and top.name != "tmp":
            yield from _walk(path, depth - 1)


def _logs(root: Path, wanted: Retention, now: float) -> Iterator[Item]:
    """Logs of earlier starts."""
    tops = [root / "server" / "log", root / "logs", root / "supervisor"]
    tops += [path for path in (root / "runs").glob("*/state/*") if path.is_dir()]
    for top in tops:
        for path in sorted(top.glob("*.log.*")) + sorted(top.glob("log.*")):
            if path.is_file() and now - path.stat().st_mtime > wanted.log_days * DAY_S:
                yield Item("log", str(path), size_of(path), "the log of an earlier start")

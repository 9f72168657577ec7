"""What the stage would do, source by source, before it does it. Read-only, no network, no heavy imports."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.core.estimate import estimate
from eyrie.dataset import files, without
from eyrie.dataset.gates import hub_cache
from eyrie.dataset.hub import is_commit
from eyrie.dataset.settings import Source

if TYPE_CHECKING:
    from eyrie.core.pipeline import Context

FETCH_BYTES_S = 50e6  # a modest line
READ_BYTES_S = 40e6  # per worker, measured on the mixed sources of bench/dataset.py
KEPT_SHARE = 0.8  # of a text file's bytes that its parts take
PACKED = 3.0  # text in a Parquet or gzip file is about this much larger than the file


def forecast(ctx: Context) -> dict[str, Any]:
    """{bytes, seconds, basis, sources: [{name, act, fetch, read, revision, was}]}; bytes to be written in all.

    act: keep (its parts are there), process, fetch and process, or try again. was: the locked revision if it differs.
    """
    settings = ctx.settings
    lock = read_lock(ctx)
    named = dict.fromkeys([*settings.sources, *settings.exclude_sources])
    sources = [_source(ctx, name, settings.source(name), lock.get(name) or {}) for name in named]
    tried = without.of(ctx, ctx.identity).open
    for item in sources:
        if item["name"] in tried:
            item["act"] = "try again"
    mix = estimate(ctx.name, ctx.pipeline.raw)
    fetch = sum(item["fetch"] for item in sources)
    read = sum(item["read"] for item in sources)
    workers = int(settings.workers or ctx.pipeline.execution.get("workers") or len(os.sched_getaffinity(0)))
    return {
        "bytes": int(fetch + read * KEPT_SHARE + mix["bytes"]),
        "seconds": round(fetch / FETCH_BYTES_S + read / READ_BYTES_S / workers + mix["seconds"], 1),
        "basis": "sizes of the sources, 50 MB/s to fetch, 40 MB/s a worker to read",
        "sources": sources,
    }


def read_lock(ctx: Context) -> dict[str, Any]:
    """The run's lock; sources that it does not know are looked for beside outputs, which travel to other hosts."""
    lock: dict[str, Any] = {}
    for path in [*sorted(ctx.base.glob("????????????/lock.json"), key=os.path.getmtime), ctx.base / "lock.json"]:
        lock |= atomic.read_json(path, {}) or {}
    return lock


def _source(ctx: Context, name: str, source: Source, locked: dict[str, Any]) -> dict[str, Any]:
    revision = str(locked.get("revision", ""))
    pinned = source.revision if is_commit(source.revision) else ""
    same = not pinned or pinned == revision
    digests = _digests(ctx, name, source, locked if same else {})
    kept = digests is not None and _has_parts(ctx, name, digests)
    size = _size(name, source, locked if same else {})
    there = kept or source.kind != "hub" or (same and _cached(ctx, source, revision, locked))
    packed = source.kind == "hub" and any(
        pattern.endswith(("*", ".parquet", ".gz", ".zst")) for pattern in source.files
    )
    return {
        "name": name,
        "act": "keep" if kept else "process" if there else "fetch and process",
        "fetch": 0 if there else size,
        "read": 0 if kept else int(size * (PACKED if packed else 1)),
        "revision": pinned or revision or source.revision,
        "was": revision if revision and not same else "",
    }


def _digests(ctx: Context, name: str, source: Source, locked: dict[str, Any]) -> dict[str, str] | None:
    """Digests by file as far as they are known without reading or asking."""
    known = ctx.identity["files"].get(name)
    if isinstance(known, dict):
        return known
    if source.kind == "package":
        return None if ctx.identity["tools"].get(source.package) == "absent" else locked.get("files")
    return locked.get("files")


def _has_parts(ctx: Context, name: str, digests: dict[str, str]) -> bool:
    """Whether some finished unit of this source was made of the same files (settings are told by the differences)."""
    for path in (ctx.base / "sources").glob(f"{name}-????????????/unit.json"):
        record = atomic.read_json(path, {}) or {}
        if record.get("files") == digests:
            return True
    return False


def _cached(ctx: Context, source: Source, revision: str, locked: dict[str, Any]) -> bool:
    """Whether the hub cache holds the locked files of a revision."""
    folder = f"{hub_cache(ctx)}/datasets--{source.repository.replace('/', '--')}/snapshots/{revision}"
    names = locked.get("files") or {}
    return bool(revision and names) and all(os.path.exists(f"{folder}/{name}") for name in names)


def _size(name: str, source: Source, locked: dict[str, Any]) -> int:
    """Bytes of a source's files."""
    try:
        if source.kind == "local":
            return sum(path.stat().st_size for _, path in files.local(source, name))
        if source.kind == "package":
            return sum(path.stat().st_size for _, path in files.package(source, name))
    except (EyrieError, OSError):
        return 0
    return int(locked.get("bytes") or source.bytes)

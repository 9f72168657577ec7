"""What a run holds on this host, stage by stage: the source's side of a port plan. Read-only."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from eyrie.core import planner, registry
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import HashCache, fingerprint, short
from eyrie.core.pipeline import Context, Pipeline
from eyrie.port import serving

SCHEMA = 1
OUT, BASE = "out", "base"
PARTIAL = ".eyrie-partial"  # where rsync keeps the torn end of a file that the link cut
#: of this host alone: locks, and what its own rates and jobs are
SKIPPED = frozenset({PARTIAL, "lock", "start.lock", "job.json", "rates.json"})

#: their bytes decide whether two hosts hold the same thing; large or hash-proved stages are compared otherwise
DIGESTED = ("dataset", "responses", "tokens")


class Place(Protocol):
    """Where a stage's files lie: a Context, or a saved run's folder."""

    @property
    def name(self) -> str: ...

    @property
    def out(self) -> Path: ...

    @property
    def base(self) -> Path: ...


@dataclass(frozen=True)
class Item:
    """One carried file: `tree` is 'out' (the fingerprint's folder) or 'base' (stores beside it), `path` relative.

    link: the target of a symbolic link ('' for a file). node: (device, inode), to find hard links.
    """

    tree: str
    path: str
    bytes: int
    mode: int
    link: str
    node: tuple[int, int]


def port_dir(root: Path) -> Path:
    """Where ports keep their lists, keys and incoming files."""
    return root / "port"


def hash_cache(root: Path) -> HashCache:
    return HashCache(port_dir(root) / "hashes.json")


def tree_dir(place: Place, tree: str) -> Path:
    """The folder that a tree's paths are relative to, on this host."""
    return place.out if tree == OUT else place.base


def items(place: Place, carried: Sequence[Path]) -> list[Item]:
    """All files below the carried paths, in a stable order."""
    found: dict[tuple[str, str], Item] = {}
    for path in carried:
        tree, top = _placed(place, path)
        for item in _walk(place, tree, top, path):
            found[(item.tree, item.path)] = item
    return [found[key] for key in sorted(found)]


def items_of(ctx: Context) -> list[Item]:
    """All files that another host needs of a stage."""
    return items(ctx, ctx.stage.carry(ctx))


def _placed(place: Place, path: Path) -> tuple[str, Path]:
    for tree in (OUT, BASE) if place.out != place.base else (BASE,):
        if path.is_relative_to(tree_dir(place, tree)):
            return tree, tree_dir(place, tree)
    raise EyrieError(
        f"{place.name} wants to carry a path outside its own folders.", where=str(path), code="carry-outside"
    )


def _relative(place: Place, path: Path) -> tuple[str, str]:
    tree, top = _placed(place, path)
    return tree, path.relative_to(top).as_posix()


def _walk(place: Place, tree: str, top: Path, path: Path) -> Iterator[Item]:
    if path.is_symlink() or path.is_file():
        yield _item(place, tree, top, path)
        return
    if not path.is_dir():
        return
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name in SKIPPED or (entry.name.startswith(".") and entry.name.endswith(".tmp")):
                continue
            yield from _walk(place, tree, top, Path(entry.path))


def _item(place: Place, tree: str, top: Path, path: Path) -> Item:
    info = path.lstat()
    link = ""
    if path.is_symlink():
        link = os.readlink(path)
        goal = Path(os.path.normpath(path.parent / link))
        inside = goal.is_relative_to(place.out) or goal.is_relative_to(place.base)
        if not inside and place.name == "target" and path.is_file():
            info, link = path.stat(), ""  # a model that lies elsewhere on this host travels as files
        elif not inside:
            raise EyrieError(
                f"a link of {place.name} leads outside the stage's folders: it would dangle on another host.",
                where=f"{path} -> {link}",
                code="carry-link",
                todo="Put a file in its place, or remove it.",
            )
        if link and os.path.isabs(link):
            link = os.path.relpath(goal, path.parent)
    size = 0 if link else info.st_size
    return Item(tree, str(path.relative_to(top)), size, info.st_mode & 0o777, link, (info.st_dev, info.st_ino))


def survey(pipeline: Pipeline) -> dict[str, Any]:
    """{schema, host, run, free_bytes, stages: {name: {fingerprint, identity, inputs, status, record, ...}}}."""
    hashes = hash_cache(pipeline.root)
    stages = {name: stage_survey(pipeline.context(name), hashes) for name in registry.NAMES}
    hashes.save()
    return {
        "schema": SCHEMA,
        "host": pipeline.host,
        "run": pipeline.run,
        "free_bytes": free_bytes(pipeline.root),
        "stages": stages,
    }


def stage_survey(ctx: Context, hashes: HashCache) -> dict[str, Any]:
    """What the source has of one stage under exactly its present settings."""
    record = ctx.record()
    status = ctx.state.status_of(record)
    done = planner.is_up_to_date(ctx)
    found = items_of(ctx) if status != "absent" else []
    unique = {item.node: item.bytes for item in found}
    latest = ctx.state.latest()
    other = latest.get("fingerprint") if latest.get("fingerprint") != ctx.fingerprint else None
    return {
        "fingerprint": ctx.fingerprint,
        "identity": ctx.identity,
        "inputs": ctx.inputs,
        "serving": serving.of(ctx.pipeline, ctx.name),
        "status": status if status != "done" or done else "damaged",
        "running": ctx.state.running() is not None,
        "released": bool(record.get("released")),
        "record": record or None,
        "folder": ctx.out.name,
        "carry": [list(_relative(ctx, path)) for path in ctx.stage.carry(ctx)] if found else [],
        "files": len(found),
        "bytes": sum(unique.values()),
        "digest": digest(ctx, found, hashes) if done and ctx.name in DIGESTED else None,
        "forecast": ctx.stage.forecast(ctx),
        "other_settings": short(other) if other else None,
    }


def digest(ctx: Context, found: list[Item], hashes: HashCache) -> str:
    """One hash over the names and bytes of the declared outputs: equal on two hosts only for equal content."""
    names = ctx.record().get("outputs", [])
    parts = [
        (item.path, hashes.sha256(ctx.out / item.path))
        for item in found
        if item.tree == OUT and not item.link and _declared(item.path, names)
    ]
    return fingerprint(parts)


def _declared(path: str, names: list[str]) -> bool:
    return any(path == name or path.startswith(name.rstrip("/") + "/") or name == "." for name in names)


def free_bytes(path: Path) -> int:
    """Free bytes of the file system that holds (or will hold) a path."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free

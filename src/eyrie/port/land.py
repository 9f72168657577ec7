"""The destination's part: prove every file, put it in place, and only then write the record."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from eyrie.core import atomic, planner, registry, state
from eyrie.core.atomic import fsync_dir
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import HashCache, file_sha256, short
from eyrie.core.lock import Held, Lock
from eyrie.core.pipeline import Context, Pipeline
from eyrie.port import manifest as manifests
from eyrie.port.decision import COPY, LEAVE
from eyrie.port.manifest import Entry, Manifest
from eyrie.port.pack import name_of
from eyrie.port.survey import BASE, OUT, hash_cache, port_dir, tree_dir

SHOWN = 5


def incoming(pipeline: Pipeline, host: str, run: str) -> Path:
    """Where a source's files arrive: on the file system that they stay on."""
    return port_dir(pipeline.root) / "incoming" / name_of(host, run)


def prepare(pipeline: Pipeline, host: str, run: str, trees: list[dict[str, Any]]) -> dict[str, Any]:
    """Make the incoming folders; {folder, rrsync, host_keys}.

    rrsync: the restricted shell's path, '' where rsync brings none. host_keys: this host's public SSH keys.
    """
    folder = incoming(pipeline, host, run)
    for tree in trees:
        (folder / tree["stage"] / tree["tree"]).mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    return {"folder": str(folder), "rrsync": shutil.which("rrsync") or "", "host_keys": _host_keys()}


def _host_keys(folder: Path = Path("/etc/ssh")) -> list[str]:
    """Type and key of each host key ('ssh-ed25519 AAAA...'), for the other host's known_hosts."""
    lines = [path.read_text("utf-8").split() for path in sorted(folder.glob("ssh_host_*_key.pub"))]
    return [" ".join(words[:2]) for words in lines if len(words) >= 2]


def land(pipeline: Pipeline, plan: dict[str, Any], folder: Path, sha256: str) -> dict[str, Any]:
    """Take a pack in: {landed: [...], left: [...], files, bytes}. Raises EyrieError and keeps all that is sound.

    plan: the port's plan, whose decisions are carried out. sha256: the manifest's own, told by the source.
    A second call after a crash finds what was put in place and goes on; a third changes nothing.
    """
    listed = manifests.read(folder / manifests.NAME, sha256)
    decisions = [item for item in plan["decisions"] if item["action"] in (COPY, LEAVE)]
    hashes = hash_cache(pipeline.root)
    landed, left = [], []
    for item in decisions:
        ctx = pipeline.context(item["stage"])
        if item["stage"] not in listed.header["stages"]:
            raise EyrieError(f"the pack does not hold {ctx.name}.", where=str(folder), code="pack-incomplete")
        if item["destination"] != ctx.fingerprint:
            raise EyrieError(
                f"{ctx.name} is asked for with other settings than were planned.",
                code="plan-stale",
                todo="Plan the port again.",
            )
        with _locked(ctx):
            if item["action"] == LEAVE:
                _write_released(ctx, item, listed)
                left.append(ctx.name)
            elif not handed_over(ctx, listed.header["stages"][ctx.name]):
                _land_stage(ctx, item, listed, folder, hashes, plan)
                landed.append(ctx.name)
    _clear(folder)
    return {"landed": landed, "left": left, "bytes": listed.bytes, "files": len(listed.entries)}


def handed_over(ctx: Context, source: dict[str, Any]) -> bool:
    """True when just this state of the source's stage was put in place before, and is still there."""
    mark = ctx.record().get("imported_from") or {}
    if not mark or mark.get("fingerprint") != source.get("fingerprint"):
        return False
    if mark.get("updated") != (source.get("record") or {}).get("updated"):
        return False
    missing: list[str] = planner.missing_outputs(ctx, ctx.record())
    return not missing


def faults(pipeline: Pipeline, folder: Path, sha256: str) -> list[manifests.Bad]:
    """Files of a pack that did not arrive as they left; the bad ones are removed, so that the next try sends them."""
    listed = manifests.read(folder / manifests.NAME, sha256)
    there = {name for name, source in listed.header["stages"].items() if handed_over(pipeline.context(name), source)}
    waiting = Manifest(listed.header, [entry for entry in listed.entries if entry.stage not in there])
    found = list(manifests.check(waiting, _locator(pipeline, listed, folder), hash_cache(pipeline.root)))
    for bad in found:
        path = bad.entry.at(folder)
        if path.is_symlink() or path.is_file():
            path.unlink()
    return found


def _locator(pipeline: Pipeline, listed: Manifest, folder: Path) -> Any:
    """Where an entry is now: still in the pack, or in place since an earlier call."""

    def locate(entry: Entry) -> Path:
        arrived = entry.at(folder)
        if arrived.is_symlink() or arrived.exists():
            return arrived
        ctx = pipeline.context(entry.stage)
        if entry.tree == OUT and not _ours(ctx, listed):
            return arrived  # what is in place is not of this pack
        return tree_dir(ctx, entry.tree) / entry.path

    return locate


def _mark_path(ctx: Context) -> Path:
    return ctx.state.path / f"{short(ctx.fingerprint)}.landing"


def landing(ctx: Context) -> bool:
    """True while files are being put in place (or a crash left them half in place)."""
    return _mark_path(ctx).exists()


def _mark(ctx: Context) -> tuple[str, str]:
    """(the source's fingerprint, 'placing' or 'placed') of a landing under way; ('', '') when there is none."""
    try:
        source, _, phase = _mark_path(ctx).read_text("utf-8").strip().partition(" ")
    except FileNotFoundError:
        return "", ""
    return source, phase


def _ours(ctx: Context, listed: Manifest) -> bool:
    """True when what is in place came with this pack, in this landing or an earlier one."""
    source = str(listed.header["stages"][ctx.name]["fingerprint"])
    return source in (_mark(ctx)[0], (ctx.record().get("imported_from") or {}).get("fingerprint"))


def _land_stage(
    ctx: Context, item: dict[str, Any], listed: Manifest, folder: Path, hashes: HashCache, plan: dict[str, Any]
) -> None:
    part = Manifest(listed.header, listed.of(ctx.name))
    source = listed.header["stages"][ctx.name]["fingerprint"]
    if _mark(ctx) != (source, "placed"):  # else proved and placed before a crash; `adopt` may have changed files since
        _prove(ctx, part, listed, folder, hashes)
        _check_store(ctx, part, folder, hashes)
        _put_aside(ctx, listed)
        atomic.write_text(_mark_path(ctx), f"{source} placing")
        for entry in part.entries:
            _place(ctx, entry, folder)
        for entry in part.entries:
            if entry.same:
                _relink(ctx, entry)
        atomic.write_text(_mark_path(ctx), f"{source} placed")
    ctx.stage.adopt(ctx)
    _write_record(ctx, item, listed, part, plan)
    _mark_path(ctx).unlink()


def _prove(ctx: Context, part: Manifest, listed: Manifest, folder: Path, hashes: HashCache) -> None:
    bad = list(manifests.check(part, _locator(ctx.pipeline, listed, folder), hashes))
    if bad:
        raise EyrieError(
            f"{len(bad)} of {len(part.entries)} files of {ctx.name} did not arrive as they left.",
            where=str(folder),
            code="pack-bad",
            why="; ".join(map(str, bad[:SHOWN])),
            todo="Run the port again: only these are sent.",
        )


def _check_store(ctx: Context, part: Manifest, folder: Path, hashes: HashCache) -> None:
    """A store is keyed by content: the same name with other bytes is a conflict, found before anything is moved."""
    for entry in part.entries:
        goal = tree_dir(ctx, entry.tree) / entry.path
        arrived = entry.at(folder).is_symlink() or entry.at(folder).exists()
        if entry.tree != BASE or not entry.sha256 or not arrived or _mergeable(ctx, entry):
            continue
        if goal.exists() and hashes.sha256(goal) != entry.sha256:
            raise EyrieError(
                f"the destination's store of {ctx.name} holds another file of that name.",
                where=str(goal),
                code="store-conflict",
                todo="Nothing was changed. Port into another run name (eyrie_run), or move that store away.",
            )


def _mergeable(ctx: Context, entry: Entry) -> bool:
    return entry.tree == BASE and any(fnmatch(entry.path, pattern) for pattern in ctx.stage.merged)


def _put_aside(ctx: Context, listed: Manifest) -> None:
    """The destination's own unfinished work is renamed, never overwritten (the plan asked for consent)."""
    if _ours(ctx, listed) or not ctx.out.exists():
        return
    aside = ctx.out.with_name(f"{ctx.out.name}.aside-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}")
    os.rename(ctx.out, aside)


def _place(ctx: Context, entry: Entry, folder: Path) -> None:
    """Rename one file into place; in a content-keyed store what is there already stays."""
    arrived, goal = entry.at(folder), tree_dir(ctx, entry.tree) / entry.path
    if entry.same or not (arrived.is_symlink() or arrived.exists()):
        return
    goal.parent.mkdir(parents=True, exist_ok=True)
    if entry.tree == BASE and (goal.is_symlink() or goal.exists()):
        if _mergeable(ctx, entry) and file_sha256(goal) != entry.sha256:
            ctx.stage.merge(ctx, arrived, goal)
        return
    os.replace(arrived, goal)
    if entry.sha256:
        os.chmod(goal, entry.mode & 0o755 | 0o600)


def _relink(ctx: Context, entry: Entry) -> None:
    tree, _, path = entry.same.partition("/")
    goal = tree_dir(ctx, entry.tree) / entry.path
    goal.parent.mkdir(parents=True, exist_ok=True)
    if not goal.exists():
        os.link(tree_dir(ctx, tree) / path, goal)


def _write_record(ctx: Context, item: dict[str, Any], listed: Manifest, part: Manifest, plan: dict[str, Any]) -> None:
    """The record under the destination's own fingerprint, with where it came from and what differed."""
    for path in {(tree_dir(ctx, entry.tree) / entry.path).parent for entry in part.entries}:
        fsync_dir(path)
    source = listed.header["stages"][ctx.name]
    record = dict(source["record"] or {})
    done = not item["unfinished"]
    outputs = record.get("outputs", []) if done else []
    record.update(
        stage=ctx.name,
        fingerprint=ctx.fingerprint,
        identity=ctx.identity,
        inputs=ctx.inputs,
        status=state.DONE if done else state.INTERRUPTED,
        pid=0,
        imported_from=_provenance(item, listed, part),
    )
    if done:
        record["output_sizes"] = {name: planner.output_size(ctx.out / name) for name in outputs}
        absent = [name for name, size in record["output_sizes"].items() if size < 0]
        if absent:
            raise EyrieError(f"{ctx.name} arrived without {', '.join(absent)}.", code="pack-incomplete")
    ctx.state.write(record)


def _provenance(item: dict[str, Any], listed: Manifest, part: Manifest | None) -> dict[str, Any]:
    source = listed.header["stages"][item["stage"]]
    return {
        "host": listed.header["host"],
        "run": listed.header["run"],
        "fingerprint": source["fingerprint"],
        "inputs": source["inputs"],
        "differences": item["differences"],
        "files": len(part.entries) if part else 0,
        "bytes": part.bytes if part else 0,
        "updated": (source["record"] or {}).get("updated"),
        "when": time.time(),
        "earlier": (source["record"] or {}).get("imported_from"),
    }


def _write_released(ctx: Context, item: dict[str, Any], listed: Manifest) -> None:
    """What is not carried because nothing needs it: up to date until something does (planner.needed_by)."""
    if planner.is_up_to_date(ctx):
        return
    record = dict(listed.header["stages"][ctx.name]["record"] or {})
    record.update(
        stage=ctx.name,
        fingerprint=ctx.fingerprint,
        identity=ctx.identity,
        inputs=ctx.inputs,
        status=state.DONE,
        pid=0,
        outputs=[],
        output_sizes={},
        bytes=0,
        imported_from=_provenance(item, listed, None),
        released={"by": "port", "reason": item["reason"], "when": time.time()},
    )
    ctx.state.write(record)


@contextmanager
def _locked(ctx: Context) -> Iterator[None]:
    """Hold the stage's own lock, so that nobody runs it meanwhile."""
    lock = Lock(ctx.state.lock_path, {"fingerprint": ctx.fingerprint, "since": time.time(), "unit": "port"})
    try:
        lock.acquire()
    except Held as held:
        raise EyrieError(
            f"{ctx.name} runs on the destination (pid {held.owner.get('pid')}).",
            code="running-other",
            todo="Stop it first: `eyrie stop`.",
        ) from None
    try:
        yield
    finally:
        lock.release()


def _clear(folder: Path) -> None:
    """Empty folders of a pack that has landed; the manifest stays as the receipt."""
    for name in registry.NAMES:
        shutil.rmtree(folder / name, ignore_errors=True)
    for probe in folder.glob("probe-*"):
        probe.unlink()

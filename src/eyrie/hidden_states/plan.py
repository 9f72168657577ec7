"""What a run of the stage has to do: the rows, the shape of their states, and what is missing from the store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError, GateError, SpecError
from eyrie.core.fingerprint import tool_versions
from eyrie.core.pipeline import Context
from eyrie.core.stage import Work
from eyrie.hidden_states import files, manifest
from eyrie.hidden_states.client import base_url, remove
from eyrie.hidden_states.corpus import Corpus, Row
from eyrie.hidden_states.keys import Shape, endpoint_of, weights_fingerprint
from eyrie.hidden_states.store import Entry, Store
from eyrie.hidden_states.weights import Checkpoint, dimensions

log = logging.getLogger(__name__)


@dataclass
class Todo:
    """rows: all rows of the data. missing: one row per key whose states are not in the store and that is this host's.

    others: keys that are missing too, but are another host's share of the capture.
    """

    fingerprint: str
    corpus: Corpus
    shape: Shape
    rows: list[Row]
    missing: list[Row]
    others: int = 0


def todo(ctx: Context) -> Todo:
    """Compare the prepared data with the store (by manifest and file size; orphans are checked in full)."""
    corpus = Corpus(ctx.input("tokens").out / "data")
    shape = shape_of(ctx)
    rows = list(corpus.rows(shape))
    if not rows:
        raise EyrieError("the prepared data has no rows.", where=str(corpus.folder), code="data-empty")
    if ctx.settings.storage == "window":
        return Todo(ctx.fingerprint, corpus, shape, rows, [])
    with Store(ctx.base / "store") as store:
        store.sweep()
        lacking = missing(store, shape, corpus, rows)
    index, count = share_of(ctx)
    own = [row for row in lacking if endpoint_of(row.key, count) == index]
    return Todo(ctx.fingerprint, corpus, shape, rows, own, len(lacking) - len(own))


def share_of(ctx: Context) -> tuple[int, int]:
    """(index, count): which share of how many this host captures, from `execution.share`; (0, 1) is all of it."""
    share = ctx.pipeline.execution.get("share") or [0, 1]
    try:
        index, count = (int(item) for item in share)
    except (TypeError, ValueError):
        index, count = -1, 0
    if not 0 <= index < count:
        raise SpecError(f"share {share!r} is not [index, count] with 0 <= index < count.", where="execution.share")
    return index, count


def missing(store: Store, shape: Shape, corpus: Corpus, rows: list[Row]) -> list[Row]:
    """One row per key that the store lacks. A file without a manifest row is adopted if it checks, else removed."""
    known = {entry.key: entry.bytes for entry in store.entries()}
    adopted: list[Entry] = []
    lacking: dict[str, Row] = {}
    seen: set[str] = set()
    for row in rows:
        if row.key in seen:
            continue
        seen.add(row.key)
        path = store.file(row.key)
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            size = -1
        if size >= 0 and known.get(row.key) == size:
            continue
        if size >= 0:
            entry = _adopt(path, shape, corpus.ids(row.row), row)
            if entry:
                adopted.append(entry)
                continue
            store.quarantine(row.key, "unreadable")
        lacking[row.key] = row
    if adopted:
        store.record(adopted)
        log.info("adopted %d states files that an interrupted run left", len(adopted))
    return list(lacking.values())


def _adopt(path: Path, shape: Shape, ids: list[int], row: Row) -> Entry | None:
    try:
        files.check_file(path, shape, ids)
    except files.BadFile as error:
        log.warning("%s: %s; it is captured anew", path.name, error)
        return None
    layers = ",".join(map(str, shape.layers))
    return Entry(row.key, row.tokens, path.stat().st_size, shape.dtype, layers, files.checksum(path), shape.digest)


def shape_of(ctx: Context) -> Shape:
    """The shape of this run's states, after the declared sizes were compared with the checkpoint's own."""
    target = ctx.target
    checkpoint = Checkpoint(ctx.input("target").out)
    found = dimensions(checkpoint.config())
    for name in ("hidden_size", "num_hidden_layers", "vocab_size"):
        if getattr(found, name) != getattr(target, name):
            raise GateError(
                f"target.{name} is declared as {getattr(target, name)}, the checkpoint says {getattr(found, name)}.",
                where="target",
                code="target-dimensions",
                todo="Correct the inventory: the forecast and the layer ids depend on it.",
            )
    engine = tool_versions(("vllm",))["vllm"]
    return Shape(tuple(target.captured_layers), target.hidden_size, ctx.settings.dtype, model_of(ctx), f"vllm {engine}")


def model_of(ctx: Context) -> str:
    """Fingerprint of the target's weights: from the target stage's manifest, else hashed here (and remembered)."""
    folder = ctx.input("target").out
    listed = _listed(atomic.read_json(folder / "manifest.json", {}))
    digests = {
        path.name: listed.get(path.name) or ctx.pipeline.hashes.sha256(path)
        for path in sorted([*folder.glob("*.safetensors"), folder / "config.json"])
    }
    return weights_fingerprint(digests)


def _listed(value: Any) -> dict[str, str]:
    """{file: sha256} from a manifest {files: {name: {sha256}}} or {files: [{name, sha256}]}; {} when it is neither."""
    entries = value.get("files") if isinstance(value, dict) else None
    if isinstance(entries, dict):
        pairs = [(name, entry.get("sha256") if isinstance(entry, dict) else entry) for name, entry in entries.items()]
    elif isinstance(entries, list):
        pairs = [(entry.get("name") or entry.get("path"), entry.get("sha256")) for entry in entries]
    else:
        return {}
    return {str(name): str(digest) for name, digest in pairs if name and digest}


def endpoints(ctx: Context) -> list[str]:
    """Base URLs of the extract servers, own host first.

    A server names its files by path, so those of other hosts count only where `execution.shared_files` says that all of
    them see the same files.
    """
    from eyrie import serve

    found = [base_url(url) for url in serve.endpoints(ctx.pipeline, "extract")]
    return found if ctx.pipeline.execution.get("shared_files") else found[:1]


def prove(ctx: Context, work_to_do: Todo, work: Work) -> dict[str, Any]:
    """Probe every server; the first one's figures are the basis of the forecast."""
    urls = endpoints(ctx)
    work.progress.start("probe", len(urls), "servers")
    proofs = []
    for url in urls:
        try:
            proof = _probe(ctx, work_to_do, url)
        except EyrieError as error:
            if error.code != "server-gone" or url != urls[0]:
                raise
            reviver(ctx, work)(url, str(error))  # it died on us: one fresh start, then its death is the server's fault
            proof = _probe(ctx, work_to_do, url)
        proofs.append(proof)
        work.progress.advance()
        work.check_stop()
    return {**proofs[0].as_dict(), "servers": len(urls), "tok_s": round(sum(proof.tok_s for proof in proofs), 1)}


def _probe(ctx: Context, work_to_do: Todo, url: str) -> Any:
    from eyrie.hidden_states import probe

    checkpoint = Checkpoint(ctx.input("target").out)
    corpus, missing, shape = work_to_do.corpus, work_to_do.missing, work_to_do.shape
    return probe.run(url, ctx.target.name, checkpoint, corpus, missing, shape, ctx.settings, ctx.out)


def reviver(ctx: Context, work: Work) -> Callable[[str, str], None]:
    """How to bring the own server back; servers of other hosts are theirs to restart."""
    own = endpoints(ctx)[0]

    def revive(url: str, why: str) -> None:
        if url != own:
            return
        from eyrie.serve import switch

        log.warning("restarting the extract server: %s", why)
        switch.stop(ctx.pipeline)
        switch.ensure(ctx.pipeline, "extract", progress=work.progress)

    return revive


def storage(ctx: Context) -> Path:
    """Where this host's extract server leaves its files."""
    from eyrie.serve import launch

    return launch.storage(ctx.pipeline.root)


def sweep_server_folder(ctx: Context) -> int:
    """Remove states that nobody waits for: an extract server writes a file for every request, probes included.

    Called before and after a capture, when no request is in flight: the stage is the server's only client.
    """
    count = 0
    for path in storage(ctx).glob("*.safetensors"):
        remove(path)
        count += 1
    return count


def prune(ctx: Context, store: Store) -> int:
    """Delete states that no output of this stage refers to (all fingerprints that are still on disk)."""
    wanted: set[str] = set()
    for path in ctx.base.glob(f"*/{manifest.NAME}"):
        wanted |= {line["key"] for line in manifest.read(path)}
    return store.drop([entry.key for entry in store.entries() if entry.key not in wanted])

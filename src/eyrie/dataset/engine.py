"""The run: bring the sources, process them, mix, write. Each step picks up what an earlier run left."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.accounting import Account
from eyrie.core.errors import EyrieError
from eyrie.core.pipeline import Context
from eyrie.core.stage import Outcome, Renamed, Work
from eyrie.dataset import again, disk, excluded, files, hub, mix, near, output, pool, prompts, schedule, without
from eyrie.dataset.forecast import read_lock
from eyrie.dataset.gates import hub_cache, token_file
from eyrie.dataset.process import Job
from eyrie.dataset.settings import Settings
from eyrie.dataset.unit import DONE, FAILED, Unit

OUTPUTS = ["train.parquet", "eval.parquet", "sources.json", "lock.json"]
KEPT_UNITS = 3  # folders of parts kept per source, so that going back to earlier settings costs nothing


def run(ctx: Context, work: Work) -> Outcome:
    """Make the outputs in ctx.out; the account covers every row of every source."""
    try:
        return _run(ctx, work)
    except OSError as error:
        if error.errno in disk.FULL:
            raise disk.disk_full(error, str(ctx.base)) from error
        raise


def _run(ctx: Context, work: Work) -> Outcome:
    settings: Settings = ctx.settings
    pool.warm()
    import pyarrow.parquet  # noqa: F401 - needed at the end; loaded while the workers' parent comes up

    known = without.of(ctx, ctx.identity)
    standing = again.standing(ctx) if known.open else None
    if standing is not None:
        tried = _brought(ctx, work, known.open)
        _arrived(ctx, known, tried)
        without.write(ctx, without.Mix(known.failed | _codes(tried.values()), known.came_in))
        return again.outcome(ctx, standing, [one for one in tried.values() if one.error])
    units = _brought(ctx, work, [*settings.sources, *settings.exclude_sources])
    missing = _missing(settings, units, known)
    _arrived(ctx, known, units)
    mixed = [units[name] for name in settings.sources if units[name].status == DONE]
    outcome = _mixed(ctx, work, mixed, units, missing)
    if settings.on_source_failure == "continue":
        without.write(ctx, without.Mix(_codes(missing), known.came_in))
    for one in units.values():
        _prune(one)
    return outcome


def _brought(ctx: Context, work: Work, names: list[str]) -> dict[str, Unit]:
    """These sources, each with its verdict; what they resolved to is locked."""
    settings: Settings = ctx.settings
    lock = read_lock(ctx)
    units = {name: _unit(ctx, name) for name in dict.fromkeys(names)}
    for one in units.values():
        _local_files(ctx, one)
    for name, entry in lock.items():  # a raised `refresh` lets go of what was locked for a moving name
        stale = int(entry.get("refresh", 0)) < settings.refresh
        if stale and name in units and not hub.is_commit(units[name].source.revision):
            lock[name] = {}
    tokenizer = settings.tokenizer or str(ctx.input("target").out)
    schedule.Schedule(
        list(units.values()),
        settings,
        work,
        reach(ctx),
        lock,
        job=lambda one: _job(ctx, one, tokenizer),
        identify=lambda one: one.identify(settings, _tokenizer_digest(ctx, tokenizer)),
        workers=schedule.worker_count(settings, ctx.pipeline.execution),
    ).run()
    for one in units.values():
        if one.fingerprint and one.digests:
            lock[one.name] = _locked(one, settings)
    atomic.write_json(ctx.base / "lock.json", lock)
    return units


def _codes(failed: Iterable[Unit]) -> dict[str, str]:
    return {one.name: one.error.code for one in failed if one.error}


def _arrived(ctx: Context, known: without.Mix, tried: dict[str, Unit]) -> None:
    """Sources that the mix went without and that are there now make it another one; raises Renamed then."""
    came_in = [name for name in known.failed if name in tried and tried[name].status == DONE]
    if came_in:
        failed = {name: code for name, code in known.failed.items() if name not in came_in}
        failed |= _codes(tried.values())
        without.write(ctx, without.Mix(failed, sorted([*known.came_in, *came_in])))
        raise Renamed(", ".join(came_in))


def reach(ctx: Context) -> hub.Access:
    """How the hub is reached from this run: its cache lies on the big disk."""
    settings: Settings = ctx.settings
    offline = settings.offline or os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    return hub.Access(str(hub_cache(ctx)), str(token_file(ctx)), settings.endpoint, offline, settings.retries)


def _unit(ctx: Context, name: str) -> Unit:
    state = ctx.state.path / "sources"
    return Unit(name, ctx.settings.source(name), ctx.base / "sources", state / f"{name}.json", state / f"{name}.log")


def _local_files(ctx: Context, one: Unit) -> None:
    """Find and digest the files of a source that needs no network; its failure is its own."""
    source = one.source
    try:
        if source.kind == "local":
            one.files = files.local(source, one.name)
        elif source.kind == "package":
            one.files = files.package(source, one.name)
        elif source.kind == "generated":
            data = prompts.data_file("prompts.json")
            one.digests = {data.name: ctx.pipeline.hashes.sha256(data)}
        for name, path in one.files:
            one.digests[name] = ctx.pipeline.hashes.sha256(path)
    except (EyrieError, OSError) as error:
        known = error if isinstance(error, EyrieError) else EyrieError(f"source {one.name}: {error}", code="unreadable")
        one.say(FAILED, known)


def _job(ctx: Context, one: Unit, tokenizer: str) -> Job:
    settings: Settings = ctx.settings
    return Job(
        one.name,
        one.source,
        one.folder,
        settings.seed,
        settings.dedup_turns,
        settings.minhash_permutations if settings.dedup == "minhash" else 0,
        settings.max_prompt_tokens,
        settings.max_conversation_tokens,
        tokenizer,
        ctx.target.trust_remote_code,
    )


def _tokenizer_digest(ctx: Context, tokenizer: str) -> str:
    """Digest of what counts the tokens: tokenizer.json, or for models without one the target's fingerprint."""
    for path in (Path(tokenizer), Path(tokenizer) / "tokenizer.json"):
        if path.is_file():
            return ctx.pipeline.hashes.sha256(path)
    return ctx.input("target").fingerprint


def _locked(one: Unit, settings: Settings) -> dict[str, Any]:
    entry: dict[str, Any] = {"files": one.digests, "refresh": settings.refresh}
    if one.source.kind == "hub":
        entry |= {"repository": one.source.repository, "declared": one.source.revision, "revision": one.revision}
        entry["bytes"] = sum(path.stat().st_size for _, path in one.files)
    return entry


def _missing(settings: Settings, units: dict[str, Unit], known: without.Mix) -> list[Unit]:
    """The failed sources, where the policy lets the mix go on without them; else the error that names them all.

    A source that was in the mix which later stages have used is not left out of it.
    """
    failed = [one for one in units.values() if one.status != DONE]
    allowed = [
        one
        for one in failed
        if one.name in settings.sources
        and settings.on_source_failure == "continue"
        and (not known.made or one.name in known.failed)
    ]
    if not failed or (allowed == failed and len(failed) < len(settings.sources)):
        return failed
    first = failed[0].error
    assert first is not None
    names = ", ".join(one.name for one in failed)
    raise EyrieError(
        f"{len(failed)} of {len(units)} sources failed: {names}; the others ({len(units) - len(failed)}) are done.",
        where=first.where,
        why=" | ".join(str(one.error) for one in failed),
        todo="Put that right and run again: only these sources are done again. "
        "eyrie_dataset_on_source_failure: continue mixes without them.",
        code=f"source-failed-{first.code}" if len(failed) == 1 else "sources-failed",
    )


def _mixed(ctx: Context, work: Work, mixed: list[Unit], units: dict[str, Unit], missing: list[Unit]) -> Outcome:
    """Choose the rows, write the outputs, close the books."""
    settings: Settings = ctx.settings
    work.progress.detail = {}
    work.progress.start("mixing", unit="rows")
    opened = prompts.open_prompts(Path(settings.open_prompts) if settings.open_prompts else None)
    texts = [*opened, *excluded.from_files(files.expanded(settings.exclude))]
    kept_out = [units[name] for name in settings.exclude_sources]
    keys = mix.load(mixed)
    refused = excluded.keys(texts, kept_out)
    chosen = mix.choose(keys, mixed, settings, refused, _near(settings, mixed, keys, texts, kept_out))
    total = sum(count["train"] for count in chosen.counts)
    work.progress.start("writing", total=total, unit="rows")

    def tick(rows: int) -> None:
        work.check_stop()
        work.progress.update(rows)

    workers = schedule.worker_count(settings, ctx.pipeline.execution)
    written = output.write(ctx.out, mixed, keys, chosen, settings.seed, opened, workers, tick)
    account, sources = _books(mixed, chosen)
    for one in missing:
        sources[one.name] = {"status": FAILED, "error": one.error.as_dict() if one.error else None}
    warnings = _warnings(settings, mixed, missing, written["train.parquet"]["rows"])
    summary = {"files": written, "sources": sources, "warnings": warnings}
    atomic.write_json(ctx.out / "sources.json", summary)
    atomic.write_json(
        ctx.out / "lock.json", {one.name: _locked(one, settings) for one in units.values() if one.digests}
    )
    figures = {
        "train": written["train.parquet"]["rows"],
        "eval": written["eval.parquet"]["rows"],
        "sources": sources,
        "warnings": warnings,
    }
    return Outcome(account, list(OUTPUTS), figures, sum(item["bytes"] for item in written.values()))


def _near(settings: Settings, mixed: list[Unit], keys: mix.Keys, texts: list[str], kept_out: list[Unit]) -> Any:
    """The near-duplicate search over rows in order of rank, where the settings ask for it."""
    if settings.dedup != "minhash":
        return None

    def search(rows: Any) -> Any:
        import numpy as np

        count = settings.minhash_permutations
        others = [near.signature(text, count) for text in [*texts, *excluded.from_units(kept_out)]]
        mine = mix.signatures(mixed, keys, rows) if len(rows) else np.zeros((0, count), dtype=np.uint32)
        return near.find(mine, settings.minhash_threshold, np.array(others, dtype=np.uint32).reshape(-1, count))

    return search


def _books(mixed: list[Unit], chosen: mix.Chosen) -> tuple[Account, dict[str, Any]]:
    """The stage's account and the sources' own: kept are the rows of train.parquet."""
    total, sources = Account(), {}
    for number, one in enumerate(mixed):
        book = one.book()
        account = book.account([name for name, _ in one.files] or ["generated"])
        account.kept = chosen.counts[number]["train"]
        account.dropped.update(chosen.dropped[number])
        account.examples.update(chosen.examples[number])
        total.merge(account)
        sources[one.name] = {
            "status": DONE,
            **account.as_dict(),
            "heldout": chosen.counts[number]["heldout"],
            "available": chosen.available[number],
            "notes": dict(sorted(book.notes.items())),
            "revision": one.revision,
            "licence": one.source.licence,
            "reused": one.reused,
        }
    return total, sources


def _warnings(settings: Settings, mixed: list[Unit], missing: list[Unit], rows: int) -> list[str]:
    """What the report must say loudly."""
    out = [again.warning(one) for one in missing]
    if settings.samples > rows:
        out.append(f"{settings.samples} conversations were asked for, only {rows} are there.")
    for one in mixed:
        if one.source.kind == "hub" and not hub.is_commit(one.source.revision):
            declared = one.source.revision or "no revision"
            out.append(f"Source {one.name} declares {declared}; {one.revision} was resolved and locked. Pin it.")
        book = one.book()
        if book.bad * 2 > book.entered:
            out.append(f"More than half of source {one.name} was unusable ({book.bad} of {book.entered} rows).")
    return out


def _prune(one: Unit) -> None:
    """Remove the oldest folders of parts of a source beyond KEPT_UNITS."""
    mine = [path for path in one.store.glob(f"{one.name}-????????????") if path.is_dir()]
    mine.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in [path for path in mine if path != one.folder][KEPT_UNITS - 1 :]:
        shutil.rmtree(path, ignore_errors=True)

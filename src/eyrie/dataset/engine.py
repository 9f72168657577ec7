"""The run: resolve the sources, process them, mix, write. Each step picks up what an earlier run left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.accounting import Account
from eyrie.core.pipeline import Context
from eyrie.core.stage import Outcome, Work
from eyrie.dataset import files, mix, near, output, process, prompts, tasks, unit
from eyrie.dataset.settings import Settings


def run(ctx: Context, work: Work) -> Outcome:
    """Make the outputs in ctx.out; the account covers every row of every source."""
    settings: Settings = ctx.settings
    units = [_unit(ctx, name) for name in settings.sources]
    for one in units:
        _resolve(ctx, one)
        _process(ctx, one, work)
    return _mixed(ctx, work, units)


def _unit(ctx: Context, name: str) -> unit.Unit:
    state = ctx.state.path / "sources"
    return unit.Unit(
        name, ctx.settings.source(name), ctx.base / "sources", state / f"{name}.json", state / f"{name}.log"
    )


def _resolve(ctx: Context, one: unit.Unit) -> None:
    source = one.source
    if source.kind == "local":
        one.files = files.local(source, one.name)
    elif source.kind == "package":
        one.files = files.package(source, one.name)
    one.digests = {name: ctx.pipeline.hashes.sha256(path) for name, path in one.files}
    if source.kind == "generated":
        data = prompts.data_file("prompts.json")
        one.digests = {"prompts.json": ctx.pipeline.hashes.sha256(data)}
    one.identify(ctx.settings, "")


def _process(ctx: Context, one: unit.Unit, work: Work) -> None:
    if one.load():
        return
    one.folder.mkdir(parents=True, exist_ok=True)
    one.say(unit.RUNNING)
    one.tasks = tasks.cut(one.name, one.source, one.files)
    settings = ctx.settings
    permutations = settings.minhash_permutations if settings.dedup == "minhash" else 0
    job = process.Job(one.name, one.source, one.folder, settings.seed, settings.dedup_turns, permutations)
    for task in one.tasks:
        process.run(job, task, one.done.setdefault(task.index, []).append)
        work.check_stop()
    one.finish()
    one.say(unit.DONE)


def _near(settings: Settings, units: list[unit.Unit], keys: mix.Keys, excluded: list[str]) -> Any:
    """The near-duplicate search over rows in order of rank, where the settings ask for it."""
    if settings.dedup != "minhash":
        return None

    def search(rows: Any) -> Any:
        import numpy as np

        shape = (0, settings.minhash_permutations)
        others = [near.signature(text, settings.minhash_permutations) for text in excluded]
        mine = mix.signatures(units, keys, rows) if len(rows) else np.zeros(shape, dtype=np.uint32)
        return near.find(mine, settings.minhash_threshold, np.array(others, dtype=np.uint32).reshape(-1, shape[1]))

    return search


def _mixed(ctx: Context, work: Work, units: list[unit.Unit]) -> Outcome:
    import numpy as np

    settings = ctx.settings
    opened = prompts.open_prompts(Path(settings.open_prompts) if settings.open_prompts else None)
    keys = mix.load(units)
    excluded = np.frombuffer(b"".join(output.open_keys(opened)), dtype=">u8").reshape(-1, 2).astype(np.uint64)
    chosen = mix.choose(keys, units, settings, excluded, _near(settings, units, keys, opened))
    written = output.write(ctx.out, units, keys, chosen, settings.seed, opened, lambda rows: None)
    total, sources = Account(), {}
    for number, one in enumerate(units):
        account = one.account()
        account.kept = chosen.counts[number]["train"]
        account.dropped.update(chosen.dropped[number])
        account.examples.update(chosen.examples[number])
        total.merge(account)
        sources[one.name] = {
            **account.as_dict(),
            "heldout": chosen.counts[number]["heldout"],
            "available": chosen.available[number],
            "notes": dict(sorted(one.book().notes.items())),
        }
    atomic.write_json(ctx.out / "sources.json", {"files": written, "sources": sources})
    atomic.write_json(
        ctx.out / "lock.json", {one.name: {"revision": one.revision, "files": one.digests} for one in units}
    )
    size = sum(item["bytes"] for item in written.values())
    figures = {"train": written["train.parquet"]["rows"], "eval": written["eval.parquet"]["rows"], "sources": sources}
    return Outcome(total, ["train.parquet", "eval.parquet", "sources.json", "lock.json"], figures, size)

"""Measuring: one server after another, each session durable once it is whole."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from eyrie.benchmark import cells, measure, prompts, servers
from eyrie.benchmark.load import Generator
from eyrie.benchmark.settings import Settings
from eyrie.core import atomic
from eyrie.core.pipeline import Context
from eyrie.core.stage import Work

SESSIONS, SETS, LOG = "sessions.jsonl", "sets.json", "bench.log"
CELL_KEY = ("set", "concurrency", "temperature", "end", "output_tokens", "prompts")


def measured(ctx: Context, work: Work, planned: list[cells.Session], predecessor: Path | None) -> list[dict[str, Any]]:
    """All planned sessions' samples, in order; those that an earlier attempt finished are not measured again."""
    finished = _finished(ctx.out / SESSIONS, planned, predecessor)
    settings: Settings = ctx.settings
    total = sum(len(session.cells) for session in planned) * settings.repeats
    work.progress.start("measuring", total, "cells")
    if any(session.key not in finished for session in planned):
        with Generator(ctx.out / LOG, work.check_stop) as generator:
            runner = _Sessions(ctx, work, generator, planned, predecessor)
            for session in planned:
                if session.key in finished:
                    work.progress.advance(len(session.cells) * settings.repeats)
                    continue
                finished[session.key] = runner.measure(session)
                atomic.append_line(ctx.out / SESSIONS, json.dumps(finished[session.key], sort_keys=True))
            runner.write_sets()
    return [finished[session.key] for session in planned]


def _finished(path: Path, planned: list[cells.Session], predecessor: Path | None) -> dict[str, dict[str, Any]]:
    """Sessions of an earlier attempt with exactly these cells (and the same predecessor)."""
    wanted = {session.key: [_cell_key(cell) for cell in session.as_dict()["cells"]] for session in planned}
    found = {}
    for value in _lines(path):
        same = wanted.get(value["key"]) == [_cell_key(cell) for cell in value["cells"]]
        if same and value.get("predecessor") in (None, _name(predecessor)):
            found[value["key"]] = value
    return found


def _name(predecessor: Path | None) -> str | None:
    return predecessor.name if predecessor else None


def _cell_key(cell: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(cell[name] for name in CELL_KEY)


def _lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines; a last one that a crash tore is passed over."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return []
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


class _Sessions:
    """The prompts, rendered once, and the measuring of a session."""

    def __init__(
        self,
        ctx: Context,
        work: Work,
        generator: Generator,
        planned: list[cells.Session],
        predecessor: Path | None,
    ):
        self.ctx, self.work, self.generator = ctx, work, generator
        self.planned, self.predecessor = planned, predecessor
        self.settings: Settings = ctx.settings
        self.notes = servers.Notes(work.progress)
        self._bench: measure.Bench | None = None

    def bench(self) -> measure.Bench:
        """Rendered at the first cell: the generator's imports went on while the first server started."""
        if self._bench is None:
            self._bench = self._prepare()
        return self._bench

    def _prepare(self) -> measure.Bench:
        from eyrie.serve import execute, metrics
        from eyrie.serve.settings import PROFILES
        from eyrie.supervise import processes

        def own() -> set[int]:
            servers_now = [execute.launched(self.ctx.pipeline.root, profile).get("pid") for profile in PROFILES]
            return set().union(*(processes.family(pid) for pid in [os.getpid(), *servers_now] if pid))

        needed = cells.prompt_counts(self.planned)
        sets = prompts.gather(self.settings, self.ctx.input("dataset").out / "eval.parquet", needed)
        target, eos = self.ctx.target, [0]
        for name, found in sets.items():
            cells_of_set = [cell for session in self.planned for cell in session.cells if cell.set == name]
            longest = max(cell.output_tokens for cell in cells_of_set)
            request = {
                "op": "render",
                "model": str(self.ctx.input("target").out),
                "chat_template": target.chat_template,
                "trust_remote_code": target.trust_remote_code,
                "prompts": found.rows[: 2 * needed[name] + 64],
            }
            reply = self.generator.ask(request, self.settings.cell_timeout_s)
            # one token stays free: the engine refuses prompt + answer that fill the context to its end
            prompts.take(found, reply["prompts"], needed[name], target.max_model_len - longest - 1)
            eos = reply["eos"]
        return measure.Bench(
            self.generator,
            sets,
            self.ctx.out,
            self.ctx.input("target").out,
            target.trust_remote_code,
            eos,
            self.settings.seed,
            self.settings.cell_timeout_s,
            metrics.scrape,
            own,
        )

    def measure(self, session: cells.Session) -> dict[str, Any]:
        """Bring a session's server up, warm it, measure its cells."""
        from eyrie.serve import metrics, switch

        self.work.check_stop()
        own = servers.overrides(session, self.ctx.input("draft").out, self.predecessor, self.settings)
        serving = switch.ensure(self.ctx.pipeline, servers.profile(session.variant), self.notes, own)
        bench, salt = self.bench(), f"{session.key} {time.time()}"
        if self.settings.warmup:
            bench.run(serving.base_url, serving.model, _warm(session), f"{salt} warm", self.settings.warmup)
        samples = []
        exact = session.variant in (cells.EXACT_BASELINE, cells.EXACT_EAGLE3)
        for repeat in range(1 if exact else self.settings.repeats):
            for cell in session.cells:
                self.work.check_stop()
                run = bench.run(serving.base_url, serving.model, cell, f"{salt} {cell.name} {repeat}")
                value = measure.sample(run, cell, metrics.acceptance(run["before"], run["after"]))
                samples.append({**vars(cell), "repeat": repeat, **value})
                self.work.progress.advance(1, cell=f"{session.variant} {cell.name}", tok_s=round(value["tok_s"], 1))
        return {
            **session.as_dict(),
            "key": session.key,
            "samples": samples,
            "start_seconds": serving.seconds,
            "started": serving.started,
            "server": serving.fingerprint,
            "predecessor": _name(self.predecessor) if session.variant == cells.PREDECESSOR else None,
            "measured": time.time(),
        }

    def write_sets(self) -> None:
        """What the prompts were: counts, sources, digest; never their text."""
        sets = {name: found.as_dict() for name, found in self.bench().sets.items()}
        atomic.write_json(self.ctx.out / SETS, sets)


def _warm(session: cells.Session) -> cells.Cell:
    """Requests that fill caches and compile kernels; nobody counts them."""
    widest = max(session.cells, key=lambda cell: cell.concurrency)
    return cells.Cell(widest.set, widest.concurrency, widest.temperature, "natural", 16, widest.prompts)

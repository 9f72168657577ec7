"""Asking for all that the store does not hold: the stage's settings brought together with the engine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.pipeline import Context
from eyrie.core.stage import Work
from eyrie.responses.chat import REASONING_TRUNCATED, TRUNCATED, Asker
from eyrie.responses.controller import FIRST
from eyrie.responses.conversation import BadRow
from eyrie.responses.endpoint import UP
from eyrie.responses.engine import Engine, Hooks
from eyrie.responses.rows import Catalog, Job, dataset_rows, job_of, replay
from eyrie.responses.settings import Settings
from eyrie.responses.store import Index, Store
from eyrie.responses.turn import Rules
from eyrie.serve import key

log = logging.getLogger(__name__)

WINDOW = 8192  # conversations within which an order by length is made
FEW = 16  # fewer answers than this say nothing about rates
Unresolved = dict[int, tuple[bool, str, str]]


class Feed:
    """The conversations that still need a request, streamed; counts those that need none."""

    def __init__(self, dataset: Path, asker: Asker, known: Catalog, store: Store, index: Index):
        self.dataset, self.asker, self.known, self.store, self.index = dataset, asker, known, store, index
        self.ready = 0  # resolved before this run: stored, repeated or bad
        self.resumed = 0
        self.unresolved: Unresolved = {}

    def __iter__(self) -> Iterator[Job]:
        order = self.asker.settings.order
        if order == "dataset":
            yield from self._missing()
            return
        jobs = self._missing()
        while window := list(islice(jobs, WINDOW)):
            lengths = self.known.lengths
            window.sort(key=lambda job: -int(lengths[job.ordinal]))
            if order == "longest_first":
                yield from window
            else:  # neighbours of like length, the groups themselves spread over the window
                size = max(1, len(window) // 16)
                groups = [window[at : at + size] for at in range(0, len(window), size)]
                for group in groups[::2] + groups[1::2][::-1]:
                    yield from group

    def _missing(self) -> Iterator[Job]:
        for ordinal, row in dataset_rows(self.dataset):
            if ordinal in self.known.bad or self.known.repeated[ordinal]:
                self.ready += 1
                continue
            job = job_of(ordinal, row, self.asker)
            replay(job, self.asker, self.store, self.index, retry_poison=self.asker.settings.retry_poison)
            if job.failure:
                self.unresolved[ordinal] = (False, job.failure[0], f"{job.where}: {job.failure[1]}")
            if job.script.done or job.failure:
                self.ready += 1
                self.resumed += job.script.done
            else:
                yield job


def something_missing(dataset: Path, asker: Asker, store: Store, index: Index) -> bool:
    """Whether any conversation still needs a request; stops at the first one."""
    for ordinal, row in dataset_rows(dataset):
        try:
            job = job_of(ordinal, row, asker)
        except BadRow:
            continue
        replay(job, asker, store, index, retry_poison=asker.settings.retry_poison)
        if not job.script.done and not job.failure:
            return True
    return False


def surroundings(ctx: Context) -> tuple[list[str], Callable[[str], Any], Callable[[], Any] | None]:
    """The baseline's endpoints, the proof of what serves there, and what brings the own host's server back."""
    from eyrie import serve
    from eyrie.responses.proof import prover
    from eyrie.serve import identity, switch

    profile = ctx.stage.server
    urls = serve.endpoints(ctx.pipeline, profile)
    prove = prover(ctx, urls[0], lambda: identity.prove(ctx.pipeline, profile))
    return urls, prove, lambda: switch.ensure(ctx.pipeline, profile)


def opens_think(ctx: Context) -> bool:
    """Whether the target's template opens the reasoning in the generation prompt."""
    from eyrie.tokens.template import Template

    settings: Settings = ctx.settings
    if not settings.think_tags:
        return False
    template = Template.load(ctx.input("target").out, ctx.target.chat_template, settings.chat_template_kwargs)
    return template.opens(settings.think_tags[0], settings.think_tags[1])


def ask(
    ctx: Context, work: Work, asker: Asker, known: Catalog, dataset: Path, store: Store, index: Index
) -> tuple[dict[str, Any], Unresolved]:
    """Ask for what is missing; (figures, conversations without an answer). Raises EyrieError."""
    settings: Settings = ctx.settings
    source = Feed(dataset, asker, known, store, index)
    first = next(missing := iter(source), None)
    if first is None:
        return {"on_policy": True, "asked": 0, "resumed": source.resumed}, source.unresolved
    rules = Rules(
        think_tags=settings.think_tags,
        opens_think=opens_think(ctx),
        min_answer=settings.min_answer,
        reasoning_retry=settings.reasoning_retry,
        request_timeout=settings.request_timeout_s,
        context=ctx.target.max_model_len,
    )
    urls, prove, revive = surroundings(ctx)
    hooks = Hooks(prove, work.check_stop, lambda engine: report(engine, source, work), revive, key.headers())
    work.progress.start("asking", len(known), "conversations", done=source.ready)
    remembered = atomic.read_json(ctx.base / "rates.json", {}) or {}
    started = time.monotonic()

    async def go() -> Engine:
        engine = Engine(settings, asker, rules, store, urls, _chain(first, missing), hooks)
        for controller in engine.controllers:
            controller.start(int((remembered.get("limits") or {}).get(controller.endpoint.url, 0)) or FIRST)
        try:
            await engine.run()
        finally:
            remember(ctx.base / "rates.json", engine, time.monotonic() - started)
        return engine

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        engine = runner.run(go())
    return figures_of(engine, source, time.monotonic() - started), {**source.unresolved, **engine.unresolved}


def _chain(first: Job, rest: Iterator[Job]) -> Iterator[Job]:
    yield first
    yield from rest


def remember(path: Path, engine: Engine, seconds: float) -> None:
    """Measured rates, for the forecast and the next run's start."""
    if engine.turns < FEW:
        return
    value = {
        "tok_s": round(engine.tokens / seconds, 1),
        "answer_tokens": round(engine.tokens / engine.turns, 1),
        "limits": {endpoint.url: endpoint.limit for endpoint in engine.endpoints},
    }
    try:
        atomic.write_json(path, value)
    except OSError as error:
        log.warning("the measured rates cannot be kept: %s", error)


def loop_factory() -> Any:
    """uvloop where it is installed (vLLM brings it), else asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def report(engine: Engine, source: Feed, work: Work) -> None:
    """Progress: conversations done, tokens, what is waited for."""
    detail: dict[str, Any] = {"tokens": engine.tokens, "in_flight": sum(e.in_flight for e in engine.endpoints)}
    away = [endpoint.url for endpoint in engine.endpoints if endpoint.state != UP]
    if away:
        detail["waiting_for"] = ", ".join(away)
    if engine.reasons:
        detail["failed"] = engine.reasons.total()
    work.progress.detail = detail
    work.progress.update(source.ready + engine.resolved, engine.stored_bytes)


def figures_of(engine: Engine, source: Feed, seconds: float) -> dict[str, Any]:
    """What the report shows of the asking."""
    return {
        "on_policy": True,
        "asked": engine.resolved,
        "resumed": source.resumed,
        "requests_answered": engine.turns,
        "generated_tokens": engine.tokens,
        "asking_seconds": round(seconds, 3),
        "tok_s": round(engine.tokens / seconds, 1) if seconds > 0 else 0.0,
        "kinds": dict(sorted(engine.kinds.items())),
        "retries": dict(sorted(engine.retries.items())),
        "endpoints": {endpoint.url: endpoint.as_dict() for endpoint in engine.endpoints},
        "concurrency": [controller.as_dict() for controller in engine.controllers],
    }


def warnings(turns: Any, settings: Settings) -> list[str]:
    """Sentences on what an operator should look at. turns: the account of single turns, as a dictionary."""
    found = []
    cut = turns["dropped"].get(TRUNCATED, 0) + turns["dropped"].get(REASONING_TRUNCATED, 0)
    if cut > settings.warn_truncated_share * turns["in"]:
        found.append(
            f"{cut} of {turns['in']} answers were cut off by max_tokens {settings.max_tokens} and dropped: "
            "raise eyrie_responses_max_tokens."
        )
    for text in found:
        log.warning("%s", text)
    return found

"""Housekeeping beside the workers: stop requests, progress, durability, hung servers, shares that stop the run."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from eyrie.core.errors import EyrieError
from eyrie.responses.chat import EMPTY
from eyrie.responses.endpoint import DOWN, UP, Endpoint

if TYPE_CHECKING:
    from eyrie.responses.engine import Engine

log = logging.getLogger(__name__)

TICK_S = 0.1
SYNC_S = 2.0


async def keep(engine: Engine) -> None:
    """Returns when every conversation is resolved."""
    settings, loop = engine.settings, engine.loop
    synced = loop.time()
    isolation: asyncio.Task[None] | None = None
    while True:
        engine.hooks.check_stop()
        now = loop.time()
        for endpoint in engine.endpoints:
            if endpoint.state == UP:
                engine.man(endpoint)
                if now - endpoint.last_answer > settings.outage_limit_s and engine.jobs.put_off:
                    raise _only_refusals(engine, endpoint, now - endpoint.last_answer)
                if now - max(endpoint.last_answer, endpoint.client.last_bytes) > settings.idle_timeout_s:
                    await _look_at_silent(engine, endpoint)
        check_shares(engine, settings.share_after)
        engine.hooks.report(engine)
        if now - synced > SYNC_S:
            synced = now
            await asyncio.to_thread(engine.store.sync)
        if isolation is not None and isolation.done():
            isolation.result()
            isolation = None
        if engine.jobs.drained and isolation is None:
            if not engine.jobs.suspects:
                break
            isolation = asyncio.ensure_future(engine.isolate())
        await asyncio.sleep(TICK_S)
    check_shares(engine, 0)
    engine.hooks.report(engine)


async def _look_at_silent(engine: Engine, endpoint: Endpoint) -> None:
    """An endpoint with work in flight has been silent for long: is its engine dead behind a living /health?"""
    if not endpoint.in_flight:
        endpoint.last_answer = engine.loop.time()
        return
    before = await endpoint.generated_tokens()
    await asyncio.sleep(1.0)
    after = await endpoint.generated_tokens()
    if before is not None and after is not None and after > before:
        endpoint.last_answer = engine.loop.time()
        return
    if endpoint.state != DOWN:
        engine.down(endpoint, f"silent for {engine.settings.idle_timeout_s:.0f} s with requests in flight")


def check_shares(engine: Engine, after: int) -> None:
    """Stop a run that fails too much, or whose answers are empty. One single fault never does."""
    settings = engine.settings
    failed = engine.reasons.total()
    if engine.resolved >= after and failed > max(1.0, settings.max_failed_share * engine.resolved):
        raise EyrieError(
            f"{failed} of {engine.resolved} conversations failed, the limit is {settings.max_failed_share:.0%}.",
            why="Commonest reasons: " + "; ".join(_shown(engine, name, n) for name, n in engine.reasons.most_common(3)),
            todo="Repair the cause and run again: what was answered is kept, only the failed ones are asked again.",
            code="too-many-failed",
        )
    empty = engine.kinds[EMPTY]
    if engine.turns >= after and empty > max(1.0, settings.max_empty_share * engine.turns):
        raise EyrieError(
            f"{empty} of {engine.turns} answers are empty, the limit is {settings.max_empty_share:.0%}.",
            why="The chat template or the model does not fit: it ends its turn at once.",
            todo="Compare the served chat template with the model's own; see a prompt as rendered with /tokenize.",
            code="too-many-empty",
        )


def _only_refusals(engine: Engine, endpoint: Endpoint, seconds: float) -> EyrieError:
    reasons = ", ".join(f"{name} {count}" for name, count in engine.retries.most_common(3))
    return EyrieError(
        f"the server has answered nothing for {seconds:.0f} s, though it is up.",
        where=endpoint.url,
        why=f"What it said instead: {reasons or 'nothing'}.",
        todo="See the server's log; run again once it answers: only what is missing is asked for.",
        code="server-refuses",
    )


def _shown(engine: Engine, name: str, count: int) -> str:
    example = next((why for _, reason, why in engine.unresolved.values() if reason == name and why), "")
    return f"{name} {count} (first: {example})" if example else f"{name} {count}"

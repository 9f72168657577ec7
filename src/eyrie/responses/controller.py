"""How many requests an endpoint is given: found, not guessed.

The limit doubles while tokens a second grow by more than GAIN; where they no longer do, or the median latency passes
the bound, the best limit is held, and after REPROBE_S tried anew (answers' lengths drift over days). Every measured
point is recorded: the curve is part of the stage's figures. Rates come from the server's own counter of generated
tokens where it publishes one: answers that end in bursts would make a short window lie.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
from typing import Any

from eyrie.responses.endpoint import UP, Endpoint
from eyrie.responses.settings import Settings

log = logging.getLogger(__name__)

GAIN = 1.05
WINDOW_S = 3.0  # least length of one measurement
ANSWERS = 3  # least answers per request in flight in one measurement without the server's counter
REPROBE_S = 1800.0
FIRST = 8


class Controller:
    """One endpoint's limit. `run` is a task beside the workers; `curve` holds what was measured."""

    def __init__(self, endpoint: Endpoint, settings: Settings):
        self.endpoint, self.settings, self.window_s = endpoint, settings, WINDOW_S
        self.fixed = bool(settings.concurrency)
        self.curve: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self._hold_until = 0.0
        self._searched_from = 0
        self._loop = endpoint.client.loop

    def start(self, limit: int) -> None:
        """Begin at a limit that an earlier run found."""
        if not self.fixed:
            self.endpoint.limit = max(1, min(limit, self.settings.max_concurrency))

    def refused(self) -> None:
        """The server said that it is given too much (429): less, for a while."""
        if not self.fixed:
            self._hold(max(1, self.endpoint.limit * 7 // 10))

    async def run(self) -> None:
        """Measure and decide, for ever; the engine cancels it."""
        while not self.fixed:
            left = self._hold_until - self._loop.time()
            if left > 0:
                await asyncio.sleep(left)
                self.best, self._searched_from = None, len(self.curve)
            point = await self._measure()
            if point is not None and self._loop.time() >= self._hold_until:
                self.curve.append(point)
                self._decide(point)

    @property
    def _saturated(self) -> bool:
        endpoint = self.endpoint
        return endpoint.state == UP and endpoint.in_flight >= endpoint.limit * 0.8 - 1

    async def _measure(self) -> dict[str, Any] | None:
        """One point of the curve at the present limit; None when the work did not saturate it all the while."""
        endpoint, step = self.endpoint, self.window_s / 30
        while not self._saturated:
            await asyncio.sleep(step)
        await asyncio.sleep(min(_median(endpoint.latencies), self.window_s))
        limit = endpoint.limit
        before, begun = await self._count(), self._loop.time()
        tokens, answers = endpoint.tokens, endpoint.answers
        endpoint.latencies.clear()
        while True:
            await asyncio.sleep(step)
            if not self._saturated or endpoint.limit != limit:
                return None
            seconds, came = self._loop.time() - begun, endpoint.answers - answers
            latency = _median(endpoint.latencies)
            counted = before is not None or (came >= ANSWERS * limit and seconds >= 2 * latency)
            if seconds >= self.window_s and came >= limit and counted:
                break
        after = await self._count() if before is not None else None
        seconds = self._loop.time() - begun
        made = after - before if after is not None and before is not None else endpoint.tokens - tokens
        return {
            "concurrency": limit,
            "tok_s": round(made / seconds, 1),
            "latency_p50_s": round(latency, 4),
            "seconds": round(seconds, 2),
        }

    async def _count(self) -> float | None:
        return await self.endpoint.generated_tokens() if self.endpoint.publishes else None

    def _decide(self, point: dict[str, Any]) -> None:
        limit, bound, most = self.endpoint.limit, self.settings.latency_bound_s, self.settings.max_concurrency
        if bound and point["latency_p50_s"] > bound:
            self._hold(self.best["concurrency"] if self.best else max(1, limit // 2))
        elif self.best is None or point["tok_s"] > self.best["tok_s"] * GAIN:
            self.best = point
            if limit >= most:
                self._hold(limit)
            else:
                self.endpoint.limit = min(limit * 2, most)
        else:
            self._hold(self._least())

    def _least(self) -> int:
        """The smallest limit of this search whose rate is within GAIN of the best: more would only wait longer."""
        search = self.curve[self._searched_from :]
        most = max(point["tok_s"] for point in search)
        return min(int(point["concurrency"]) for point in search if point["tok_s"] * GAIN >= most)

    def _hold(self, limit: int) -> None:
        self.endpoint.limit, self._hold_until = limit, self._loop.time() + REPROBE_S
        log.info("%s: holding %d requests in flight", self.endpoint.url, limit)

    def as_dict(self) -> dict[str, Any]:
        """What the report shows: the limit in force, whether it was set by hand, the measured curve."""
        return {"endpoint": self.endpoint.url, "limit": self.endpoint.limit, "fixed": self.fixed, "curve": self.curve}


def _median(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0

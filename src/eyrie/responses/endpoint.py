"""One server that answers: its state, its health, how much it is given."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from eyrie.responses.http import Client, Gone, Reply, TimedOut

STARTING, UP, DOWN, CLOSED = "starting", "up", "down", "closed"
_GENERATED = re.compile(rb"^(?:vllm|sglang):generation_tokens_total(?:\{[^}]*\})? ([0-9.eE+]+)", re.MULTILINE)


class Endpoint:
    """A base URL ('http://127.0.0.1:8000') and what is known of it.

    limit: requests in flight at most. speed: tokens a second of one request (moving average), 0 until measured.
    """

    def __init__(self, url: str, limit: int, headers: dict[str, str] | None = None):
        self.url = url
        self.client = Client(url, headers)
        self.limit = limit
        self.state = STARTING
        self.workers = 0
        self.in_flight = 0
        self.speed = 0.0
        self.paused_until = 0.0
        self.outages = 0
        self.answers = 0
        self.tokens = 0
        self.max_model_len = 0
        self.has_tokenize = True
        self.publishes = True  # /metrics holds a counter of generated tokens
        self.fingerprint = ""  # what the server says of itself with every answer; another one is another server
        self.latencies: list[float] = []  # seconds of the answers since the controller last looked
        self.last_answer = self.client.loop.time()
        self._probe: asyncio.Task[bool] | None = None

    async def healthy(self, timeout: float = 5.0) -> bool:
        """Whether /health answers 200 now; concurrent callers share one probe."""
        if self._probe is None or self._probe.done():
            self._probe = self.client.loop.create_task(self._health(timeout))
        return await asyncio.shield(self._probe)

    async def _health(self, timeout: float) -> bool:
        try:
            return (await self.client.get("/health", timeout)).status == 200
        except (Gone, TimedOut):
            return False

    async def model(self) -> dict[str, Any]:
        """The first entry of /v1/models ({id, max_model_len, root}); {} when it cannot be read."""
        import orjson

        try:
            reply = await self.client.get("/v1/models", 10.0)
            entry = orjson.loads(reply.body)["data"][0] if reply.status == 200 else {}
        except (Gone, TimedOut, orjson.JSONDecodeError, KeyError, IndexError, TypeError):
            return {}
        return entry if isinstance(entry, dict) else {}

    async def generated_tokens(self) -> float | None:
        """The server's own count of generated tokens; None when it does not publish one."""
        try:
            reply = await self.client.get("/metrics", 5.0)
        except (Gone, TimedOut):
            return None
        found = _GENERATED.findall(reply.body)
        self.publishes = bool(found)
        return sum(float(value) for value in found) if found else None

    async def count_tokens(self, messages: list[dict[str, Any]], tools: Any, kwargs: dict[str, Any]) -> int | None:
        """Tokens of a prompt as this server renders it (its /tokenize); None when it cannot say."""
        import orjson

        if not self.has_tokenize:
            return None
        request: dict[str, Any] = {"messages": messages, "add_generation_prompt": True}
        if tools:
            request["tools"] = tools
        if kwargs:
            request["chat_template_kwargs"] = kwargs
        reply: Reply = await self.client.post("/tokenize", orjson.dumps(request), 60.0)
        if reply.status in (404, 405):
            self.has_tokenize = False
        try:
            return int(orjson.loads(reply.body)["count"]) if reply.status == 200 else None
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            return None

    def note(self, tokens: int, seconds: float) -> None:
        """One answer of so many tokens came after so many seconds."""
        self.answers += 1
        self.tokens += tokens
        self.last_answer = self.client.loop.time()
        if len(self.latencies) < 4096:
            self.latencies.append(seconds)
        if tokens and seconds > 0:
            rate = tokens / seconds
            self.speed = rate if self.speed == 0 else 0.98 * self.speed + 0.02 * rate

    def as_dict(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "answers": self.answers,
            "tokens": self.tokens,
            "outages": self.outages,
            "connections": self.client.opened,
            "limit": self.limit,
        }

"""A small OpenAI-like server for the tests, on loopback, in a thread of the test process.

One token is one byte of UTF-8. What it answers is decided by `rules`, the first whose `match` is in the last user
text; what happened is in `stats`. It can die and come back on the same port.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

END = 0  # id of the end token, which every finished answer has


@dataclass
class Rule:
    """match: text in the last user message, '' = every one. times: applies to the first n requests of a text only."""

    match: str = ""
    content: str | None = None
    reasoning: str | None = None
    reasoning_key: str = "reasoning"
    tool_calls: list[dict[str, Any]] | None = None
    finish_reason: str = "stop"
    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drop: bool = False  # close this connection without an answer
    crash: float = 0.0  # the whole server is gone for so many seconds
    token_ids: bool = True
    times: int = 0


@dataclass
class Stats:
    chat: int = 0
    parallel: int = 0
    max_parallel: int = 0
    by_text: Counter[str] = field(default_factory=Counter)
    requests: list[dict[str, Any]] = field(default_factory=list)
    starts: list[tuple[str, float]] = field(default_factory=list)
    paths: Counter[str] = field(default_factory=Counter)


class FakeServer:
    """with FakeServer(rules) as server: server.url"""

    def __init__(self, rules: list[Rule] | None = None, *, model: str = "toy", context: int = 4096, delay: float = 0.0):
        self.rules = rules or []
        self.model, self.context, self.delay = model, context, delay
        self.sglang = False  # its places for ids, its words for a prompt that is too long, no /tokenize of messages
        self.stats = Stats()
        self.port = 0
        self.health = 200
        self.tokenize = True
        self.freeze_after: int | None = None  # then it takes requests and answers none for freeze_for seconds
        self.freeze_for = 1.5
        self._thaw = 0.0
        self.die_after: int | None = None
        self.die_for = 0.3
        self.keep_requests = True
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> FakeServer:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *exc: object) -> None:
        self._call(self._close())
        self._call(self._cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def stop(self) -> None:
        self._call(self._close())

    def start(self) -> None:
        self._call(self._listen())

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._open):
            writer.transport.abort()

    async def _cancel(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _crash(self, seconds: float) -> None:
        await self._close()
        await asyncio.sleep(seconds)
        await self._listen()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                method, path, _ = lines[0].split(" ")
                headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:]) if k}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.stats.paths[path] += 1
                if method == "GET":
                    await self._get(writer, path)
                elif not await self._post(writer, path, body):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _send(
        self, writer: asyncio.StreamWriter, status: int, value: Any, headers: dict[str, str] | None = None
    ) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data)}", "Content-Type: application/json"]
        lines += [f"{name}: {text}" for name, text in (headers or {}).items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + data)
        await writer.drain()

    async def _get(self, writer: asyncio.StreamWriter, path: str) -> None:
        if path == "/health":
            await self._send(writer, self.health, b"")
        elif path == "/v1/models":
            await self._send(writer, 200, {"data": [{"id": self.model, "max_model_len": self.context}]})
        elif path == "/metrics":
            await self._send(writer, 200, b"")
        else:
            await self._send(writer, 404, {"error": {"message": "not found"}})

    async def _post(self, writer: asyncio.StreamWriter, path: str, body: bytes) -> bool:
        """False when the connection ends."""
        request = json.loads(body)
        prompt = prompt_of(request["messages"])
        if path == "/tokenize":
            if self.sglang:
                await self._send(writer, 400, {"error": {"message": "prompt: field required"}})
            elif not self.tokenize:
                await self._send(writer, 404, {"error": {"message": "not found"}})
            else:
                await self._send(writer, 200, {"count": len(prompt), "tokens": prompt})
            return True
        stats, text = self.stats, last_user(request["messages"])
        stats.chat += 1
        stats.by_text[text] += 1
        stats.starts.append((text, time.monotonic()))
        if self.keep_requests:
            stats.requests.append(request)
        stats.parallel += 1
        stats.max_parallel = max(stats.max_parallel, stats.parallel)
        try:
            return await self._chat(writer, request, prompt, text)
        finally:
            stats.parallel -= 1

    async def _chat(self, writer: asyncio.StreamWriter, request: dict[str, Any], prompt: list[int], text: str) -> bool:
        if self.die_after is not None and self.stats.chat > self.die_after:
            self.die_after = None
            self._loop.create_task(self._crash(self.die_for))
            return False
        if self.freeze_after is not None and self.stats.chat > self.freeze_after:
            self.freeze_after, self._thaw = None, time.monotonic() + self.freeze_for
        while time.monotonic() < self._thaw:
            await asyncio.sleep(0.02)
        seen = self.stats.by_text[text]
        rules = (rule for rule in self.rules if rule.match in text and (not rule.times or seen <= rule.times))
        rule = next(rules, Rule(content=f"answer to {text}"))
        await asyncio.sleep(rule.delay or self.delay)
        if rule.crash:
            self._loop.create_task(self._crash(rule.crash))
            return False
        if rule.drop:
            writer.transport.abort()
            return False
        if rule.body is not None or rule.status != 200:
            message = rule.body if rule.body is not None else {"error": {"message": f"fake {rule.status}"}}
            await self._send(writer, rule.status, message, rule.headers)
            return True
        if len(prompt) + request["max_tokens"] > self.context:
            await self._send(writer, 400, {"error": {"message": self._too_long(len(prompt), request["max_tokens"])}})
            return True
        value = completion(self.model, prompt, rule, request)
        if self.sglang and "prompt_token_ids" in value:
            value["choices"][0]["prompt_token_ids"] = value.pop("prompt_token_ids")
        await self._send(writer, 200, value)
        return True

    def _too_long(self, prompt: int, wanted: int) -> str:
        if self.sglang:
            return (
                f"Requested token count exceeds the model's maximum context length of {self.context} tokens. You "
                f"requested a total of {prompt + wanted} tokens: {prompt} tokens from the input messages and {wanted} "
                "tokens for the completion."
            )
        return (
            f"This model's maximum context length is {self.context} tokens. However, you requested {prompt + wanted} "
            f"tokens ({prompt} in the messages, {wanted} in the completion)."
        )


def last_user(messages: list[dict[str, Any]]) -> str:
    return next((m["content"] for m in reversed(messages) if m["role"] == "user"), "")


def prompt_of(messages: list[dict[str, Any]]) -> list[int]:
    text = "".join(f"<{m['role']}>{m.get('content') or ''}{json.dumps(m.get('tool_calls') or '')}" for m in messages)
    return list((text + "<assistant>").encode("utf-8", "replace"))


def completion(model: str, prompt: list[int], rule: Rule, request: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": rule.content}
    if rule.reasoning is not None:
        message[rule.reasoning_key] = rule.reasoning
    if rule.tool_calls:
        message["tool_calls"] = rule.tool_calls
    said = (rule.reasoning or "") + (rule.content or "") + (json.dumps(rule.tool_calls) if rule.tool_calls else "")
    ids = list(said.encode())
    if rule.finish_reason != "length":
        ids.append(END)
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": rule.finish_reason}
    value: dict[str, Any] = {"id": "x", "object": "chat.completion", "model": model, "choices": [choice]}
    if request.get("return_token_ids") and rule.token_ids:
        value["prompt_token_ids"], choice["token_ids"] = prompt, ids
    return value

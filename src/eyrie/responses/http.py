"""A small HTTP/1.1 client on asyncio's protocols: keep-alive pool, one request a connection at a time, deadlines.

Thousands of requests a second from one core leave no room for a general client: this one parses with llhttp
(`httptools`, which vLLM's own server uses) and creates no task per request.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

MAX_BODY = 256 << 20
IDLE_S = 3.0  # uvicorn closes idle connections after 5 s: never race it


class Gone(Exception):
    """The connection could not be made, or broke before the answer was complete."""


class TimedOut(Exception):
    """The answer was not complete by the deadline; the connection was closed, which makes vLLM drop the request."""


@dataclass(slots=True)
class Reply:
    """One HTTP answer. headers: lower-case names."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


class Connection(asyncio.Protocol):
    """One connection; at most one request in flight."""

    __slots__ = ("_body", "_headers", "_parser", "_size", "client", "closed", "idle_since", "reply", "transport")

    def __init__(self, client: Client):
        self.client = client
        self.transport: Any = None
        self.reply: asyncio.Future[Reply] | None = None
        self.closed = False
        self.idle_since = 0.0
        self._parser: Any = None
        self._body: list[bytes] = []
        self._headers: dict[str, str] = {}
        self._size = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def send(self, data: bytes, reply: asyncio.Future[Reply]) -> None:
        self.reply = reply
        self._body, self._headers, self._size = [], {}, 0
        self._parser = self.client.parser(self)
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self.reply is None:  # nothing was asked: a broken peer
            self.abort()
            return
        self.client.last_bytes = self.client.loop.time()
        try:
            self._parser.feed_data(data)
        except Exception as error:  # httptools raises its own kinds; all mean that this is no HTTP
            self._fail(Gone(f"not an HTTP answer: {type(error).__name__}"))
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > MAX_BODY:
            raise ValueError("answer too large")
        self._body.append(body)

    def on_message_complete(self) -> None:
        parser, reply = self._parser, self.reply
        self._parser = self.reply = None
        keep = parser.should_keep_alive()
        if not keep:
            self.transport.close()
            self.closed = True
        if reply is not None and not reply.done():
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            reply.set_result(Reply(parser.get_status_code(), body, self._headers))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.client.forget(self)
        self._fail(Gone(str(exc) if exc else "the server closed the connection"))

    def _fail(self, error: Exception) -> None:
        reply, self.reply = self.reply, None
        if reply is not None and not reply.done():
            reply.set_exception(error)

    def abort(self) -> None:
        self.closed = True
        if self.transport is not None:
            self.transport.abort()


class Client:
    """Requests to one base URL. Concurrency is the caller's: every request in flight has its own connection."""

    def __init__(self, base_url: str, headers: dict[str, str] | None = None, connect_timeout: float = 10.0):
        from httptools import HttpResponseParser

        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{base_url!r} is no http(s) URL")
        self.base_url = base_url.rstrip("/")
        self.host, self.tls = parts.hostname, parts.scheme == "https"
        self.port = parts.port or (443 if self.tls else 80)
        self.prefix = parts.path.rstrip("/")
        self.connect_timeout = connect_timeout
        self.parser = HttpResponseParser
        self.loop = asyncio.get_running_loop()
        self.last_bytes = self.loop.time()
        self.opened = 0
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        extra = {"Host": parts.netloc.rpartition("@")[2], "Accept": "application/json", **(headers or {})}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in extra.items())

    async def get(self, path: str, timeout: float = 10.0) -> Reply:
        return await self._ask(f"GET {self.prefix}{path} HTTP/1.1\r\n{self._head}\r\n".encode("latin-1"), timeout)

    async def post(self, path: str, body: bytes, timeout: float) -> Reply:
        """POST JSON. timeout: seconds until TimedOut, connecting included. Raises Gone."""
        head = (
            f"POST {self.prefix}{path} HTTP/1.1\r\n{self._head}Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return await self._ask(head.encode("latin-1") + body, timeout)

    async def _ask(self, data: bytes, timeout: float) -> Reply:
        now = self.loop.time()
        end = now + timeout
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and now - connection.idle_since < IDLE_S:
                return await self._exchange(connection, data, end)
            connection.abort()
        return await self._exchange(await self._connect(end), data, end)

    async def _connect(self, end: float) -> Connection:
        left = min(self.connect_timeout, end - self.loop.time())
        context = ssl.create_default_context() if self.tls else None
        try:
            async with asyncio.timeout(max(left, 0.001)):
                _, connection = await self.loop.create_connection(
                    lambda: Connection(self), self.host, self.port, ssl=context
                )
        except TimeoutError:
            raise Gone(f"{self.host}:{self.port} did not accept a connection in {left:.0f} s") from None
        except OSError as error:
            raise Gone(str(error)) from None
        self.opened += 1
        self._all.add(connection)
        return connection

    async def _exchange(self, connection: Connection, data: bytes, end: float) -> Reply:
        reply: asyncio.Future[Reply] = self.loop.create_future()
        timer = self.loop.call_at(end, _expire, connection, reply)
        try:
            connection.send(data, reply)
            answer = await reply
        except asyncio.CancelledError:
            connection.reply = None
            connection.abort()
            raise
        finally:
            timer.cancel()
        if not connection.closed:
            connection.idle_since = self.loop.time()
            self._idle.append(connection)
        return answer

    def forget(self, connection: Connection) -> None:
        self._all.discard(connection)

    def cut(self) -> None:
        """Break every connection: requests in flight raise Gone, and the server drops them."""
        for connection in list(self._all):
            connection.abort()
        self._idle.clear()

    close = cut


def _expire(connection: Connection, reply: asyncio.Future[Reply]) -> None:
    connection.reply = None
    connection.abort()
    if not reply.done():
        reply.set_exception(TimedOut("no complete answer by the deadline"))

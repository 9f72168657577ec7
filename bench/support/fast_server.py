"""A fast fake chat-completions server on loopback for benches: answers after a given latency and counts.

    python fast_server.py PORT COUNT LATENCIES.json

LATENCIES.json: list of seconds, used round robin in the order of arrival. On standard output one JSON line: {"port"},
then {"first"} when the first chat request came, {"last", ...} when COUNT chat answers were sent.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import uvloop

PROMPT, ANSWER = 64, 128  # tokens


def chat_body() -> bytes:
    words = " ".join(["word"] * ANSWER)
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": words, "reasoning": None},
        "finish_reason": "stop",
        "token_ids": list(range(1000, 1000 + ANSWER)),
    }
    value = {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 0,
        "model": "bench",
        "choices": [choice],
        "usage": {"prompt_tokens": PROMPT, "completion_tokens": ANSWER, "total_tokens": PROMPT + ANSWER},
        "prompt_token_ids": list(range(500, 500 + PROMPT)),
    }
    return json.dumps(value).encode()


def http(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Server(asyncio.Protocol):
    """Counts over all connections in class attributes."""

    count = 0
    answered = 0
    parallel = 0
    max_parallel = 0
    wanted = 0
    latencies: list[float] = []  # noqa: RUF012 - one server a process
    chat = http(chat_body())
    models = http(json.dumps({"data": [{"id": "bench", "max_model_len": 32768}]}).encode())
    health = http(b"")

    def connection_made(self, transport):
        self.transport, self.buffer = transport, b""

    def data_received(self, data):
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end]
            at = head.lower().find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            self.buffer = self.buffer[end + 4 + length :]
            self.request(head)

    def request(self, head):
        if not head.startswith(b"POST /v1/chat/completions"):
            self.transport.write(self.models if b"/v1/models" in head else self.health)
            return
        cls = Server
        if cls.count == 0:
            say({"first": time.monotonic()})
        latency = cls.latencies[cls.count % len(cls.latencies)]
        cls.count += 1
        cls.parallel += 1
        cls.max_parallel = max(cls.max_parallel, cls.parallel)
        asyncio.get_running_loop().call_later(latency, self.answer)

    def answer(self):
        cls = Server
        cls.parallel -= 1
        self.transport.write(self.chat)
        cls.answered += 1
        if cls.answered == cls.wanted:
            say({"last": time.monotonic(), "max_parallel": cls.max_parallel})


def say(value):
    print(json.dumps(value), flush=True)


async def main():
    Server.wanted = int(sys.argv[2])
    Server.latencies = json.loads(Path(sys.argv[3]).read_text())
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", int(sys.argv[1]), backlog=4096)
    say({"port": server.sockets[0].getsockname()[1]})
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())

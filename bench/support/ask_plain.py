"""The least that a client can do: send prepared requests, drop the answers.

Arguments: URL PROMPTS.jsonl CONCURRENCY MAX_TOKENS MODEL.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import uvloop

from eyrie.responses.http import Client


async def worker(client: Client, bodies: Iterator[bytes]) -> None:
    for body in bodies:
        reply = await client.post("/v1/chat/completions", body, 3600.0)
        if reply.status != 200:
            raise SystemExit(reply.body[:500].decode())


async def main() -> None:
    url, path, concurrency, max_tokens, model = sys.argv[1:]
    bodies = []
    for line in Path(path).read_text().splitlines():
        request = {"model": model, "messages": json.loads(line)["conversations"], "max_tokens": int(max_tokens)}
        bodies.append(json.dumps({**request, "temperature": 0.0, "return_token_ids": True}).encode())
    client = Client(url)
    source = iter(bodies)
    await asyncio.gather(*(worker(client, source) for _ in range(int(concurrency))))


if __name__ == "__main__":
    uvloop.run(main())

"""A fake extract server: real HTTP, real files with locks, and the ways in which real ones go wrong."""

import asyncio
import fcntl
import os
import threading
import uuid
from collections import Counter

import toy_states
from aiohttp import web


class FakeExtract:
    """Serves /health, /v1/models and /v1/completions on 127.0.0.1.

    faults: {digest of ids or '*': [fault, ...]}, each consumed once; a fault is a name (see `_answer`).
    """

    def __init__(self, folder, target, model="toy", port=0, delay=0.0):
        self.folder, self.target, self.model, self.port, self.delay = folder, target, model, port, delay
        self.requests = Counter()
        self.faults = {}
        self.forever = None  # a fault that every request meets
        self.in_flight = self.peak = 0
        self.layers = len(toy_states.LAYERS)
        folder.mkdir(parents=True, exist_ok=True)
        self._ready = threading.Event()
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        self._ready.clear()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def stop(self):
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    def _serve(self):
        asyncio.run(self._main())

    async def _main(self):
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        runner = web.AppRunner(app, shutdown_timeout=0.2)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        await runner.cleanup()

    async def _health(self, request):
        return web.Response(status=500 if self.forever == "dead" else 200)

    async def _models(self, request):
        return web.json_response({"data": [{"id": self.model}]})

    async def _completions(self, request):
        body = await request.json()
        ids = tuple(body["prompt"])
        self.requests[ids] += 1
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            await asyncio.sleep(self.delay)
            queue = self.faults.get(ids) or self.faults.get("*") or []
            return await self._answer(ids, self.forever or (queue.pop(0) if queue else ""), request)
        finally:
            self.in_flight -= 1

    async def _answer(self, ids, fault, request):
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "cut":  # the connection breaks without an answer
            request.transport.close()
            return web.Response()
        if fault in ("500", "dead"):
            return web.json_response({"error": "engine core died"}, status=500)
        if fault == "400":
            return web.json_response({"error": "maximum context length is 4"}, status=400)
        values = toy_states.states(ids, self.layers)
        path = self.folder / f"cmpl-{uuid.uuid4().hex}.safetensors"
        echoed = list(ids)
        if fault == "nan":
            values[1, 2, 3] = float("nan")
        if fault == "short":  # prefix caching: only what was not cached
            values = values[2:]
        if fault == "echo":
            echoed = [*echoed[:-1], 0]
        lock = os.open(f"{path}.lock", os.O_CREAT | os.O_WRONLY, 0o644)
        fcntl.flock(lock, fcntl.LOCK_EX)
        asyncio.get_running_loop().call_later(0.01, self._write, path, ids, values, fault, lock)
        answer = {
            "choices": [
                {
                    "prompt_token_ids": echoed,
                    "token_ids": [toy_states.served_token(self.target, toy_states.states(ids)[-1, -1])],
                }
            ],
            "kv_transfer_params": {"hidden_states_path": str(path)},
        }
        if fault == "no-path":
            answer["kv_transfer_params"] = None
        return web.json_response(answer)

    def _write(self, path, ids, values, fault, lock):
        if fault != "no-file":
            written = toy_states.states_file(path, ids, values)
            os.chmod(written, 0o600)
            if fault == "truncated":
                written.write_bytes(written.read_bytes()[:-10])
            if fault == "empty":
                written.write_bytes(b"")
        os.close(lock)

"""An extract server for the tiny target: real HTTP, the tiny model's own states."""

import asyncio
import threading
import uuid

from aiohttp import web


class TinyServer:
    def __init__(self, tiny, folder):
        self.tiny, self.folder, self.requests = tiny, folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def close(self):
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    async def _main(self):
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        runner = web.AppRunner(app, shutdown_timeout=0.2)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._end.wait()
        await runner.cleanup()

    async def _health(self, request):
        return web.Response()

    async def _models(self, request):
        return web.json_response({"data": [{"id": "tiny"}]})

    async def _completions(self, request):
        import torch
        from safetensors.torch import save_file

        ids = (await request.json())["prompt"]
        self.requests += 1
        states = self.tiny.forward(ids)
        path = self.folder / f"{uuid.uuid4().hex}.safetensors"
        save_file({"hidden_states": states, "token_ids": torch.tensor(ids)}, path)
        model = self.tiny.model
        with torch.no_grad():
            token = int(model.lm_head(model.model.norm(states[-1, -1])).argmax())
        choice = {"prompt_token_ids": ids, "token_ids": [token]}
        return web.json_response({"choices": [choice], "kv_transfer_params": {"hidden_states_path": str(path)}})

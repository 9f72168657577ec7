"""The capture client: token ids in, one states file out, over vLLM's /v1/completions.

A request is the sample's token ids with max_tokens=1. The server runs one prefill, writes the states where its
connector is told to, and names the file in `kv_transfer_params.hidden_states_path`. A companion `.lock` file is
held (flock) until the write is complete.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.hidden_states.settings import HiddenStatesSettings


class Gone(Exception):
    """The server does not answer, or answers 5xx: wait for it, nothing is wrong with the sample."""


class Refused(Exception):
    """The server refuses this sample for good (4xx); str() is its reason."""


class Invalid(Exception):
    """The answer is not what was asked for: other tokens, no file, a part of a file. Worth another attempt."""


@dataclass(frozen=True)
class Captured:
    """A states file as the server left it, and the token it would have answered (greedy)."""

    path: Path
    token: int
    seconds: float


def base_url(url: str) -> str:
    """'http://host:port' from that, with or without '/v1' and a final '/'."""
    url = url.rstrip("/")
    return url[: -len("/v1")] if url.endswith("/v1") else url


class Endpoint:
    """One extract server."""

    def __init__(self, url: str, model: str, settings: HiddenStatesSettings, session: Any):
        self.url = base_url(url)
        self.model = model
        self.settings = settings
        self.session = session
        self.slots = asyncio.Semaphore(settings.concurrency)
        self.timeouts = 0  # in a row: a server that accepts and never answers hangs

    async def capture(self, ids: Sequence[int]) -> Captured:
        """Capture one sample. Raises Gone, Refused, Invalid."""
        started = time.monotonic()
        answer = await self._post(
            {
                "model": self.model,
                "prompt": list(ids),
                "max_tokens": 1,
                "temperature": 0.0,
                "return_token_ids": True,
            }
        )
        try:
            choice = answer["choices"][0]
            echoed, token = choice["prompt_token_ids"], int(choice["token_ids"][0])
            params = answer.get("kv_transfer_params") or {}
            path = params.get("hidden_states_path") or params.get("handle")
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Invalid(f"the answer lacks {error}: is this an extract server?") from None
        if not path:
            raise Invalid("the answer names no states file: is this an extract server?")
        await self._written(Path(path))
        if echoed != list(ids):
            remove(Path(path))
            raise Invalid(f"the server took {len(echoed or [])} other token ids than the {len(ids)} sent")
        return Captured(Path(path), token, time.monotonic() - started)

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        import aiohttp

        limit = aiohttp.ClientTimeout(total=self.settings.request_timeout_s)
        try:
            async with self.session.post(f"{self.url}/v1/completions", json=body, timeout=limit) as response:
                if response.status >= 500 or response.status in (408, 425, 429):
                    raise Gone(f"{self.url} answered {response.status}")
                if response.status >= 400:
                    raise Refused(f"{response.status} from {self.url}: {(await response.text())[:300]}")
                answer = await response.json()
        except TimeoutError:
            self.timeouts += 1
            raise Gone(f"{self.url} did not answer within {self.settings.request_timeout_s:.0f} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Gone(f"{self.url}: {type(error).__name__} {error}") from None
        self.timeouts = 0
        if not isinstance(answer, dict):
            raise Invalid("the answer is no JSON object")
        return answer

    async def _written(self, path: Path) -> None:
        """Wait until the server has written the file: its lock is free, and the file is there."""
        deadline = time.monotonic() + self.settings.write_timeout_s
        pause = 0.002
        while True:
            if not _locked(path) and path.exists():
                lock_path(path).unlink(missing_ok=True)
                return
            if time.monotonic() > deadline:
                raise Invalid(f"the server did not write {path.name} within {self.settings.write_timeout_s:.0f} s")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.1)

    async def healthy(self) -> bool:
        import aiohttp

        try:
            async with self.session.get(f"{self.url}/health", timeout=aiohttp.ClientTimeout(total=5)) as response:
                return bool(response.status == 200)
        except (TimeoutError, aiohttp.ClientError, OSError):
            return False

    async def models(self) -> list[dict[str, Any]]:
        """What /v1/models lists. Raises Gone."""
        import aiohttp

        try:
            async with self.session.get(f"{self.url}/v1/models", timeout=aiohttp.ClientTimeout(total=10)) as response:
                if response.status != 200:
                    raise EyrieError(
                        f"{self.url}/v1/models answered {response.status}.",
                        code="endpoint-wrong",
                        todo="Check the address of the extract server (server.endpoints).",
                    )
                return list((await response.json())["data"])
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError, KeyError) as error:
            raise Gone(f"{self.url}: {type(error).__name__} {error}") from None


def lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _locked(path: Path) -> bool:
    """Whether the server still holds the file's lock (no lock file: it does not)."""
    try:
        fd = os.open(lock_path(path), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def remove(path: Path) -> None:
    """Remove a states file of the server's and its lock."""
    path.unlink(missing_ok=True)
    lock_path(path).unlink(missing_ok=True)

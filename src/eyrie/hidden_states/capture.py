"""The bulk: many samples, several servers, one store. Nothing doubled, nothing lost."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from eyrie.core import atomic
from eyrie.core.accounting import Account
from eyrie.core.errors import EyrieError, Interrupted
from eyrie.core.stage import Work
from eyrie.hidden_states import convert, files
from eyrie.hidden_states.client import Captured, Endpoint, Gone, Invalid, Refused, remove
from eyrie.hidden_states.corpus import Corpus, Row
from eyrie.hidden_states.disk import DiskGuard
from eyrie.hidden_states.keys import Shape, endpoint_of
from eyrie.hidden_states.settings import HiddenStatesSettings
from eyrie.hidden_states.store import Entry, Store
from eyrie.serve import key

log = logging.getLogger(__name__)
COMMIT_EVERY = 64
COMMIT_SECONDS = 2.0
GIVE_UP_AFTER = 20  # failed samples in a row: it is not the samples
DEATHS_PER_SAMPLE = 5
REVIVE_AFTER_S = 5.0


@dataclass
class Item:
    """A row on its way, with what happened to it so far."""

    row: Row
    invalid: int = 0
    gone: int = 0
    size: int = 0


@dataclass
class Result:
    """What one capture run did: rows by outcome, tokens and bytes captured, seconds."""

    captured: int = 0
    tokens: int = 0
    bytes: int = 0
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)
    failures: dict[str, tuple[str, str]] = field(default_factory=dict)  # key -> (reason, detail)


class Capture:
    """Captures rows into a store through extract servers.

    endpoints: base URLs. revive(url, why) brings a dead or hung server back (or does nothing, for servers that
    others run); it runs in a thread. originals: where bf16 copies of chosen samples go (fp8 stores only).
    """

    def __init__(
        self,
        store: Store,
        shape: Shape,
        corpus: Corpus,
        settings: HiddenStatesSettings,
        endpoints: Sequence[str],
        model: str,
        work: Work,
        guard: DiskGuard,
        revive: Callable[[str, str], None] | None = None,
        originals: Originals | None = None,
    ):
        self.store, self.shape, self.corpus, self.settings = store, shape, corpus, settings
        self.urls, self.model, self.work, self.guard = list(endpoints), model, work, guard
        self.revive, self.originals = revive, originals
        self.result = Result()
        self._pending: list[Entry] = []
        self._committed = time.monotonic()
        self._in_a_row = 0
        self._mutex = threading.Lock()

    def run(self, rows: Sequence[Row]) -> Result:
        """Capture all rows (unique keys). Raises Interrupted on a stop request, EyrieError when it cannot go on."""
        return asyncio.run(self._run(rows))

    async def _run(self, rows: Sequence[Row]) -> Result:
        import aiohttp

        started = time.monotonic()
        self._threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="states")
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, headers=key.headers()) as session:
            self._endpoints = [Endpoint(url, self.model, self.settings, session) for url in self.urls]
            self._queues: list[deque[Item]] = [deque() for _ in self._endpoints]
            for row in rows:
                self._queues[endpoint_of(row.key, len(self._endpoints))].append(Item(row))
            self._left = len(rows)
            self._recovering: dict[int, asyncio.Task[None]] = {}
            workers = [
                asyncio.create_task(self._worker(index))
                for index in range(len(self._endpoints))
                for _ in range(self.settings.concurrency)
            ]
            watch = asyncio.create_task(self._watch())
            try:
                await _until_done(watch, workers)
            finally:
                for task in (*workers, watch, *self._recovering.values()):
                    task.cancel()
                await asyncio.gather(*workers, watch, *self._recovering.values(), return_exceptions=True)
                self._threads.shutdown(wait=True)
                self._commit()
                self.result.seconds += time.monotonic() - started
        return self.result

    async def _watch(self) -> None:
        """Ends when all rows are settled; raises Interrupted on a stop request."""
        while self._left:
            if self.work.stop_requested:
                raise Interrupted("asked to stop", code="interrupted", todo="Run again: it resumes.")
            await asyncio.sleep(0.1)

    async def _worker(self, index: int) -> None:
        endpoint = self._endpoints[index]
        while self._left:
            item = self._take(index)
            if item is None:
                await asyncio.sleep(0.02)
                continue
            item.size = files.file_bytes(item.row.tokens, len(self.shape.layers), self.shape.hidden_size, "bf16")
            try:
                await self._room(item.size)
                self.guard.promise(item.size)
                try:
                    await self._capture(endpoint, item)
                finally:
                    self.guard.settle(item.size)
            except Gone as error:
                item.gone += 1
                self._queues[index].appendleft(item)
                if item.gone > DEATHS_PER_SAMPLE:
                    raise EyrieError(
                        f"the server was lost {item.gone} times while row {item.row.row} was with it: {error}",
                        where=endpoint.url,
                        code="server-keeps-dying",
                        todo="Look into the server's log (memory?); what is captured is kept.",
                    ) from None
                await self._recover(index, str(error))
            except Refused as error:
                self._failed(item, "refused", str(error))
            except Invalid as error:
                item.invalid += 1
                if item.invalid > self.settings.max_retries:
                    self._failed(item, getattr(error, "code", "invalid"), str(error))
                else:
                    self._queues[index].append(item)
            if len(self._pending) >= COMMIT_EVERY or time.monotonic() - self._committed > COMMIT_SECONDS:
                await self._commit_async()

    def _take(self, index: int) -> Item | None:
        """The next item of this server's share, else one of the longest queue."""
        if self._queues[index]:
            return self._queues[index].popleft()
        longest = max(self._queues, key=len)
        return longest.pop() if longest else None

    async def _room(self, size: int) -> None:
        while why := self.guard.refusal(size):
            await self._commit_async()
            self.guard.pause(why)
            self.work.progress.update(self.work.progress.done, paused=why)
            await asyncio.sleep(0.3)
        if self.work.progress.detail.pop("paused", None):
            self.guard.resume()

    async def _capture(self, endpoint: Endpoint, item: Item) -> None:
        ids = self.corpus.ids(item.row.row)
        captured = await endpoint.capture(ids)
        loop = asyncio.get_running_loop()
        try:
            entry, warnings = await loop.run_in_executor(self._threads, self._keep, captured, item.row, ids)
        except files.BadFile as error:
            remove(captured.path)
            problem = Invalid(str(error))
            problem.code = error.code  # type: ignore[attr-defined]
            raise problem from None
        except OSError as error:
            remove(captured.path)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Gone(f"the disk is full: {error}") from None
            raise
        self._in_a_row = 0
        self._settle(item, entry, warnings)

    def _keep(self, captured: Captured, row: Row, ids: list[int]) -> tuple[Entry, list[str]]:
        """Check the server's file and give it its place (in a thread)."""
        return keep(self.store, self.shape, captured.path, row, ids, self.originals)

    def _settle(self, item: Item, entry: Entry, warnings: list[str]) -> None:
        self._left -= 1
        self.result.captured += 1
        self.result.tokens += entry.tokens
        self.result.bytes += entry.bytes
        self.result.warnings += [f"row {item.row.row}: {text}" for text in warnings]
        self._pending.append(entry)
        self.work.progress.advance(1, entry.bytes)

    def _failed(self, item: Item, reason: str, detail: str) -> None:
        log.warning("row %d failed (%s): %s", item.row.row, reason, detail)
        self._left -= 1
        self._in_a_row += 1
        self.result.failures[item.row.key] = (reason, f"row {item.row.row}: {detail}")
        if self._in_a_row >= GIVE_UP_AFTER:
            raise EyrieError(
                f"{self._in_a_row} samples failed one after another, the last with: {detail}",
                code="capture-failing",
                why=f"reason {reason}",
                todo="This is not a matter of single samples: check the extract server's settings.",
            )

    async def _commit_async(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._commit)

    def _commit(self) -> None:
        with self._mutex:
            batch, self._pending = self._pending, []
            self._committed = time.monotonic()
            if batch:
                self.store.record(batch)

    # -- outages -------------------------------------------------------------------------------------------

    async def _recover(self, index: int, why: str) -> None:
        """Wait until a server is back; one recovery per server, its workers all wait for it."""
        task = self._recovering.get(index)
        if task is None or task.done():
            task = self._recovering[index] = asyncio.create_task(self._wait_back(index, why))
        await asyncio.shield(task)

    def _all_away(self) -> bool:
        """Whether no server is left that could take over."""
        return len([task for task in self._recovering.values() if not task.done()]) == len(self._endpoints)

    async def _wait_back(self, index: int, why: str) -> None:
        endpoint = self._endpoints[index]
        started, revived = time.monotonic(), 0.0
        hung = endpoint.timeouts > 0
        log.warning("%s; waiting for it", why)
        while True:
            if not hung and await endpoint.healthy():
                self.work.progress.detail.pop("waiting", None)
                return
            waited = time.monotonic() - started
            if waited > self.settings.outage_wait_s and self._all_away():
                raise EyrieError(
                    f"the extract server has been away for {waited:.0f} s: {why}",
                    where=endpoint.url,
                    code="server-gone",
                    todo="Bring it up (playbooks/serve.yml) and run again: it resumes.",
                )
            self.work.progress.update(self.work.progress.done, waiting=why)
            if self.revive and (hung or waited > REVIVE_AFTER_S) and time.monotonic() - revived > 60:
                revived = time.monotonic()
                await asyncio.get_running_loop().run_in_executor(None, self.revive, endpoint.url, why)
                endpoint.timeouts = 0
            hung = False
            await asyncio.sleep(0.5)


async def _until_done(watch: asyncio.Task[None], workers: list[asyncio.Task[None]]) -> None:
    """Wait until `watch` says that all rows are settled, or raise what the first failing task raised.

    Workers may still wait for a server that is gone: what they would have done, others did.
    """
    waiting: set[asyncio.Task[None]] = {watch, *workers}
    while not watch.done():
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    watch.result()


@dataclass(frozen=True)
class Originals:
    """bf16 copies of a few samples beside an fp8 store, for the fidelity check: folder and keys."""

    folder: Path
    keys: frozenset[str]

    def take(self, source: Path, key: str) -> None:
        if key in self.keys:
            self.folder.mkdir(parents=True, exist_ok=True)
            atomic.write_bytes(self.folder / f"{key}.safetensors", source.read_bytes())


def keep(
    store: Store, shape: Shape, source: Path, row: Row, ids: Sequence[int], originals: Originals | None = None
) -> tuple[Entry, list[str]]:
    """Check a bf16 states file as served, convert it if the store is fp8, and file it. Raises BadFile."""
    warnings = files.check_file(source, shape, ids, dtype="bf16")
    if shape.dtype == "fp8":
        if originals:
            originals.take(source, row.key)
        convert.to_fp8(source)
    digest = files.checksum(source)
    size = source.stat().st_size
    store.put(source, row.key)
    layers = ",".join(map(str, shape.layers))
    return Entry(row.key, row.tokens, size, shape.dtype, layers, digest, shape.digest), warnings


def account_of(total: int, failures: dict[str, str]) -> Account:
    """Books of a capture: rows in, rows kept, rows failed by reason (reasons by row)."""
    account = Account()
    account.keep(total - len(failures))
    for row, reason in failures.items():
        account.fail(reason, row)
    return account

"""A pool of worker processes whose death, silence or hunger costs one order, never the others."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import types
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.dataset import memory, worker

PAGE = os.sysconf("SC_PAGE_SIZE")
LOOK_S = 0.5

Order = tuple[Hashable, str, tuple[Any, ...]]
Event = tuple[Hashable, str, Any]


def warm() -> None:
    """Start the process that workers are forked from (eyrie.dataset.warm); it ends with this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["eyrie.dataset.warm"])
    memory.keep()
    with _without_main():
        forkserver.ensure_running()


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep multiprocessing from importing the program's own main module into every worker: none needs it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@dataclass
class Worker:
    process: Any
    pipe: Connection
    order: Order | None = None
    heard: float = field(default_factory=time.monotonic)


class Pool:
    """At most `size` orders at once. memory_mb: resident memory of one worker; stall_s: silence that ends one."""

    def __init__(self, size: int, memory_mb: int = 0, stall_s: float = 0):
        self.size, self.memory_mb, self.stall_s = max(1, size), memory_mb, stall_s
        self.queue: deque[Order] = deque()
        self.workers: list[Worker] = []
        self._context = multiprocessing.get_context("forkserver")
        warm()

    @property
    def busy(self) -> list[Worker]:
        return [one for one in self.workers if one.order is not None]

    @property
    def idle(self) -> bool:
        """Nothing queued and nothing under way."""
        return not self.queue and not self.busy

    def order(self, key: Hashable, kind: str, *arguments: Any) -> None:
        self.queue.append((key, kind, arguments))
        self._dispatch()

    def forget(self, match: Any) -> None:
        """Drop queued orders whose key matches."""
        self.queue = deque(order for order in self.queue if not match(order[0]))

    def events(self, timeout: float = LOOK_S) -> Iterator[Event]:
        """What happened since the last look; waits up to `timeout` for the first thing."""
        self._dispatch()
        pipes = {one.pipe: one for one in self.busy}
        for pipe in wait(list(pipes), timeout) if pipes else []:
            yield from self._heard(pipes[pipe])  # type: ignore[index]
        yield from self._watched()
        self._dispatch()

    def _heard(self, one: Worker) -> Iterator[Event]:
        try:
            key, event, value = one.pipe.recv()
        except (EOFError, OSError):
            yield from self._lost(one, None)
            return
        one.heard = time.monotonic()
        if event in (worker.DONE, worker.ERROR):
            one.order = None
        yield key, event, value

    def _watched(self) -> Iterator[Event]:
        """End workers that took too much memory or said nothing for too long."""
        now = time.monotonic()
        for one in self.busy:
            if self.memory_mb and _resident(one.process.pid) > self.memory_mb << 20:
                yield from self._lost(one, worker.memory_error())
            elif self.stall_s and now - one.heard > self.stall_s:
                error = EyrieError(
                    f"a worker said nothing for {self.stall_s:g} s and was ended.",
                    where="dataset.stall_s",
                    todo="Run again: it resumes. Raise eyrie_dataset_stall_s if the disk or the network is that slow.",
                    code="worker-stalled",
                )
                yield from self._lost(one, error)

    def _lost(self, one: Worker, error: EyrieError | None) -> Iterator[Event]:
        order = one.order
        one.process.kill()
        one.process.join()
        one.pipe.close()
        self.workers.remove(one)
        if error is None:
            code = one.process.exitcode
            how = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
            error = EyrieError(
                f"a worker ended by {how}.",
                why="Killed from outside, or by the kernel for want of memory." if code == -9 else "",
                todo="Run again: finished parts are kept.",
                code="worker-died",
            )
        if order is not None:
            yield order[0], worker.ERROR, error.as_dict()

    def _dispatch(self) -> None:
        while self.queue:
            free = next((one for one in self.workers if one.order is None), None)
            if free is None:
                if len(self.workers) >= self.size:
                    return
                free = self._start()
            order = self.queue.popleft()
            free.order, free.heard = order, time.monotonic()
            try:
                free.pipe.send(order)
            except (BrokenPipeError, OSError):  # it died idle: nothing is lost but the worker
                self.workers.remove(free)
                free.process.join()
                free.pipe.close()
                self.queue.appendleft(order)

    def _start(self) -> Worker:
        mine, theirs = self._context.Pipe()
        arguments = (theirs, self.memory_mb, dict(os.environ))
        process = self._context.Process(target=worker.main, args=arguments, daemon=True)
        with _without_main():
            process.start()
        theirs.close()
        one = Worker(process, mine)
        self.workers.append(one)
        return one

    def close(self) -> None:
        """End all workers; what they finished is on disk."""
        for one in self.workers:
            one.process.kill()
        for one in self.workers:
            one.process.join()
            one.pipe.close()
        self.workers.clear()
        self.queue.clear()


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * PAGE
    except (OSError, IndexError, ValueError):
        return 0

"""A worker process: takes one order at a time over a pipe and answers with events. It dies with its parent."""

from __future__ import annotations

import gc
import os
import signal
import traceback
from multiprocessing.connection import Connection
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.dataset import memory

#: kinds of orders
CUT, FETCH, TASK = "cut", "fetch", "task"
#: kinds of events
PART, SAID, DONE, ERROR = "part", "said", "done", "error"
HEADROOM_MB = 1024  # the hard limit lies above the one that the parent watches: interpreter, libraries, buffers


def main(pipe: Connection, memory_mb: int, environment: dict[str, str]) -> None:
    """Serve orders (key, kind, arguments) until the pipe closes, in the environment that the stage has now."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a supervisor signals the group; the parent ends us
    _die_together()
    os.environ.clear()
    os.environ.update(environment)
    _limit(memory_mb)
    memory.keep()
    gc.disable()  # rows are trees: nothing is left to the collector, which would look at all of them again and again
    while True:
        try:
            key, kind, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = _serve(kind, arguments, lambda event, value, key=key: pipe.send((key, event, value)))
        except BaseException as error:
            pipe.send((key, ERROR, described(error, _folder(arguments))))
            if not isinstance(error, Exception):
                raise
        else:
            pipe.send((key, DONE, answer))


def _serve(kind: str, arguments: tuple[Any, ...], emit: Any) -> Any:
    if kind == CUT:
        from eyrie.dataset import tasks

        return tasks.cut(*arguments)
    if kind == FETCH:
        from eyrie.dataset import hub

        name, source, access, locked = arguments
        return hub.fetch(name, source, access, locked, lambda what, done, total: emit(SAID, (what, done, total)))
    from eyrie.dataset import process

    job, task = arguments
    process.run(job, task, lambda part: emit(PART, part.as_dict()))
    return None


def _folder(arguments: tuple[Any, ...]) -> str:
    """The folder that an order writes to."""
    first = arguments[0]
    return str(getattr(first, "folder", "") or getattr(arguments[-2], "cache", ""))


def described(error: BaseException, folder: str = "") -> dict[str, Any]:
    """An error as data for the parent; what is not ours names its place."""
    if isinstance(error, EyrieError):
        return error.as_dict()
    if isinstance(error, MemoryError) or "realloc of size" in str(error) or "malloc of size" in str(error):
        return memory_error().as_dict()
    if isinstance(error, OSError):
        from eyrie.dataset import disk

        if error.errno in disk.FULL:
            return disk.disk_full(error, folder).as_dict()
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    where = f"{os.path.basename(frame[0].filename)}:{frame[0].lineno}" if frame else ""
    return EyrieError(f"{type(error).__name__}: {error}", where=where, code="unexpected").as_dict()


def memory_error() -> EyrieError:
    return EyrieError(
        "the worker needs more memory than it may take.",
        where="dataset.worker_memory_mb",
        todo="Raise eyrie_dataset_worker_memory_mb, or look for a single very large row.",
        code="worker-memory",
    )


def _limit(memory_mb: int) -> None:
    """A hard limit on private memory, as a backstop to the parent's watch on resident memory."""
    import resource

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if memory_mb:
        size = (memory_mb + HEADROOM_MB) << 20
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        if hard == resource.RLIM_INFINITY or hard > size:
            resource.setrlimit(resource.RLIMIT_DATA, (size, hard))


def _die_together() -> None:
    """End with the stage, however that ends (kill -9 too), and with the process that forked this one."""
    import ctypes
    import multiprocessing
    import threading

    stage = multiprocessing.parent_process()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    def watch() -> None:
        if stage is not None:
            stage.join()
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()

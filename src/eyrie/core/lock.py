"""One writer per stage: an flock that names its owner."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

#: a reader that looks whether a lock is held (`holder`) has it for microseconds; a real owner for longer than this
LOOK_S = 0.25


class Held(Exception):
    """Another process holds the lock; `owner` is what it wrote ({pid, fingerprint, unit, since})."""

    def __init__(self, path: Path, owner: dict[str, Any]):
        super().__init__(f"{path} is held by {owner}")
        self.path, self.owner = path, owner


class Lock:
    """An exclusive flock, released by the kernel when its holder dies, even by kill -9."""

    def __init__(self, path: Path, owner: dict[str, Any] | None = None):
        self.path = path
        self.owner = {"pid": os.getpid(), **(owner or {})}
        self._fd: int | None = None

    def acquire(self) -> Lock:
        """Take the lock or raise Held."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + LOOK_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(fd)
                    raise Held(self.path, read_owner(self.path)) from None
                time.sleep(0.01)
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(self.owner).encode(), 0)
        self._fd = fd
        return self

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Lock:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def read_owner(path: Path) -> dict[str, Any]:
    """What the holder wrote about itself; {} when unreadable."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, json.JSONDecodeError):
        return {}
    return value if isinstance(value, dict) else {}


def _alive(pid: Any) -> bool:
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return True
    except (OSError, TypeError, ValueError):
        return False
    return True


def holder(path: Path) -> dict[str, Any] | None:
    """The owner if some process holds the lock now, else None. Read-only."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = read_owner(path)
        return owner if _alive(owner.get("pid")) else {}  # the text of an earlier holder says nothing of this one
    finally:
        os.close(fd)
    return None

"""The disk under the states: room before the first byte, and a pause instead of ENOSPC."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.hidden_states.settings import HiddenStatesSettings

SPARE_INODES = 1000
LOOK_EVERY_S = 0.25


def existing(path: Path) -> Path:
    """The nearest folder above that is there (to ask its file system)."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def space(path: Path, statvfs: Callable[..., Any] = os.statvfs) -> dict[str, int]:
    """{'free', 'total', 'free_inodes', 'inodes'} of the file system under a path, bytes and counts."""
    stat = statvfs(existing(path))
    return {
        "free": stat.f_bavail * stat.f_frsize,
        "total": stat.f_blocks * stat.f_frsize,
        "free_inodes": stat.f_favail,
        "inodes": stat.f_files,
    }


class DiskGuard:
    """Says whether another sample fits, counting what is promised to samples in flight."""

    def __init__(
        self,
        path: Path,
        settings: HiddenStatesSettings,
        statvfs: Callable[..., Any] = os.statvfs,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.path = path
        self.settings = settings
        self.promised = 0
        self._statvfs = statvfs
        self._clock = clock
        self._looked = -1e9
        self._seen: dict[str, int] = {}
        self._since: float | None = None

    def refusal(self, size: int) -> str:
        """'' when `size` more bytes fit under the high-water mark, else why not."""
        now = self._clock()
        if now - self._looked >= LOOK_EVERY_S:
            self._seen, self._looked = space(self.path, self._statvfs), now
        seen = self._seen
        floor = max(self.settings.reserve_bytes, (1 - self.settings.high_water) * seen["total"])
        left = seen["free"] - self.promised - size
        if left < floor:
            return (
                f"the disk is at its high-water mark: {seen['free'] / 1e9:.2f} GB free, "
                f"{floor / 1e9:.2f} GB must stay free"
            )
        if seen["inodes"] and seen["free_inodes"] < SPARE_INODES:
            return f"only {seen['free_inodes']} inodes are free"
        return ""

    def pause(self, why: str) -> None:
        """Note a pause; raises once it has lasted longer than the limit."""
        now = self._clock()
        if self._since is None:
            self._since = now
        limit = self.settings.pause_limit_s
        if limit and now - self._since > limit:
            raise EyrieError(
                f"Capture has waited {now - self._since:.0f} s for disk space: {why}.",
                where=str(self.path),
                code="disk-high-water",
                todo="Free space, choose storage fp8 or window, or a larger disk; then run again: it resumes.",
            )

    def resume(self) -> None:
        self._since = None

    def promise(self, size: int) -> None:
        self.promised += size

    def settle(self, size: int) -> None:
        """A promised sample is on disk (or given up): look again, its bytes are in the file system's count now."""
        self.promised -= size
        self._looked = -1e9

"""Progress of a running stage: done/total, rate, ETA, bytes; written at most once a second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from eyrie.core import atomic

WINDOW_S = 60.0


class Progress:
    """Counts work and leaves it where `eyrie status` reads it.

    `done` includes what earlier runs finished; the rate counts only this run, over the last minute.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic):
        self.path = path
        self._clock = clock
        self._samples: list[tuple[float, int]] = []
        self._written = -1e9
        self.phase, self.unit = "starting", "items"
        self.done, self.total, self.bytes = 0, 0, 0
        self.detail: dict[str, Any] = {}

    def start(self, phase: str, total: int = 0, unit: str = "items", done: int = 0) -> None:
        """Begin a phase; `done` items were there already (resume)."""
        self.phase, self.total, self.unit, self.done = phase, total, unit, done
        self._samples = [(self._clock(), done)]
        self.write(force=True)

    def advance(self, count: int = 1, size: int = 0, **detail: Any) -> None:
        self.update(self.done + count, self.bytes + size, **detail)

    def update(self, done: int, size: int | None = None, **detail: Any) -> None:
        """Set absolute counts; `detail` holds stage figures (loss, endpoint, paused reason)."""
        self.done = done
        if size is not None:
            self.bytes = size
        self.detail.update(detail)
        self.write()

    @property
    def rate(self) -> float:
        """Items per second over the last minute."""
        if not self._samples:
            return 0.0
        (then, before), (now, done) = self._samples[0], (self._clock(), self.done)
        return (done - before) / (now - then) if now > then else 0.0

    @property
    def eta_s(self) -> float | None:
        rate = self.rate
        return (self.total - self.done) / rate if rate > 0 and self.total >= self.done else None

    def as_dict(self) -> dict[str, Any]:
        eta = self.eta_s
        return {
            "phase": self.phase,
            "done": self.done,
            "total": self.total,
            "unit": self.unit,
            "rate": round(self.rate, 3),
            "eta_s": None if eta is None else round(eta, 1),
            "bytes": self.bytes,
            "detail": self.detail,
            "pid": os.getpid(),
            "updated": time.time(),
        }

    def write(self, force: bool = False) -> None:
        now = self._clock()
        if not force and now - self._written < 1.0:
            return
        self._written = now
        self._samples.append((now, self.done))
        while len(self._samples) > 2 and now - self._samples[0][0] > WINDOW_S:
            self._samples.pop(0)
        with suppress(OSError):  # progress is a courtesy: a full disk must not stop the work that may free it
            atomic.write_json(self.path, self.as_dict())

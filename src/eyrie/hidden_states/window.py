"""Window storage: when the disk is smaller than the corpus, states are captured while the draft trains.

The order in which training visits samples is known (a seed decides it). A feeder captures ahead of the trainer into a
window of at most `window_bytes`, deletes what has been trained when room is needed - first what is needed again last -
and captures it anew for the next epoch. What lies in the window is by its manifest: after a kill -9 the feeder starts
at the trainer's checkpoint, uses what is there and captures the rest.
"""

from __future__ import annotations

import bisect
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.accounting import Account
from eyrie.core.errors import EyrieError, Interrupted
from eyrie.core.pipeline import Context
from eyrie.core.progress import Progress
from eyrie.core.stage import Outcome, Work
from eyrie.hidden_states import files, manifest
from eyrie.hidden_states.capture import Result
from eyrie.hidden_states.corpus import Row
from eyrie.hidden_states.keys import Shape
from eyrie.hidden_states.store import SUFFIX, Store

log = logging.getLogger(__name__)
CHUNK_ROWS = 128


def declare(ctx: Context, todo: Any) -> Outcome:
    """The stage's outcome in window mode: what will be captured, nothing captured yet."""
    import json

    shape: Shape = todo.shape
    lines, size = [], 0
    for row in todo.rows:
        length = files.file_bytes(row.tokens, len(shape.layers), shape.hidden_size, shape.dtype)
        size += length
        lines.append(
            json.dumps(
                {
                    "row": row.row,
                    "key": row.key,
                    "length": row.tokens,
                    "bytes": length,
                    "dtype": shape.dtype,
                    "layers": ",".join(map(str, shape.layers)),
                    "checksum": "",
                }
            )
        )
    (ctx.out / manifest.LINKS).mkdir(parents=True, exist_ok=True)
    atomic.write_text(ctx.out / manifest.NAME, "\n".join(lines) + "\n")
    account = Account()
    account.keep(len(todo.rows))
    figures = {"rows": len(todo.rows), "corpus_bytes": size, "window_bytes": ctx.settings.window_bytes}
    return Outcome(account, [manifest.LINKS, manifest.NAME], figures, 0)


@dataclass(frozen=True)
class Visit:
    """One step's need: the rows of the training view that the trainer reads for it, over all its processes.

    step: the training step (0-based, global) after which they are trained; -1 for validation batches, whose rows are
    over once they were read.
    """

    epoch: int
    step: int
    rows: tuple[Row, ...]

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(row.key for row in self.rows)


class Schedule:
    """All visits in order, and when each key is needed next."""

    def __init__(self, visits: Sequence[Visit]):
        self.visits = list(visits)
        self._uses: dict[str, list[int]] = defaultdict(list)
        for number, visit in enumerate(self.visits):
            for key in visit.keys:
                self._uses[key].append(number)

    def next_use(self, key: str, after: int) -> int:
        """The first visit number >= after that needs the key; len(visits) when none does."""
        uses = self._uses.get(key, [])
        at = bisect.bisect_left(uses, after)
        return uses[at] if at < len(uses) else len(self.visits)


class Feeder:
    """Keeps the window filled ahead of the trainer. `capture(rows)` captures rows into the store (blocking)."""

    def __init__(
        self,
        store: Store,
        shape: Shape,
        schedule: Schedule,
        window_bytes: int,
        capture: Callable[[Sequence[Row]], Result],
        start: int = 0,
    ):
        self.store, self.shape, self.schedule, self.window_bytes = store, shape, schedule, window_bytes
        self.capture = capture
        self.done = start  # visits that are over
        self.fed = start  # visits whose states are in the window
        self.peak = 0
        self.captured = 0
        self.deleted = 0
        self.error: BaseException | None = None
        self._present: dict[str, int] = {}
        self._steps, self._validated = 0, -1
        self._read: set[int] = set()
        self._validation = {row.row for visit in schedule.visits if visit.step < 0 for row in visit.rows}
        self._used = 0
        self._changed = threading.Condition()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)

    def make_room(self, size: int) -> None:
        """Before the start: take in what lies in the window, and delete until `size` bytes are free (for the probe)."""
        self._present = recover(self.store)
        self._used = sum(self._present.values())
        while self._present and self._used + size > self.window_bytes:
            self._delete(max(self._present, key=lambda key: (self.schedule.next_use(key, self.done), key)))
        if size > self.window_bytes:
            raise EyrieError(
                f"the probe's samples take {size} bytes, the window has {self.window_bytes}.",
                code="window-too-small",
                todo=f"Set window_bytes to at least {2 * size}, or probe_samples lower.",
            )

    def start(self) -> None:
        self.make_room(0)
        self.peak = self._used
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        self._thread.join(timeout=120)

    def trained(self, global_step: int) -> None:
        """The trainer has finished `global_step` steps: their visits are over."""
        with self._changed:
            self._steps = global_step
            self._advance()

    def validated(self, epoch: int) -> None:
        """Validation up to and with this epoch is over."""
        with self._changed:
            self._validated = max(self._validated, epoch)
            self._advance()

    def read(self, rows: Sequence[int]) -> None:
        """The trainer has read these rows: validation batches that are wholly read are over."""
        with self._changed:
            self._read.update(row for row in rows if row in self._validation)
            self._advance()

    def _advance(self) -> None:
        """Count the visits that are over; what was not fed cannot be."""
        while self.done < self.fed:
            visit = self.schedule.visits[self.done]
            needed = {row.row for row in visit.rows}
            if visit.step >= 0:
                over = visit.step < self._steps
            else:
                over = visit.epoch <= self._validated or needed <= self._read
            if not over:
                break
            self._read -= needed
            self.done += 1
        self._changed.notify_all()

    # -- the feeder's own thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stop and self.fed < len(self.schedule.visits):
                rows = self._next()
                if rows:
                    self._capture(rows)
        except Interrupted:
            return
        except BaseException as error:  # told to the stage, which stops the trainer
            self.error = error

    def _next(self) -> list[Row]:
        """Rows of the coming visits that fit, after making room; waits while nothing fits."""
        rows: dict[str, Row] = {}
        taken = self.fed
        with self._changed:
            while taken < len(self.schedule.visits) and len(rows) < CHUNK_ROWS:
                visit = self.schedule.visits[taken]
                fresh = {row.key: row for row in visit.rows if row.key not in self._present and row.key not in rows}
                if not self._fits([*rows.values(), *fresh.values()], taken):
                    break
                rows.update(fresh)
                taken += 1
            if taken == self.fed:
                if self.done >= self.fed:
                    self._too_small()
                self._changed.wait(timeout=1.0)
                return []
            self._target = taken
            if not rows:
                self.fed = taken
                self._advance()
            return list(rows.values())

    def _fits(self, rows: list[Row], visit: int) -> bool:
        """Whether the rows fit beside what visits up to `visit` still need; deletes what is needed last."""
        need = sum(self.size(row) for row in rows)
        while self._used + need > self.window_bytes:
            spare = [key for key in self._present if self.schedule.next_use(key, self.done) > visit]
            if not spare:
                return False
            victim = max(spare, key=lambda key: (self.schedule.next_use(key, self.done), key))
            self._delete(victim)
        return True

    def _delete(self, key: str) -> None:
        self.store.drop([key])
        self._used -= self._present.pop(key)
        self.deleted += 1

    def size(self, row: Row) -> int:
        """What a row takes while it is captured: the server writes bf16, whatever is kept."""
        return files.file_bytes(row.tokens, len(self.shape.layers), self.shape.hidden_size, "bf16")

    def _too_small(self) -> None:
        visit = self.schedule.visits[self.fed]
        need = sum(self.size(row) for row in {row.key: row for row in visit.rows}.values())
        raise EyrieError(
            f"one training step needs {need} bytes of states, the window has {self.window_bytes}.",
            code="window-too-small",
            todo=f"Set window_bytes to at least {2 * need}.",
        )

    def _capture(self, rows: list[Row]) -> None:
        result = self.capture(rows)
        if result.failures:
            reason, detail = next(iter(result.failures.values()))
            raise EyrieError(
                f"{len(result.failures)} samples of the window could not be captured ({reason}): {detail}",
                code="window-capture",
                todo="Training cannot go on without them. Run again.",
            )
        with self._changed:
            for row in rows:
                entry = self.store.get(row.key)
                if entry is not None:
                    self._present[row.key] = entry.bytes
                    self._used += entry.bytes
            self.captured += len(rows)
            self.peak = max(self.peak, self._used)
            self.fed = self._target
            self._advance()

    def figures(self) -> dict[str, Any]:
        return {
            "captured": self.captured,
            "deleted": self.deleted,
            "peak_bytes": self.peak,
            "window_bytes": self.window_bytes,
        }


def recover(store: Store) -> dict[str, int]:
    """{key: bytes} of what the window's manifest and disk agree on; everything else is removed from both."""
    store.sweep()
    known = {entry.key: entry.bytes for entry in store.entries()}
    present: dict[str, int] = {}
    for path in store.path.glob(f"??/*{SUFFIX}"):
        key = path.name[: -len(SUFFIX)]
        if known.get(key) == path.stat().st_size:
            present[key] = known[key]
        else:
            path.unlink()
    store.forget([key for key in known if key not in present])
    return present


def quiet_work(path: Path) -> Work:
    """A Work of the feeder's own: its progress goes to a side file, the stage's is the trainer's."""
    return Work(Progress(path, clock=time.monotonic))

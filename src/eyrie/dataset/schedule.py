"""The sources at work: all at once, each on its own, bounded by the number of workers.

A source passes through: fetch (hub only) -> cut into tasks -> tasks -> verdict. Its failure ends it and nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.core.stage import Work
from eyrie.dataset import hub, worker
from eyrie.dataset import part as parts
from eyrie.dataset.pool import Pool
from eyrie.dataset.process import Job
from eyrie.dataset.settings import Settings
from eyrie.dataset.unit import DONE, FAILED, FETCHING, PENDING, RUNNING, Unit

OBVIOUS_ROWS, OBVIOUS_SHARE = 1000, 0.5
STATE_EVERY_S = 1.0


class Schedule:
    """Brings all units to DONE or FAILED."""

    def __init__(
        self,
        units: list[Unit],
        settings: Settings,
        work: Work,
        access: hub.Access,
        lock: dict[str, Any],
        job: Callable[[Unit], Job],
        identify: Callable[[Unit], None],
        workers: int,
    ):
        self.units = {unit.name: unit for unit in units}
        self.settings, self.work, self.access, self.lock = settings, work, access, lock
        self.job, self.identify = job, identify
        self.pool = Pool(workers, settings.worker_memory_mb, settings.stall_s)
        self.fetchers = Pool(settings.downloads, settings.worker_memory_mb, 0)
        self.open: dict[str, set[int]] = {}
        self.died: set[tuple[str, Any]] = set()
        self.fetched: dict[str, tuple[int, int]] = {}
        self._written = 0.0

    def run(self) -> None:
        """Work until every unit has its verdict. Raises Interrupted when asked to stop."""
        try:
            for unit in self.units.values():
                self._begin(unit)
            while not (self.pool.idle and self.fetchers.idle):
                self.work.check_stop()
                pools = [pool for pool in (self.pool, self.fetchers) if pool.busy or pool.queue]
                for pool in pools:
                    for key, event, value in pool.events(0.5 / len(pools)):
                        self._event(key, event, value)
                self._progress()
        finally:
            self.pool.close()
            self.fetchers.close()
            for unit in self.units.values():
                if unit.status in (PENDING, FETCHING, RUNNING):
                    unit.say("interrupted")
            self._progress(force=True)

    def _begin(self, unit: Unit) -> None:
        if unit.status == FAILED:
            return
        if unit.source.kind == "hub" and not unit.fingerprint:
            unit.say(FETCHING)
            locked = self.lock.get(unit.name) or {}
            self.fetchers.order((unit.name, "fetch"), worker.FETCH, unit.name, unit.source, self.access, locked)
            return
        self._known(unit)

    def _known(self, unit: Unit) -> None:
        """The unit's files are there: take its earlier parts, or cut it into tasks."""
        self.identify(unit)
        if unit.load():
            self._verdict(unit)
            return
        unit.folder.mkdir(parents=True, exist_ok=True)
        unit.say(RUNNING)
        self.pool.order((unit.name, "cut"), worker.CUT, unit.name, unit.source, unit.files)

    def _event(self, key: Any, event: str, value: Any) -> None:
        name, what = key
        unit = self.units[name]
        if unit.status == FAILED:
            return
        if event == worker.ERROR:
            self._failed(unit, what, EyrieError(**value))
        elif event == worker.SAID:
            self.fetched[name] = (value[1], value[2])
        elif what == "fetch":
            self._fetched(unit, value)
        elif what == "cut":
            self._cut(unit, value)
        elif event == worker.PART:
            unit.done.setdefault(what, []).append(parts.Part.from_dict(value))
            self._early_verdict(unit)
        else:
            self.open[name].discard(what)
            if not self.open[name]:
                unit.finish()
                self._verdict(unit)

    def _fetched(self, unit: Unit, value: hub.Fetched) -> None:
        unit.revision, unit.digests = value.revision, value.digests
        unit.files = [(name, Path(path)) for name, path in value.files]
        if not unit.source.revision:
            unit.log(f"no revision is declared: {value.revision} was resolved and locked")
        self._known(unit)

    def _cut(self, unit: Unit, tasks: list[Any]) -> None:
        unit.tasks = tasks
        self.open[unit.name] = set(range(len(tasks)))
        if not tasks:
            unit.finish()
            self._verdict(unit)
        job = self.job(unit)
        for task in tasks:
            self.pool.order((unit.name, task.index), worker.TASK, job, task)
        self._interleave()

    def _interleave(self) -> None:
        """Queue the sources' tasks in turn, so that all of them advance."""
        lanes: dict[str, list[Any]] = {}
        for order in self.pool.queue:
            lanes.setdefault(order[0][0], []).append(order)  # type: ignore[index]
        self.pool.queue.clear()
        while lanes:
            for name in list(lanes):
                self.pool.queue.append(lanes[name].pop(0))
                if not lanes[name]:
                    del lanes[name]

    def _failed(self, unit: Unit, what: Any, error: EyrieError) -> None:
        """A worker that was killed gets a second chance; everything else is the unit's end."""
        if error.code == "worker-died" and (unit.name, what) not in self.died:
            self.died.add((unit.name, what))
            unit.log(f"{error} It is tried once more.")
            if what == "fetch":
                self._begin(unit)
            elif what == "cut":
                self._known(unit)
            else:
                unit.done.pop(what, None)
                self.pool.order((unit.name, what), worker.TASK, self.job(unit), unit.tasks[what])
            return
        self._end(unit, error)

    def _end(self, unit: Unit, error: EyrieError) -> None:
        prefix = "" if error.what.startswith("source ") else f"source {unit.name}: "
        named = EyrieError(f"{prefix}{error.what}", error.where, error.why, error.todo, error.code)
        unit.say(FAILED, named)
        for pool in (self.pool, self.fetchers):
            pool.forget(lambda key: key[0] == unit.name)

    def _early_verdict(self, unit: Unit) -> None:
        """Stop a source whose first rows are mostly bad; judged by rows in file order, whoever finished first."""
        seen = bad = 0
        for index in range(len(unit.tasks)):
            for part in unit.done.get(index, []):
                seen, bad = seen + part.book.entered, bad + part.book.bad
            if index in self.open[unit.name] or seen >= OBVIOUS_ROWS:
                break
        limit = max(self.settings.max_bad_share, OBVIOUS_SHARE)
        if seen >= OBVIOUS_ROWS and bad > limit * seen:
            self._end(unit, bad_share(unit, bad, seen, self.settings.max_bad_share))

    def _verdict(self, unit: Unit) -> None:
        book = unit.book()
        if book.bad > self.settings.max_bad_share * book.entered:
            self._end(unit, bad_share(unit, book.bad, book.entered, self.settings.max_bad_share))
        elif book.kept == 0:
            reasons = ", ".join(f"{reason} {count}" for reason, count in (book.dropped + book.failed).most_common(3))
            self._end(
                unit,
                EyrieError(
                    f"nothing of {book.entered} rows was kept.",
                    where=f"dataset.registry.{unit.name}",
                    why=f"Commonest reasons: {reasons}." if reasons else "It holds no rows.",
                    todo="Check the adapter, the columns and the files of this entry.",
                    code="source-zero-kept",
                ),
            )
        else:
            unit.say(DONE, reused=unit.reused)

    def _progress(self, force: bool = False) -> None:
        """The stage's progress in MB of source files, and each running source's own line."""
        now = time.monotonic()
        if not force and now - self._written < STATE_EVERY_S:
            return
        self._written = now
        done = total = rows = 0
        detail: dict[str, Any] = {}
        verdicts = [unit.status for unit in self.units.values()]
        for unit in self.units.values():
            mine, all_of_it = self._bytes(unit)
            done, total = done + mine, total + all_of_it
            rows += sum(part.book.kept for found in unit.done.values() for part in found)
            if unit.status in (FETCHING, RUNNING):
                share = f"{100 * mine // all_of_it}%" if all_of_it else "0%"
                detail[unit.name] = f"fetching {share}" if unit.status == FETCHING else share
        detail["sources"] = f"{verdicts.count(DONE)}/{len(verdicts)} done"
        if FAILED in verdicts:
            detail["failed"] = ", ".join(name for name, unit in self.units.items() if unit.status == FAILED)
        detail["rows"] = rows
        progress = self.work.progress
        progress.detail = detail
        progress.phase, progress.unit, progress.total = "sources", "MB", total >> 20
        progress.update(done >> 20, done)

    def _bytes(self, unit: Unit) -> tuple[int, int]:
        """(done, all) bytes of a unit; while it is fetched, those of the download."""
        if unit.status == FETCHING:
            return self.fetched.get(unit.name, (0, unit.source.bytes))
        total = sum(task.size for task in unit.tasks)
        if unit.status == DONE:
            return total, total
        return min(total, sum(part.read for found in unit.done.values() for part in found)), total


def bad_share(unit: Unit, bad: int, seen: int, limit: float) -> EyrieError:
    """The error of a source with too many bad rows, with the first place of the commonest reason."""
    account = unit.account()
    counted = account.dropped + account.failed
    reasons = ", ".join(f"{reason} {count}" for reason, count in counted.most_common(3))
    first = next(
        (account.examples[reason][0] for reason, _ in counted.most_common() if account.examples.get(reason)), ""
    )
    return EyrieError(
        f"{bad} of {seen} rows are bad ({bad / seen:.1%}, the limit is {limit:.1%}).",
        where=first,
        why=f"Commonest reasons: {reasons}.",
        todo="Check the entry's adapter and columns, repair the file, or raise eyrie_dataset_max_bad_share.",
        code="bad-share",
    )


def worker_count(settings: Settings, execution: dict[str, Any]) -> int:
    """Workers: the stage's setting, the run's, or the cores that this process may use."""
    return int(settings.workers or execution.get("workers") or len(os.sched_getaffinity(0)))

"""How busy other processes kept the machine's processors while something was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Reading:
    """Clock ticks since boot: all processors' time, what of it was not idle (stolen time counts), and our own."""

    total: int
    busy: int
    own: int


def read(pids: Iterable[int], proc: Path = PROC) -> Reading | None:
    """A reading with `pids` as our own processes; None where /proc does not say."""
    try:
        words = (proc / "stat").read_text().split("\n", 1)[0].split()[1:9]
        user, nice, system, idle, waiting, interrupts, soft, stolen = (int(word) for word in words)
    except (OSError, ValueError):
        return None
    busy = user + nice + system + interrupts + soft + stolen
    return Reading(busy + idle + waiting, busy, sum(_ticks(pid, proc) for pid in pids))


def _ticks(pid: int, proc: Path) -> int:
    """User and system time of a process and its threads; 0 when it is gone."""
    try:
        text = (proc / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return 0
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[11]) + int(fields[12])


def foreign_share(before: Reading | None, after: Reading | None) -> float | None:
    """Share of all processors' time, 0..1, that others used in between; None where it is not known."""
    if before is None or after is None or after.total <= before.total:
        return None
    others = (after.busy - before.busy) - (after.own - before.own)
    return max(0.0, others / (after.total - before.total))

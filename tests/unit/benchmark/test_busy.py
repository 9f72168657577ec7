"""Processor time of others, from /proc as it is written."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eyrie.benchmark import busy
from eyrie.benchmark.busy import Reading


def proc(folder: Path, stat: str, own: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(stat)
    (folder / "7").mkdir(exist_ok=True)
    (folder / "7" / "stat").write_text(own or "7 (a) b) c) S 1 7 7 0 -1 0 0 0 0 0 30 12 0 0 20 0 1 0 5 0 0")
    return folder


def test_reading_counts_stolen_time_as_busy_and_a_name_with_brackets_is_no_trouble(tmp_path: Path) -> None:
    found = busy.read([7, 8], proc(tmp_path, "cpu  100 5 20 800 50 1 2 22 0 0\ncpu0 1 2 3\n"))
    assert found == Reading(total=1000, busy=150, own=42)


def test_no_proc_is_no_reading(tmp_path: Path) -> None:
    assert busy.read([1], tmp_path / "nowhere") is None
    assert busy.read([1], proc(tmp_path, "cpu 1 2\n")) is None


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        (Reading(1000, 100, 50), Reading(1200, 300, 250), 0.0),
        (Reading(1000, 100, 50), Reading(1200, 300, 200), 0.25),
        (Reading(1000, 100, 50), Reading(1200, 100, 60), 0.0),
        (Reading(1000, 100, 50), Reading(1000, 100, 50), None),
        (None, Reading(1000, 100, 50), None),
    ],
)
def test_share_of_others(before: Reading | None, after: Reading | None, share: float | None) -> None:
    assert busy.foreign_share(before, after) == (None if share is None else pytest.approx(share))


def test_a_process_that_spins_is_seen_unless_it_is_ours() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        own, others = [os.getpid(), child.pid], [os.getpid()]
        before = busy.read(own), busy.read(others)
        time.sleep(0.6)
        after = busy.read(own), busy.read(others)
    finally:
        child.kill()
        child.wait()
    ours, foreign = busy.foreign_share(before[0], after[0]), busy.foreign_share(before[1], after[1])
    assert ours is not None
    assert foreign is not None
    assert foreign > ours

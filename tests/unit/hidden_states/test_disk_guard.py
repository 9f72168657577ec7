"""The disk: refused before the first byte, paused at the high-water mark, never ENOSPC."""

import os
import shutil
import subprocess
import threading
import time
from collections import namedtuple
from dataclasses import replace

import pytest
from capture_house import ROWS

from eyrie.core.errors import EyrieError, GateError
from eyrie.hidden_states.disk import DiskGuard
from eyrie.hidden_states.settings import HiddenStatesSettings

Stat = namedtuple("Stat", "f_bavail f_frsize f_blocks f_favail f_files")
SETTINGS = HiddenStatesSettings(high_water=0.9, reserve_bytes=100)


def disk(free, total=10_000, inodes=10**6):
    return lambda path: Stat(free, 1, total, inodes, 10**7)


@pytest.mark.parametrize(
    ("free", "size", "fits"),
    [(5000, 100, True), (1100, 100, True), (1099, 100, False), (999, 0, False)],
    ids=["plenty", "just", "one byte short", "already above the mark"],
)
def test_a_sample_fits_only_under_the_mark(tmp_path, free, size, fits):
    assert bool(DiskGuard(tmp_path, SETTINGS, disk(free)).refusal(size)) != fits


def test_the_reserve_counts_where_it_is_more_than_the_mark(tmp_path):
    settings = replace(SETTINGS, reserve_bytes=4000)
    assert DiskGuard(tmp_path, settings, disk(4050)).refusal(100)
    assert not DiskGuard(tmp_path, settings, disk(4100)).refusal(100)


def test_what_is_promised_to_samples_in_flight_counts(tmp_path):
    guard = DiskGuard(tmp_path, SETTINGS, disk(1300))
    guard.promise(250)
    assert guard.refusal(100)
    guard.settle(250)
    assert not guard.refusal(100)


def test_few_inodes_are_a_refusal_of_their_own(tmp_path):
    assert "inodes" in DiskGuard(tmp_path, SETTINGS, disk(9000, inodes=10)).refusal(1)


def test_a_pause_has_a_limit_where_one_is_set(tmp_path):
    now = [0.0]
    guard = DiskGuard(tmp_path, replace(SETTINGS, pause_limit_s=60), disk(0), clock=lambda: now[0])
    guard.pause("full")
    now[0] = 61.0
    with pytest.raises(EyrieError, match="waited 61 s for disk space") as caught:
        guard.pause("full")
    assert caught.value.code == "disk-high-water"


def test_the_plan_refuses_what_cannot_fit_and_says_what_would(house, monkeypatch):
    stage, ctx = house.context().stage, house.context()
    need = stage.forecast(ctx)["bytes"]
    monkeypatch.setattr("os.statvfs", disk(need - 1, total=10 * need))
    tight = {"free": need - 1, "total": need * 10, "free_inodes": 9**9, "inodes": 9**9}
    monkeypatch.setattr("eyrie.hidden_states.forecast.space", lambda path: tight)
    gate = stage.gates(ctx)[0]
    assert not gate["ok"]
    assert "storage to fp8" in gate["message"]
    with pytest.raises(GateError, match="GB of states to write"):
        house.run()
    assert house.server.requests == {}


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte: a tmpfs where it may be mounted, else a folder that is counted like one."""
    folder = tmp_path / "root"
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if done.returncode == 0:
        yield folder, None
        subprocess.run(["umount", "-l", str(folder)], check=True)
        return

    def measured(path):  # no right to mount: the same disk by counting what lies in the folder
        used = sum(item.stat().st_blocks * 512 for item in folder.rglob("*") if item.is_file())
        return Stat(max(0, (1 << 20) - used), 1, 1 << 20, 10**6, 10**7)

    yield folder, measured


def test_capture_on_a_small_disk_pauses_and_goes_on_when_there_is_room(small_disk, tmp_path, monkeypatch):
    """Rows of about 20 kB each on a disk of 1 MB that something else fills to the brim meanwhile."""
    from capture_house import House

    folder, measured = small_disk
    monkeypatch.setattr("capture_house.ROWS", ROWS)
    built = House(tmp_path, monkeypatch)
    try:
        built.prepare([[(row + at) % 32 for at in range(280)] + [row] for row in range(30)], tag="long")
        built.settings.update(reserve_bytes=200_000, concurrency=2)
        if measured:
            monkeypatch.setattr("os.statvfs", measured)
        ballast = folder / "ballast"
        ballast.write_bytes(b"x" * 550_000)
        result = {}
        runner = threading.Thread(target=lambda: result.update(built.run()))
        monkeypatch.setattr("signal.signal", lambda number, handler: None)  # the runner is not in the main thread here
        monkeypatch.setattr("eyrie.hidden_states.forecast.gates", lambda ctx: [])
        runner.start()
        progress = built.context().state
        _until(lambda: (progress.progress().get("detail") or {}).get("paused"))
        paused = progress.progress()["detail"]["paused"]
        assert "high-water mark" in paused
        held = len(built.files())
        assert held < 30
        time.sleep(1.0)
        assert len(built.files()) == held
        free = (measured or os.statvfs)(folder)
        assert free.f_bavail * free.f_frsize >= 150_000  # never filled up
        ballast.unlink()
        runner.join(60)
        assert result["account"]["kept"] == 30
        assert result["account"]["failed"] == {}
        assert "paused" not in progress.progress()["detail"]
    finally:
        built.close()
        shutil.rmtree(folder, ignore_errors=True)


def _until(condition, limit=30):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)

"""State records and the stage's lock: nothing half-written is trusted, nothing dead holds."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from eyrie.core import atomic
from eyrie.core.lock import Held, Lock, holder
from eyrie.core.state import DONE, INTERRUPTED, RUNNING, StateDir

FP = "a" * 64


def test_a_record_is_found_under_its_fingerprint_and_as_the_latest(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.write({"fingerprint": FP, "status": DONE, "seconds": 2})
    state.write({"fingerprint": "b" * 64, "status": DONE, "seconds": 3})
    assert state.read(FP)["seconds"] == 2
    assert state.latest()["seconds"] == 3
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 2


def test_another_fingerprint_with_the_same_short_name_is_not_taken(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.write({"fingerprint": FP, "status": DONE})
    assert state.read("a" * 12 + "c" * 52) == {}


@pytest.mark.parametrize("text", ["", "{", '{"fingerprint": "aaa', "[]", "null", "\x00\x00"])
def test_a_torn_record_counts_as_none(tmp_path: Path, text: str) -> None:
    state = StateDir(tmp_path)
    (tmp_path / f"{FP[:12]}.json").write_text(text)
    (tmp_path / "latest.json").write_text(text)
    assert state.read(FP) == {}
    assert state.latest() == {}
    assert state.status_of(state.read(FP)) == "absent"


def test_running_without_a_holder_means_interrupted(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    record = {"fingerprint": FP, "status": RUNNING}
    state.write(record)
    assert state.status_of(record) == INTERRUPTED
    with Lock(state.lock_path, {"fingerprint": FP}):
        assert state.status_of(record) == RUNNING
    with Lock(state.lock_path, {"fingerprint": "b" * 64}):
        assert state.status_of(record) == INTERRUPTED


def test_the_lock_names_its_owner_to_the_second_comer(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    with Lock(path, {"fingerprint": FP}):
        with pytest.raises(Held) as held:
            Lock(path).acquire()
        assert held.value.owner == {"pid": os.getpid(), "fingerprint": FP}
        assert holder(path)["fingerprint"] == FP
    assert holder(path) is None
    with Lock(path):
        pass


def _hold_and_die(path: Path, ready: object) -> None:
    Lock(path, {"fingerprint": FP}).acquire()
    ready.set()
    os.kill(os.getpid(), 9)


def test_the_kernel_frees_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=_hold_and_die, args=(tmp_path / "lock", ready))
    process.start()
    process.join(20)
    assert ready.is_set()
    assert holder(tmp_path / "lock") is None
    with Lock(tmp_path / "lock"):
        pass


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    atomic.write_json(path, {"a": 1})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [item.name for item in tmp_path.iterdir()] == ["file.json"]


def test_a_torn_last_line_is_cut_before_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    atomic.append_line(path, '{"n": 1}')
    with open(path, "a") as stream:
        stream.write('{"n": 2, "torn')
    atomic.append_line(path, '{"n": 3}')
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == [1, 3]


def test_files_are_readable_by_others(tmp_path: Path) -> None:
    atomic.write_text(tmp_path / "file", "x")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644

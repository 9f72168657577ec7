"""`eyrie wait`: the right job's end, and nobody else's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eyrie import cli
from eyrie.core.lock import Lock
from eyrie.core.state import DONE, FAILED, RUNNING, StateDir
from eyrie.core.wait import START_GRACE_S, look, wait

FP, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "state" / "draft")


def test_another_fingerprint_s_success_is_not_ours(state: StateDir) -> None:
    state.write({"fingerprint": OTHER, "status": DONE, "seconds": 1})
    assert look(state, FP, 0, 100.0)["status"] == "starting"


def test_a_failure_of_an_earlier_attempt_does_not_count(state: StateDir) -> None:
    state.write({"fingerprint": FP, "status": FAILED, "error": {"what": "old"}})
    written = state.read(FP)["updated"]
    assert look(state, FP, 0, written + 1)["status"] == FAILED
    assert look(state, FP, written + 1, written + 2)["status"] == "starting"


def test_the_end_of_this_attempt_counts(state: StateDir) -> None:
    state.write({"fingerprint": FP, "status": DONE, "seconds": 4, "account": {"in": 1}, "bytes": 9, "figures": {}})
    found = look(state, FP, state.read(FP)["updated"] - 1, 1e12)
    assert found["finished"] is True
    assert found["record"] == {"seconds": 4, "account": {"in": 1}, "bytes": 9, "figures": {}}


def test_a_running_job_is_known_by_its_lock(state: StateDir) -> None:
    state.write({"fingerprint": FP, "status": RUNNING, "started": 40.0})
    with Lock(state.lock_path, {"fingerprint": FP}):
        found = look(state, FP, 0, 100.0)
    assert (found["status"], found["seconds"], found["finished"]) == ("running", 60.0, False)
    assert look(state, FP, 0, 100.0)["status"] == "interrupted"


def test_a_job_that_never_came_up_is_told_with_its_last_words(state: StateDir) -> None:
    state.path.mkdir(parents=True)
    state.log_path.write_text("one\nModuleNotFoundError: torch\n")
    assert look(state, FP, 1000.0, 1000.0 + START_GRACE_S - 1)["status"] == "starting"
    found = look(state, FP, 1000.0, 1000.0 + START_GRACE_S + 1)
    assert found["status"] == FAILED
    assert "ModuleNotFoundError: torch" in found["error"]["why"]


def test_waiting_is_bounded(tmp_path: Path, state: StateDir) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    found = wait(tmp_path, "draft", FP, 0, 3.2, clock=lambda: now[0], sleep=sleep)
    assert found["status"] == "starting"
    assert 3.2 <= now[0] < 3.3


def test_waiting_ends_as_soon_as_the_job_does(tmp_path: Path, state: StateDir) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        state.write({"fingerprint": FP, "status": DONE, "seconds": 1})

    assert wait(tmp_path, "draft", FP, 0, 60.0, clock=lambda: now[0], sleep=sleep)["finished"]
    assert now[0] < 1.0


def test_the_command_answers_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    StateDir(tmp_path / "runs" / "main" / "state" / "draft").write({"fingerprint": FP, "status": DONE, "seconds": 1})
    assert cli.main(["wait", "draft", "--root", str(tmp_path), "--fingerprint", FP]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["stage"], answer["status"], answer["progress"]) == ("draft", "done", None)

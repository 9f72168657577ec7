"""eyrie_port and eyrie_teardown: what is read, what is asked, what is refused, what check mode leaves alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.modules.conftest import Answer, run_module, spec_of

STATUS = {
    "finished": False,
    "running": True,
    "lost": False,
    "progress": None,
    "result": None,
    "error": None,
    "log": "/l",
}


def install(root: Path) -> None:
    command = root / "venv" / "bin" / "eyrie"
    command.parent.mkdir(parents=True)
    command.write_text("")
    command.chmod(0o755)


def port(root: Path, action: str, answer: Any = None, check: bool = False, rc: int = 0, **params: Any) -> Any:
    answers = [] if answer is None else [Answer([], rc=rc, out=json.dumps(answer))]
    params = {"action": action, "root": str(root), "request": {"spec": spec_of(root)}, "seconds": 0, **params}
    return run_module("eyrie_port", params, answers, check=check)


@pytest.mark.parametrize("check", [False, True])
def test_reading_steps_read_in_check_mode_too(tmp_path: Path, check: bool) -> None:
    install(tmp_path)
    call = port(tmp_path, "plan", {"ok": True, "lines": ["the plan"]}, check=check)
    assert not call.failed
    assert not call.result["changed"]
    assert call.result["lines"] == ["the plan"]
    assert call.commands[0][1:] == ["port", "plan"]
    assert json.loads(call.stdin[0]) == {"spec": spec_of(tmp_path)}


@pytest.mark.parametrize("action", ["pack", "prepare", "key", "start", "send", "land", "teardown_mark"])
def test_acting_steps_do_nothing_in_check_mode(tmp_path: Path, action: str) -> None:
    install(tmp_path)
    call = port(tmp_path, action, check=True)
    assert call.commands == []
    assert call.result["changed"]


@pytest.mark.parametrize(("action", "changed"), [("pack", False), ("land", True), ("send", True), ("probe", False)])
def test_only_what_changes_a_host_says_changed(tmp_path: Path, action: str, changed: bool) -> None:
    install(tmp_path)
    assert port(tmp_path, action, {"files": 1}).result["changed"] is changed


def test_teardown_steps_speak_to_their_own_verb(tmp_path: Path) -> None:
    install(tmp_path)
    assert port(tmp_path, "teardown_plan", {"ok": True}).commands[0][1:] == ["teardown", "plan"]


def test_a_bare_host_plans_nothing_and_does_not_fail(tmp_path: Path) -> None:
    call = port(tmp_path, "plan")
    assert not call.failed
    assert call.result["installed"] is False
    failed = port(tmp_path, "land")
    assert failed.failed
    assert "not there" in failed.result["msg"]


def test_on_the_controller_the_sources_are_run(tmp_path: Path) -> None:
    params = {"action": "measure", "sources": "/project/src", "request": {}}
    call = run_module("eyrie_port", params, [Answer([], out=json.dumps({"mb_s": 9.0}))])
    assert call.commands[0] == [sys.executable, "-m", "eyrie", "port", "measure"]
    assert call.result["answer"] == {"mb_s": 9.0}


def test_on_the_controller_a_job_stands_for_the_send() -> None:
    params = {"sources": "/project/src", "request": {"job": "/spool/jobs/a"}, "seconds": 0}
    call = run_module("eyrie_port", {"action": "start", **params}, [Answer([], out=json.dumps({"started": True}))])
    assert call.commands[0][-2:] == ["port", "start_here"]
    assert call.result["changed"]
    status = {**STATUS, "progress": {"done": 1, "total": 2, "rate": 0, "eta_s": None}}
    call = run_module("eyrie_port", {"action": "wait", **params}, [Answer([], out=json.dumps(status))])
    assert call.commands[0][-2:] == ["port", "status_here"]
    assert call.result["progress_text"] == "port: 1 B of 2 B"


def test_waiting_shows_how_far_it_is(tmp_path: Path) -> None:
    install(tmp_path)
    progress = {"done": 1_200_000_000, "total": 3_400_000_000, "rate": 80e6, "eta_s": 27.5}
    call = port(tmp_path, "wait", {**STATUS, "progress": progress})
    assert call.result["finished"] is False
    assert call.result["progress_text"] == "port: 1.2 GB of 3.4 GB, 80.0 MB/s, 28 s left"
    assert port(tmp_path, "wait", {**STATUS, "finished": True, "running": False}).result["finished"] is True


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"error": {"what": "the link stays dead.", "where": "beta"}}, "beta: the link stays dead."),
        ({"lost": True}, "left no result"),
    ],
)
def test_a_lost_or_failed_send_fails_the_task(tmp_path: Path, status: dict[str, Any], said: str) -> None:
    install(tmp_path)
    call = port(tmp_path, "wait", {**STATUS, **status})
    assert call.failed
    assert said in call.result["msg"]


def test_a_refusal_of_the_node_is_the_tasks(tmp_path: Path) -> None:
    install(tmp_path)
    error = {"code": "pack-bad", "what": "2 files did not arrive.", "where": "/in", "why": "x", "todo": "Run again."}
    call = port(tmp_path, "land", {"error": error}, rc=1)
    assert call.failed
    assert call.result["msg"] == "/in: 2 files did not arrive. Why: x Do: Run again."


def teardown(root: Path, plan: dict[str, Any], check: bool = False, **params: Any) -> Any:
    whole = {"lines": ["held"], "secrets": [], "holdings": [], "gates": [], **plan}
    answers = [
        Answer(["teardown", "plan"], out=json.dumps(whole)),
        Answer(["teardown", "wipe"], out=json.dumps({"wiped": ["/x"], "bytes": 1, "left": []})),
    ]
    return run_module("eyrie_teardown", {"spec": spec_of(root), **params}, answers, check=check)


REFUSED = {"holdings": [{"key": "draft"}], "gates": [{"name": "draft", "ok": False, "message": "draft is not saved."}]}


def test_nothing_is_wiped_unasked(tmp_path: Path) -> None:
    install(tmp_path)
    call = teardown(tmp_path, {**REFUSED, "secrets": ["/t"]})
    assert call.result["changed"] is False
    assert [command[1:] for command in call.commands] == [["teardown", "plan"]]


@pytest.mark.parametrize("check", [False, True])
def test_unsaved_data_is_refused_in_check_mode_too(tmp_path: Path, check: bool) -> None:
    install(tmp_path)
    call = teardown(tmp_path, REFUSED, check=check, wipe=["data"])
    assert call.failed
    assert "draft is not saved." in call.result["msg"]
    assert all("wipe" not in command for command in call.commands)


def test_secrets_go_although_data_is_unsaved(tmp_path: Path) -> None:
    install(tmp_path)
    call = teardown(tmp_path, {**REFUSED, "secrets": ["/t"]}, wipe=["secrets"])
    assert call.result["changed"]
    assert json.loads(call.stdin[-1])["what"] == ["secrets"]


def test_a_wiped_host_is_unchanged_the_second_time(tmp_path: Path) -> None:
    install(tmp_path)
    assert teardown(tmp_path, {}, wipe=["secrets", "data"]).result["changed"] is False
    bare = run_module("eyrie_teardown", {"spec": spec_of(tmp_path / "bare"), "wipe": ["data"]}, [])
    assert bare.result["changed"] is False


def test_check_mode_says_what_would_be_wiped(tmp_path: Path) -> None:
    install(tmp_path)
    call = teardown(tmp_path, {"holdings": [{"key": "draft"}]}, check=True, wipe=["data"])
    assert call.result["changed"]
    assert len(call.commands) == 1


def test_a_misspelt_kind_is_refused(tmp_path: Path) -> None:
    assert run_module("eyrie_teardown", {"spec": spec_of(tmp_path), "wipe": ["everything"]}, []).failed
    assert run_module("eyrie_port", {"action": "teleport", "root": "/r"}, []).failed

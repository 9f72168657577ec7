"""eyrie_compare: changed as the node says, check mode passed on, errors with their cause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.modules.conftest import Answer, run_module, spec_of

PAGE = {"page": "/x/compare/main-longer.html", "changed": True, "lines": ["a", "b"]}


def install(root: Path) -> None:
    command = root / "venv" / "bin" / "eyrie"
    command.parent.mkdir(parents=True)
    command.write_text("")
    command.chmod(0o755)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("changed", [False, True])
def test_changed_is_what_the_node_says(tmp_path: Path, check: bool, changed: bool) -> None:
    install(tmp_path)
    answer = Answer(["compare"], out=json.dumps({**PAGE, "changed": changed}))
    params = {"spec": spec_of(tmp_path), "runs": ["main", "longer"]}
    call = run_module("eyrie_compare", params, [answer], check=check)
    assert not call.failed
    assert call.result == {**PAGE, "changed": changed}
    assert call.commands[0][1:4] == ["compare", "--root", str(tmp_path)]
    assert call.commands[0][-2:] == ["main", "longer"]
    assert ("--check" in call.commands[0]) is check


def test_an_unknown_run_is_named(tmp_path: Path) -> None:
    install(tmp_path)
    error = {
        "code": "no-report",
        "what": "there is no report of 'mian'.",
        "where": "/x",
        "why": "",
        "todo": "Name runs.",
    }
    answer = Answer(["compare"], rc=1, out=json.dumps({"error": error}))
    call = run_module("eyrie_compare", {"spec": spec_of(tmp_path), "runs": ["main", "mian"]}, [answer])
    assert call.failed
    assert "there is no report of 'mian'" in call.result["msg"]
    assert "Name runs." in call.result["msg"]


def test_without_the_node_package_it_says_what_to_run(tmp_path: Path) -> None:
    call = run_module("eyrie_compare", {"spec": spec_of(tmp_path), "runs": ["a", "b"]})
    assert call.failed
    assert "playbooks/provision.yml" in call.result["todo"]
    assert call.commands == []

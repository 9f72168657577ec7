"""The stage modules, by table: every case for every module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.modules.conftest import STAGE_OF, Answer, run_module, spec_of

CASES = yaml.safe_load((Path(__file__).parent / "cases" / "stage.yml").read_text())


def named(value: Any, stage: str) -> Any:
    return json.loads(json.dumps(value).replace("STAGE", stage))


def answers(case: dict[str, Any]) -> list[Answer]:
    found = []
    for item in case.get("answers", []):
        out = item["text"] if "text" in item else json.dumps(item["out"])
        found.append(Answer(item["argv"], item.get("rc", 0), out, item.get("err", "")))
    return found


def is_part(expected: Any, actual: Any) -> bool:
    """Whether every key that is expected is there with its value."""
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(
            key in actual and is_part(item, actual[key]) for key, item in expected.items()
        )
    return expected == actual


@pytest.mark.parametrize("module", sorted(STAGE_OF))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(case: dict[str, Any], module: str, tmp_path: Path) -> None:
    stage = STAGE_OF[module]
    case = named(case, stage)
    if case.get("installed", True):
        command = tmp_path / "venv" / "bin" / "eyrie"
        command.parent.mkdir(parents=True)
        command.write_text("")
        command.chmod(0o755)
    params = {"spec": spec_of(tmp_path), **case.get("params", {})}
    call = run_module(module, params, answers(case), check=case.get("check", False), diff=case.get("diff", False))
    assert call.failed == case.get("failed", False), call.result
    assert case.get("says", "") in call.result["msg"] if "says" in case else True
    assert is_part(case.get("expect", {}), call.result), call.result
    if "commands" in case:
        assert len(call.commands) == len(case["commands"]), call.commands
        for words, command in zip(case["commands"], call.commands, strict=True):
            assert set(words) <= set(command)
    for verb, data in zip(call.commands, call.stdin, strict=True):
        assert (data is not None) == (verb[1] in ("plan", "start")), "the spec goes through standard input, never argv"


def test_the_start_time_is_handed_on(node: Path) -> None:
    plan = {
        "fingerprint": "b" * 16,
        "up_to_date": False,
        "status": "absent",
        "differences": [],
        "gates": [],
        "record": None,
    }
    started = {"started": True, "attached": False, "unit": "u", "log": "/log"}
    call = run_module(
        "eyrie_dataset",
        {"spec": spec_of(node), "wait": False},
        [Answer(["plan"], out=json.dumps(plan)), Answer(["start"], out=json.dumps(started))],
    )
    assert call.result["since"] > 1_600_000_000


@pytest.mark.parametrize("module", sorted(STAGE_OF))
def test_documentation_and_arguments_are_the_same(module: str, documented: dict[str, dict[str, Any]]) -> None:
    """Neither ansible-lint nor --syntax-check notices a parameter that a module documents but does not take."""
    from ansible.module_utils.eyrie.stage import ARGUMENTS

    doc = documented[module]
    assert doc["module"] == module
    assert set(doc["options"]) == set(ARGUMENTS)
    assert set(doc["attributes"]) == {"check_mode", "diff_mode", "idempotent"}
    for name, option in doc["options"].items():
        assert option["type"] == ARGUMENTS[name]["type"], name
        assert option.get("default") == ARGUMENTS[name].get("default"), name
        assert option.get("required", False) == ARGUMENTS[name].get("required", False), name

"""eyrie_server, by table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.modules.conftest import run_module, spec_of
from tests.modules.test_stage_modules import answers, is_part

CASES = yaml.safe_load((Path(__file__).parent / "cases" / "server.yml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(case: dict[str, Any], tmp_path: Path) -> None:
    if case.get("installed", True):
        command = tmp_path / "venv" / "bin" / "eyrie"
        command.parent.mkdir(parents=True)
        command.write_text("")
        command.chmod(0o755)
    params = {"spec": spec_of(tmp_path), **case["params"]}
    call = run_module(
        "eyrie_server", params, answers(case), check=case.get("check", False), diff=case.get("diff", False)
    )
    assert call.failed == case.get("failed", False), call.result
    assert case.get("says", "") in call.result.get("msg", ""), call.result
    assert is_part(case.get("expect", {}), call.result), call.result
    if "commands" in case:
        assert len(call.commands) == len(case["commands"]), call.commands
        for words, command in zip(case["commands"], call.commands, strict=True):
            assert set(words) <= set(command)
    assert all(json.loads(data)["root"] == str(tmp_path) for data in call.stdin), "the spec never stands in argv"

"""Run a module's own main() in this process, with the commands that it would run answered from a table."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import ansible.module_utils
import pytest
from ansible.module_utils import basic
from ansible.module_utils.testing import patch_module_args

PROJECT = Path(__file__).resolve().parents[2]
ansible.module_utils.__path__.append(str(PROJECT / "module_utils"))


class Ended(Exception):
    """exit_json or fail_json was reached."""


@dataclass
class Answer:
    """What a command says: the words that its argv must hold, then rc, output and errors."""

    argv: list[str]
    rc: int = 0
    out: str = ""
    err: str = ""


@dataclass
class Call:
    """One run of a module."""

    result: dict[str, Any]
    failed: bool
    commands: list[list[str]] = field(default_factory=list)
    stdin: list[str | None] = field(default_factory=list)


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, PROJECT / "library" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def run_module(
    name: str, params: dict[str, Any], answers: list[Answer] = (), check: bool = False, diff: bool = False
) -> Call:
    """Call the module's entry point; a command that no answer is for fails the test."""
    loaded = load(name)
    call = Call({}, False)
    left = list(answers)

    def run_command(self: Any, argv: list[str], data: str | None = None, **_: Any) -> tuple[int, str, str]:
        call.commands.append([str(word) for word in argv])
        call.stdin.append(data)
        for answer in left:
            if all(word in call.commands[-1] for word in answer.argv):
                if len([other for other in left if other.argv == answer.argv]) > 1:
                    left.remove(answer)
                return answer.rc, answer.out, answer.err
        raise AssertionError(f"no answer for {argv}")

    def ended(self: Any, failed: bool, result: dict[str, Any]) -> None:
        call.failed = failed
        call.result = json.loads(json.dumps(result))
        raise Ended

    args = {**params, "_ansible_check_mode": check, "_ansible_diff": diff}
    with (
        patch_module_args(args),
        mock.patch.object(basic.AnsibleModule, "run_command", run_command),
        mock.patch.object(basic.AnsibleModule, "exit_json", lambda self, **result: ended(self, False, result)),
        mock.patch.object(
            basic.AnsibleModule, "fail_json", lambda self, msg, **result: ended(self, True, {"msg": msg, **result})
        ),
        pytest.raises(Ended),
    ):
        loaded.main(*([STAGE_OF[name]] if name in STAGE_OF else []))
    return call


STAGE_OF = {
    f"eyrie_{stage}": stage
    for stage in ("target", "dataset", "responses", "tokens", "hidden_states", "draft", "benchmark", "report")
    if (PROJECT / "library" / f"eyrie_{stage}.py").exists()
}


MODULES = sorted(path.stem for path in (PROJECT / "library").glob("*.py"))


@pytest.fixture(scope="session")
def documented() -> dict[str, dict[str, Any]]:
    """Per module what `ansible-doc` shows of it, fragments included."""
    env = {**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg")}
    argv = [str(Path(sys.executable).parent / "ansible-doc"), "--type", "module", "--json", *MODULES]
    done = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=PROJECT, check=True)
    return {name: entry["doc"] for name, entry in json.loads(done.stdout).items()}


def spec_of(root: Path | str) -> dict[str, Any]:
    """A complete, small spec."""
    return {
        "root": str(root),
        "run": "main",
        "host": "here",
        "target": {
            "name": "small",
            "source": {"kind": "package", "package": "small-model", "file": "small/model.gguf"},
            "hidden_size": 8,
            "num_hidden_layers": 12,
            "num_attention_heads": 4,
            "vocab_size": 64,
            "aux_layers": [2, 6, 9],
        },
        "server": {"port": 18000},
        "stages": {"dataset": {"samples": 1000}},
        "execution": {},
        "planning": {"answer_tokens": 100.0, "prompt_tokens": 50.0},
    }


#: two hosts of a group
PAIR = {"a": {"ansible_host": "10.0.0.1"}, "b": {"ansible_host": "10.0.0.2"}}


def pair_inventory(folder: Path, **variables: Any) -> None:
    """An inventory in a folder: PAIR as a group of a GPU profile, with its variables."""
    hosts = {"all": {"children": {"rtx6000bw": {"children": {"pair": {"hosts": PAIR}}}}}}
    (folder / "group_vars").mkdir(parents=True)
    (folder / "hosts.json").write_text(json.dumps(hosts))
    (folder / "group_vars" / "pair.json").write_text(json.dumps({"eyrie_profile": "pair", **variables}))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The root of a host whose node package is installed."""
    command = tmp_path / "venv" / "bin" / "eyrie"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\nexit 99\n")
    command.chmod(0o755)
    return tmp_path

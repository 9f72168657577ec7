"""eyrie_doctor, eyrie_gc, and the doctor's word at the end of a failed stage: through Ansible, with a small command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]
FINDING = {
    "id": "disk-full",
    "title": "The disk is full",
    "stage": "tokens",
    "cause": "No room is left.",
    "cure": "Make room.",
    "where": "/x/log:3",
    "line": "ENOSPC",
}
ITEM = {"path": "/x/runs/main/tokens/ab", "bytes": 12, "rule": "superseded"}
COMMAND = """#!{python}
import json, sys
answers = json.load(open({answers!r}))
open({calls!r}, "a").write(json.dumps(sys.argv[1:]) + chr(10))
key = " ".join(arg for arg in sys.argv[1:] if arg in ("gc", "--apply", "doctor", "wait", "tokens", "canary", "judge"))
rc, answer = answers[key]
print(json.dumps(answer))
sys.exit(rc)
"""


class Host:
    """A host with an `eyrie` command that answers as told, and Ansible to call modules there."""

    def __init__(self, path: Path):
        self.path, self.calls_path, self.cli = path, path / "calls", path / "eyrie"

    def answer(self, answers: dict[str, tuple[int, dict[str, Any]]]) -> None:
        (self.path / "answers.json").write_text(json.dumps(answers))
        names = {"answers": str(self.path / "answers.json"), "calls": str(self.calls_path)}
        self.cli.write_text(COMMAND.format(python=sys.executable, **names))
        self.cli.chmod(0o755)

    def call(self, module: str, *flags: str, **args: Any) -> dict[str, Any]:
        given = {"spec": {"root": "/x", "run": "main"}, "cli": str(self.cli), **args}
        env = {
            **os.environ,
            "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.minimal",
            "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1",
            "ANSIBLE_NOCOLOR": "1",
        }
        argv = [str(Path(sys.executable).parent / "ansible"), "localhost", "-i", "localhost,", "-c", "local"]
        argv += ["-e", f"ansible_python_interpreter={sys.executable}", "-m", module, "-a", json.dumps(given), *flags]
        self.out = out = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=PROJECT, check=False).stdout
        text = out[out.rindex("=> {") + 3 : out.rindex("}") + 1]
        answer: dict[str, Any] = json.loads(text)
        return answer

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in self.calls_path.read_text().splitlines()]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_doctor_shows_cause_and_cure(host: Host) -> None:
    host.answer({"doctor tokens": (0, {"findings": [FINDING], "last_lines": [], "looked_at": ["/x/log"]})})
    result = host.call("eyrie_doctor", stage="tokens")
    assert result["changed"] is False
    assert result["lines"][:2] == ["The disk is full [tokens]", "  cause: No room is left."]
    assert host.calls == [["doctor", "tokens", "--root", "/x", "--run", "main", "--json"]]


def test_doctor_shows_the_last_lines_when_it_knows_nothing(host: Host) -> None:
    host.answer({"doctor": (0, {"findings": [], "last_lines": ["boom"], "looked_at": []})})
    assert host.call("eyrie_doctor")["lines"][-1] == "  boom"


def test_doctor_refuses_a_misspelt_stage(host: Host) -> None:
    host.answer({})
    assert "value of stage must be one of" in host.call("eyrie_doctor", stage="token")["msg"]


@pytest.mark.parametrize("module", ["eyrie_doctor", "eyrie_gc"])
def test_host_without_the_node_package(host: Host, module: str) -> None:
    result = host.call(module)
    assert result["changed"] is False
    assert "not installed here" in result["lines"][0] or "Nothing is installed here" in result["lines"][0]


@pytest.mark.parametrize("module", ["eyrie_doctor", "eyrie_gc"])
def test_error_of_the_node_package_is_the_task_s(host: Host, module: str) -> None:
    error = {"error": {"code": "x", "what": "it is broken.", "where": "here", "why": "", "todo": "mend it."}}
    host.answer({"doctor": (1, error), "gc": (1, error)})
    assert host.call(module)["msg"] == "here: it is broken. Do: mend it."


PLAN = {"items": [ITEM], "kept": [], "bytes": 12, "id": "0123456789ab", "lines": ["may go"]}


def test_gc_in_check_mode_deletes_nothing(host: Host) -> None:
    host.answer({"gc": (0, PLAN)})
    result = host.call("eyrie_gc", "--check", "--diff")
    assert result["changed"] is True
    assert result["bytes"] == 12
    assert "-/x/runs/main/tokens/ab" in host.out
    assert [call[:2] for call in host.calls] == [["gc", "--json"]]


def test_gc_deletes_exactly_what_was_planned(host: Host) -> None:
    done = {"deleted": [ITEM], "skipped": [], "bytes": 12, "id": PLAN["id"], "lines": ["deleted"]}
    host.answer({"gc": (0, PLAN), "gc --apply": (0, done)})
    result = host.call("eyrie_gc")
    assert result["changed"] is True
    assert result["lines"] == ["deleted"]
    assert host.calls[1] == ["gc", "--apply", "--expect", "0123456789ab", "--json"]


def test_gc_with_nothing_to_delete_is_not_a_change(host: Host) -> None:
    host.answer({"gc": (0, {**PLAN, "items": [], "bytes": 0})})
    assert host.call("eyrie_gc")["changed"] is False
    assert len(host.calls) == 1


def test_failed_stage_ends_with_the_doctor_s_finding(host: Host) -> None:
    error = {"code": "unexpected", "what": "OSError: 28", "where": "", "why": "", "todo": ""}
    waited = {"status": "failed", "error": error, "log": "/x/log", "finished": False}
    found = {"findings": [FINDING], "last_lines": [], "looked_at": []}
    host.answer({"wait tokens": (0, waited), "doctor tokens": (0, found)})
    result = host.call("eyrie_info", query="wait", stage="tokens", fingerprint="ab")
    assert result["msg"] == "tokens failed. OSError: 28 Doctor: No room is left. Cure: Make room."
    assert result["doctor"][0]["id"] == "disk-full"


def test_failed_stage_is_told_although_the_doctor_is_ill(host: Host) -> None:
    waited = {"status": "interrupted", "error": None, "log": "/x/log", "finished": False}
    ill = {"error": {"code": "x", "what": "no catalogue", "where": "", "why": "", "todo": ""}}
    host.answer({"wait tokens": (0, waited), "doctor tokens": (1, ill)})
    result = host.call("eyrie_info", query="wait", stage="tokens", fingerprint="ab")
    assert result["msg"] == "tokens interrupted. It was killed."


def canary_spec(host: Host) -> dict[str, Any]:
    stages = {"dataset": {"samples": 9}, "benchmark": {}, "draft": {}}
    target = {"aux_layers": [1, 2, 3], "hidden_size": 8}
    return {"root": str(host.path / "root"), "run": "main", "target": target, "stages": stages}


def test_canary_is_prepared_once(host: Host) -> None:
    first = host.call("eyrie_canary", spec=canary_spec(host), settings={"prompts": 12}, state="prepared")
    assert first["changed"] is True
    assert first["spec"]["run"] == "main-canary"
    assert first["stages"][0] == "target"
    assert first["forecast"]["seconds"] > 0
    path = host.path / "root" / "canary" / "prompts.jsonl"
    assert path.read_text().count("\n") == 12
    again = host.call("eyrie_canary", spec=canary_spec(host), settings={"prompts": 12}, state="prepared")
    assert again["changed"] is False


def test_canary_in_check_mode_writes_nothing(host: Host) -> None:
    result = host.call("eyrie_canary", "--check", "--diff", spec=canary_spec(host), state="prepared")
    assert result["changed"] is True
    assert "+{" in host.out
    assert not (host.path / "root").exists()


def test_canary_refuses_a_misspelt_setting(host: Host) -> None:
    result = host.call("eyrie_canary", spec=canary_spec(host), settings={"prompt": 12}, state="prepared")
    assert "unknown canary setting 'prompt'" in result["msg"]


def test_canary_s_faults_are_the_task_s_failure(host: Host) -> None:
    error = {"code": "canary-failed", "what": "[mask] x", "where": "", "why": "", "todo": "mend it."}
    host.answer({"canary judge": (1, {"error": error})})
    result = host.call("eyrie_canary", spec=canary_spec(host), state="judged")
    assert result["msg"] == "[mask] x Do: mend it."


def test_sound_canary_is_told_in_figures(host: Host) -> None:
    reached = {"trained": 2.5, "untrained": 1.0, "predicted": 2.4}
    host.answer({"canary judge": (0, {"ok": True, "faults": [], "acceptance": reached})})
    result = host.call("eyrie_canary", spec=canary_spec(host), settings={"steps": 9}, state="judged")
    assert result["lines"] == ["canary sound: acceptance length 2.50, untrained 1.00, predicted 2.40"]
    assert host.calls[0][2:] == ["--settings", '{"steps": 9}']

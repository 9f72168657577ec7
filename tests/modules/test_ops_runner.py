"""`python -m eyrie.runner`: a play as a service runs it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SECRET = "hf_" + "S3cr3tS3cr3t"
PLAY = f"""
- name: Work
  hosts: all
  gather_facts: false
  connection: local
  tasks:
    - name: Change something
      ansible.builtin.command: {{argv: [{sys.executable}, -c, ""]}}
    - name: Read a secret
      ansible.builtin.debug:
        msg: "the hub's token has {{{{ lookup('ansible.builtin.env', 'HUB_TOKEN') | length }}}} characters"
    - name: Fail when asked
      ansible.builtin.command:
        argv: [{sys.executable}, -c, "import sys; sys.exit('rsync: command not found')"]
      when: broken | default(false) | bool
"""


class Service:
    """A project of one playbook and two hosts, and the runner called as a service would."""

    def __init__(self, path: Path):
        self.path = path
        (path / "ansible.cfg").write_text("[defaults]\ninventory = hosts.yml\n")
        hosts = {"all": {"hosts": {"box": {}, "other": {}}, "vars": {"ansible_python_interpreter": sys.executable}}}
        (path / "hosts.yml").write_text(json.dumps(hosts))
        (path / "train.yml").write_text(PLAY)
        self.artifacts = path / "artifacts" / "runner"

    def run(self, *words: str) -> tuple[int, dict[str, Any], str]:
        env = {**os.environ, "PYTHONPATH": str(PROJECT / "src"), "HUB_TOKEN": SECRET}
        env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
        argv = [sys.executable, "-m", "eyrie.runner", "--project", str(self.path), *words]
        done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False)
        return done.returncode, json.loads(done.stdout), done.stderr


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)


def test_successful_play_with_events_and_artifacts(service: Service) -> None:
    rc, answer, shown = service.run("-l", "box", "--ident", "one")
    assert (rc, answer["status"], answer["changed"]) == (0, "successful", 1)
    assert answer["hosts"] == {"box": {"ok": 2, "changed": 1, "skipped": 1}}
    assert "TASK [Change something]" in shown
    kept = service.artifacts / "one"
    assert json.loads((kept / "summary.json").read_text()) == answer
    assert len(list((kept / "job_events").glob("*.json"))) > 5
    assert stat.S_IMODE(service.artifacts.stat().st_mode) == 0o700
    assert stat.S_IMODE((kept / "summary.json").stat().st_mode) == 0o600


def test_failure_is_summarised_with_cause_and_told(service: Service, tmp_path: Path) -> None:
    hook, caught = tmp_path / "hook", tmp_path / "caught"
    hook.write_text(f"#!/bin/sh\necho $EYRIE_EVENT > {caught}\ncat >> {caught}\n")
    hook.chmod(0o755)
    rc, answer, _ = service.run("-l", "box", "-e", "broken=true", "--hook", str(hook))
    assert rc == 2
    assert answer["failed"][0]["task"] == "Fail when asked"
    assert answer["failed"][0]["doctor"]["id"] == "rsync-missing"
    name, body = caught.read_text().split("\n", 1)
    assert name == "play.failed"
    assert "Cure:" in json.loads(body)["text"]


def test_no_host_is_not_a_success(service: Service) -> None:
    rc, answer, _ = service.run("-l", "bxo")
    assert rc == answer["rc"] != 0
    assert answer["hosts"] == {}


def test_play_that_ends_well_with_no_host_is_not_a_success(service: Service) -> None:
    (service.path / "train.yml").write_text(PLAY.replace("hosts: all", "hosts: nobody"))
    rc, answer, _ = service.run("-l", "box")
    assert (rc, answer["status"]) == (4, "no hosts matched")


def test_check_mode_changes_nothing(service: Service) -> None:
    rc, answer, _ = service.run("-l", "box", "--check")
    assert (rc, answer["check"], answer["changed"]) == (0, True, 0)


def test_old_artifacts_go(service: Service) -> None:
    for name in ("a", "b", "c"):
        service.run("-l", "box", "--ident", name, "--keep", "2", "--check")
    assert len([path for path in service.artifacts.iterdir() if (path / "summary.json").exists()]) == 2


@pytest.mark.parametrize("word", ["hub_token=abc", "my_password=x", "API_KEY=1", "novalue"])
def test_secret_on_the_command_line_is_refused(service: Service, word: str) -> None:
    rc, answer, _ = service.run("-l", "box", "-e", word)
    assert rc == 2
    assert answer["error"]["code"] == "runner-secret"
    assert not service.artifacts.exists() or not list(service.artifacts.iterdir())


def test_secret_of_the_environment_is_nowhere_in_the_artifacts(service: Service) -> None:
    rc, _, shown = service.run("-l", "box")
    assert rc == 0
    assert f"has {len(SECRET)} characters" in shown
    kept = [path for path in service.artifacts.rglob("*") if path.is_file()]
    assert kept
    assert [path for path in kept if SECRET.encode() in path.read_bytes()] == []


def test_variables_from_a_file(service: Service, tmp_path: Path) -> None:
    (tmp_path / "vars.yml").write_text("broken: true\n")
    assert service.run("-l", "box", "-e", f"@{tmp_path / 'vars.yml'}")[0] == 2


def test_folder_without_a_project(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "eyrie.runner", "-l", "box", "--project", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "src")}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "no-project"

"""Waiting, as a user sees it: one progress line a look, no retry noise, failures with their words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PLAY = """
- name: Wait
  hosts: localhost
  connection: local
  gather_facts: false
  vars:
    eyrie_spec: {spec}
    eyrie_stage_result: {{plan: {{fingerprint: {fingerprint}}}, since: 0}}
  tasks:
    - name: Wait for the draft
      ansible.builtin.include_role:
        name: wait
      vars:
        wait_stage: draft
        wait_look_seconds: 0.1
"""
#: an `eyrie` whose job is looked at three times before it ends as told
CLI = """#!{python}
import json, pathlib, sys
count = pathlib.Path(__file__).with_name("looks")
looks = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(looks))
answer = {{"status": "running", "finished": False, "record": None, "error": None, "seconds": looks, "log": "/log"}}
answer["progress"] = {{"phase": "train", "done": 10 * looks, "total": 40, "unit": "steps"}}
answer["progress"].update(rate=2.5, eta_s=7, bytes=0)
if sys.argv[1] == "doctor":
    answer = {{"findings": []}}
elif looks > 3:
    answer.update({end})
print(json.dumps(answer))
"""


def wait(tmp_path: Path, end: dict[str, object]) -> subprocess.CompletedProcess[str]:
    command = tmp_path / "root" / "venv" / "bin" / "eyrie"
    command.parent.mkdir(parents=True)
    command.write_text(CLI.format(python=sys.executable, end=repr(end)))
    command.chmod(0o755)
    spec = {"root": str(tmp_path / "root"), "run": "main"}
    path = tmp_path / "play.yml"
    path.write_text(PLAY.format(spec=json.dumps(spec), fingerprint="a" * 64))
    env = {**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    argv = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", str(path)]
    argv += ["-e", f"ansible_python_interpreter={sys.executable}"]
    return subprocess.run(argv, capture_output=True, text=True, env=env, cwd=PROJECT, check=False)


def test_progress_is_shown_while_the_job_runs(tmp_path: Path) -> None:
    done = wait(tmp_path, {"status": "done", "finished": True, "record": {"seconds": 9}, "progress": None})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[localhost] draft: train 20/40 steps, 2.5/s, 7 s left" in done.stdout
    assert "RETRYING" not in done.stdout
    assert "Validating arguments" not in done.stdout, "checks of arguments are silent while they pass"
    assert "changed=0" in done.stdout


def test_a_job_that_fails_ends_the_wait_at_once(tmp_path: Path) -> None:
    error = {"what": "loss is NaN", "where": "step 12", "why": "", "todo": "Lower the rate."}
    failed = wait(tmp_path, {"status": "failed", "error": error, "progress": None})
    assert failed.returncode == 2
    assert "draft failed. step 12: loss is NaN Do: Lower the rate." in failed.stdout

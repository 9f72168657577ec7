"""The default output ends a known failure with its cause and cure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PLAY = """
- name: Fail
  hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - name: Fail as a known failure does, and go on
      ansible.builtin.command: {{argv: [{python}, -c, "import sys; sys.exit('sorry, you must have a tty')"]}}
      ignore_errors: true
    - name: Fail
      ansible.builtin.command: {{argv: [{python}, -c, "import sys; sys.exit('{words}')"]}}
"""


def play(tmp_path: Path, words: str) -> str:
    path = tmp_path / "play.yml"
    path.write_text(PLAY.format(python=sys.executable, words=words))
    env = {**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    argv = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", str(path)]
    argv += ["-e", f"ansible_python_interpreter={sys.executable}"]
    return subprocess.run(argv, capture_output=True, text=True, env=env, cwd=PROJECT, check=False).stdout


def test_known_failure_ends_with_cause_and_cure(tmp_path: Path) -> None:
    out = play(tmp_path, "bash: rsync: command not found")
    assert "doctor: rsync must be on both ends" in out
    assert out.count("doctor: ") == 1  # not for the failure that was to be ignored


def test_unknown_failure_is_shown_as_it_is(tmp_path: Path) -> None:
    out = play(tmp_path, "something nobody has seen")
    assert "something nobody has seen" in out
    assert "doctor: " not in out

"""Question files of the benchmark: a relative path is one of the project folder, wherever the playbook lies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: benchmark, tasks_from: questions}
"""


@pytest.mark.parametrize("place", ["relative", "absolute"])
def test_a_question_file_is_found_and_copied(tmp_path: Path, place: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    play = tmp_path / "elsewhere" / "play.yml"
    play.write_text(PLAY)
    source = PROJECT / "tests" / "modules" / "cases" / "questions.jsonl"
    given = str(source.relative_to(PROJECT) if place == "relative" else source)
    values = {
        "eyrie_root": str(tmp_path / "root"),
        "eyrie_benchmark_prompt_files": [{"name": "mine", "src": given}],
    }
    (tmp_path / "root" / "prompts").mkdir(parents=True)
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), play, "-l", "local", "-e", json.dumps(values)],
        cwd=PROJECT,
        env={**os.environ, "NO_COLOR": "1", "ANSIBLE_ROLES_PATH": str(PROJECT / "roles")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (tmp_path / "root" / "prompts" / "questions.jsonl").read_bytes() == source.read_bytes()

"""The whole project as a user runs it: ansible-playbook from the project's root, on this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
RECAP = re.compile(r"^localhost\s+: (.*)$", re.MULTILINE)


@dataclass
class Play:
    """One ended ansible-playbook call."""

    rc: int
    out: str

    def recap(self, key: str) -> int:
        line = RECAP.findall(self.out)[-1]
        return int(re.search(rf"{key}=(\d+)", line)[1])


class Project:
    """Runs playbooks of the checkout against one root and run name."""

    def __init__(self, root: Path, run: str, variables: dict[str, object]):
        self.root, self.run = root, run
        self.variables = {"eyrie_root": str(root), "eyrie_run": run, **variables}

    def command(self, playbook: str, *args: str, **extra: object) -> list[str]:
        values = json.dumps({**self.variables, **extra})
        binary = Path(sys.executable).with_name("ansible-playbook")
        return [str(binary), playbook, "-l", "local", "-e", values, *args]

    def play(self, playbook: str = "train.yml", *args: str, check: bool = True, **extra: object) -> Play:
        done = subprocess.run(
            self.command(playbook, *args, **extra),
            cwd=PROJECT,
            env={**os.environ, "ANSIBLE_FORCE_COLOR": "0", "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2400,
        )
        sys.stdout.write(done.stdout)
        if check:
            assert done.returncode == 0, done.stdout[-4000:]
        return Play(done.returncode, done.stdout)

    def record(self, stage: str) -> dict[str, object]:
        return json.loads((self.root / "runs" / self.run / "state" / stage / "latest.json").read_text())

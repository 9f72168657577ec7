"""Two hosts as one by train.yml: they answer, capture and train together, one is lost; the result is that of one host.

Both are folders on this machine (local connections, loopback addresses), each with its own environment, supervisor and
servers; what one needs of the other goes the way that a port goes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="needs the node environment")
sys.path.insert(0, str(Path(__file__).resolve().parent))

from house import PROJECT, STAGES, House, free_port

pytestmark = [pytest.mark.node, pytest.mark.slow]

MADE = STAGES[: STAGES.index("draft") + 1]
#: the environment is there, nothing is installed, and what is measured afterwards is another test's
SKIPPED = "bootstrap,preflight,runtime,canary,benchmark,report,summary"
TRAINING = {"epochs": 3, "checkpoint_freq": 0.34, "val_ratio": 0.15}


def variables(house: House) -> dict[str, Any]:
    """The house's stages as they are; the server and what a group sets of training by the inventory's own variables."""
    spec = house.spec(draft=TRAINING)
    values: dict[str, Any] = {f"eyrie_{name}": spec["stages"][name] for name in STAGES[1:]}
    of_group = {key: f"{{{{ eyrie_draft_{key} }}}}" for key in ("hosts", "rdzv_endpoint", "local_addr")}
    values["eyrie_draft"] = {**values["eyrie_draft"], **of_group, "join_timeout_s": 90}
    return values | {
        "eyrie_profile": "pair",
        "eyrie_target": spec["target"],
        "eyrie_server_device": "cpu",
        "eyrie_server_start_timeout_s": 60,
        "eyrie_server_stop_timeout_s": 5,
        "eyrie_server_eagle3_min_acceptance": 0.0,
        "eyrie_execution_supervisor": "supervisord",
        "eyrie_execution_threads": 1,
        "eyrie_group_address": "127.0.0.1",
        "eyrie_group_port": free_port(),
        "eyrie_group_serve": True,
        "eyrie_group_capture": True,
        "eyrie_port_spool": str(house.work.parent / "spool"),
    }


@dataclass
class Pair:
    """Two houses, the inventory that makes a group of them, and what the plays said."""

    work: Path
    first: House
    second: House
    said: list[str] = field(default_factory=list)

    @property
    def houses(self) -> list[House]:
        return [self.first, self.second]

    def inventory(self) -> None:
        hosts = {
            house.work.name: {
                "ansible_connection": "local",
                "ansible_python_interpreter": "{{ ansible_playbook_python }}",
                "eyrie_root": str(house.root),
                "eyrie_server_port": house.port,
                "eyrie_server_command": house.spec()["server"]["command"],
            }
            for house in self.houses
        }
        folder = self.work / "inventory"
        (folder / "group_vars").mkdir(parents=True)
        (folder / "hosts.json").write_text(json.dumps({"all": {"children": {"pair": {"hosts": hosts}}}}))
        (folder / "group_vars" / "pair.json").write_text(json.dumps(variables(self.first)))

    def play(self, playbook: str, *args: str) -> int:
        binary = shutil.which("ansible-playbook")
        assert binary, "ansible-playbook is not on PATH: `make faults` puts the controller's there"
        env = {
            **self.first.environment(),
            "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
            "ANSIBLE_LOCAL_TEMP": str(self.work / "tmp"),
            "ANSIBLE_REMOTE_TMP": str(self.work / "remote"),
            "ANSIBLE_NOCOLOR": "1",
        }
        argv = [binary, "-i", "inventory", "-i", str(self.work / "inventory"), playbook, "-l", "pair", *args]
        done = subprocess.run(
            argv, cwd=PROJECT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=600, check=False,
        )  # fmt: skip
        self.said.append(done.stdout)
        (self.work / f"play{len(self.said)}.txt").write_text(done.stdout)
        return done.returncode

    def lose_the_second(self) -> None:
        """kill -9 of the second host's trainers, as soon as the first has written a checkpoint."""
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            lines = [
                text
                for path in self.first.root.glob("runs/main/draft/*/train/metrics.jsonl")
                for text in lines_of(path)
            ]
            if any('"checkpoint"' in line for line in lines):
                break
            time.sleep(0.01)
        for pid in self.second.pids():
            if b"eyrie.draft.meeting" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.killpg(os.getpgid(pid), signal.SIGKILL)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def install(house: House) -> None:
    """The node package's command: the checkout's, under this interpreter."""
    command = house.root / "venv" / "bin" / "eyrie"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text(f'#!/bin/sh\nPYTHONPATH={PROJECT / "src"} exec {sys.executable} -m eyrie "$@"\n')
    command.chmod(0o755)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> House:
    """One host that makes the same with two trainer processes."""
    house = House(tmp_path_factory.mktemp("one") / "alone", 60)
    spec = house.spec(draft={**TRAINING, "processes": 2})
    try:
        for stage in MADE:
            process = house.command("run", stage, spec)
            out, _ = process.communicate(timeout=300)
            assert process.returncode == 0, out[-3000:]
    finally:
        house.kill_all()
    return house


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The pair after a first play, in whose training the second host was lost, and a second one."""
    work = tmp_path_factory.mktemp("pair")
    made = Pair(work, House(work / "first", 60), House(work / "second", 60))
    made.inventory()
    try:
        assert made.play("playbooks/provision.yml", "--tags", "layout") == 0, made.said[-1][-4000:]
        for house in made.houses:
            install(house)
        loser = threading.Thread(target=made.lose_the_second, daemon=True)
        loser.start()
        assert made.play("train.yml", "--skip-tags", SKIPPED) != 0, made.said[-1][-4000:]
        loser.join(30)
        assert made.play("train.yml", "--skip-tags", SKIPPED) == 0, made.said[-1][-4000:]
    finally:
        for house in made.houses:
            house.kill_all()
    return made


def kinds(house: House, kind: str) -> Counter[str]:
    return Counter({name: count for name, count in house.requests().items() if name.startswith(kind)})


def test_both_servers_answer_and_none_answers_what_the_other_did(pair: Pair) -> None:
    first, second = (kinds(house, "chat") for house in pair.houses)
    proofs = set(first) & set(second)  # what every server is asked before it counts as the baseline
    rows = pair.first.record("responses")["account"]["kept"]
    assert len(proofs) <= 2
    assert min(len(first), len(second)) > rows // 4
    assert len(set(first) | set(second)) - len(proofs) == rows


def test_each_host_captures_its_share(pair: Pair) -> None:
    """Both captured some, and the rows were made of what was gathered: nothing was captured a second time."""
    for house in pair.houses:
        history = house.root / "runs" / "main" / "state" / "hidden_states" / "history.jsonl"
        assert "this host's share is captured" in history.read_text()
    figures = pair.first.record("hidden_states")["figures"]
    assert (figures["captured"], figures["reused"]) == (0, figures["unique"])


def test_a_lost_host_is_named_and_training_goes_on(pair: Pair) -> None:
    lost = pair.said[1]
    assert "the training of the group broke: a host or its trainer was lost" in lost  # they share an address here
    assert "the training of the group broke: the trainer of second was killed (signal 9)" in lost
    assert "first, second" in lost
    figures = pair.first.record("draft")["figures"]
    assert figures["resumed_from"] > 0
    assert pair.second.record("draft")["figures"]["draft_is_on"] == "first"


@pytest.mark.parametrize("stage", MADE[1:])
def test_the_result_is_that_of_one_host(pair: Pair, alone: House, stage: str) -> None:
    assert alone.items(stage)
    assert pair.first.items(stage) == alone.items(stage)

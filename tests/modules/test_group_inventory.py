"""Two hosts in a profile's group, as the inventory composes their specs: each its own, and one seen from the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.modules.conftest import PAIR, pair_inventory

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """{name: {own, other}}: a host's spec by its own variables, and the other's by hostvars, as a port reads it."""
    folder = tmp_path_factory.mktemp("pair")
    pair_inventory(folder, eyrie_group_serve=True, eyrie_root="/data/eyrie")
    shown = "{'own': eyrie_spec, 'other': hostvars['b' if inventory_hostname == 'a' else 'a'].eyrie_spec}"
    argv = [
        "ansible", "pair", "-i", "inventory", "-i", str(folder), "-c", "local", "-m", "ansible.builtin.copy",
        "-a", f"dest={folder}/{{{{ inventory_hostname }}}}.json content=\"{{{{ {shown} | to_json }}}}\"",
    ]  # fmt: skip
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    extra = ["-e", json.dumps({"ansible_python_interpreter": sys.executable})]
    done = subprocess.run([*argv, *extra], cwd=PROJECT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in PAIR}


def test_both_know_the_group_and_where_to_meet(seen: dict[str, Any]) -> None:
    for name, address in (("a", "10.0.0.1"), ("b", "10.0.0.2")):
        draft = seen[name]["own"]["stages"]["draft"]
        assert draft["hosts"] == ["a", "b"]
        assert draft["addresses"] == ["10.0.0.1", "10.0.0.2"]
        assert draft["rdzv_endpoint"] == "10.0.0.1:29400"
        assert draft["local_addr"] == address


def test_only_the_leader_asks_the_others_servers(seen: dict[str, Any]) -> None:
    assert seen["a"]["own"]["server"]["endpoints"] == ["http://10.0.0.2:8000"]
    assert seen["a"]["own"]["server"]["host"] == "127.0.0.1"
    assert seen["b"]["own"]["server"]["endpoints"] == []
    assert seen["b"]["own"]["server"]["host"] == "10.0.0.2"


def test_seen_from_another_host_it_is_the_same_run(seen: dict[str, Any]) -> None:
    """Ports speak for two hosts: the other's spec has the same fingerprints as its own jobs'."""
    from eyrie.core.pipeline import Pipeline

    for name, other in (("a", "b"), ("b", "a")):
        own, there = seen[name]["own"], seen[other]["other"]
        assert there["host"] == own["host"] == name
        prints = [Pipeline(spec).context("draft").fingerprint for spec in (own, there)]
        assert prints[0] == prints[1]

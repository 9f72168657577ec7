"""Two hosts that hold the target together: what the inventory composes for each, and the units of the role."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eyrie.core import spec
from eyrie.serve import lint
from eyrie.serve.settings import ServerSettings
from tests.modules.conftest import pair_inventory

PROJECT = Path(__file__).resolve().parents[2]
PLAY = """
- hosts: pair
  gather_facts: false
  connection: local
  vars: {ansible_python_interpreter: "{{ ansible_playbook_python }}", server_names: [baseline, extract, eagle3]}
  tasks:
    - ansible.builtin.copy:
        content: "{{ {'server': eyrie_server, 'lock': eyrie_runtime.lock} | to_json }}"
        dest: "{{ place }}/{{ inventory_hostname }}.json"
        mode: "0644"
    - ansible.builtin.template:
        src: "{{ item.src }}"
        dest: "{{ place }}/{{ inventory_hostname }}-{{ item.name }}.service"
        mode: "0644"
      vars: {server_name: baseline}
      loop:
        - {name: ray, src: "{{ eyrie_project }}/roles/server/templates/eyrie-ray.service.j2"}
        - {name: server, src: "{{ eyrie_project }}/roles/server/templates/eyrie-server.service.j2"}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("together")
    pair_inventory(
        folder / "inventory",
        eyrie_root="/srv/80% $x/eyrie",
        eyrie_server_hosts="{{ eyrie_group }}",
        eyrie_server_user="eyrie",
    )
    (folder / "play.yml").write_text(PLAY)
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", "inventory", "-i", folder / "inventory",
         folder / "play.yml", "-e", json.dumps({"place": str(folder)})],
        cwd=PROJECT, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    return folder


def composed(made: Path, host: str) -> dict[str, Any]:
    return dict(json.loads((made / f"{host}.json").read_text()))


@pytest.mark.parametrize(("host", "own"), [("a", "10.0.0.1"), ("b", "10.0.0.2")])
def test_each_host_knows_all_and_itself(made: Path, host: str, own: str) -> None:
    found = spec.load(ServerSettings, composed(made, host)["server"], "server").ray
    assert (found.used, found.nodes, found.own, found.address) == (True, ["10.0.0.1", "10.0.0.2"], own, "10.0.0.1:6379")
    assert found.token == "/srv/80% $x/eyrie/ray/token"


def test_their_environment_holds_ray_beside_the_lock(made: Path) -> None:
    lines = composed(made, "a")["lock"].splitlines()
    names = [line.split("==")[0] for line in lines if "==" in line]
    assert {"ray", "msgpack", "vllm"} <= set(names)
    assert len(names) == len(set(names)), "a distribution is pinned twice"


def test_another_environment_makes_another_unit(made: Path) -> None:
    """So the role restarts the node; a unit that says nothing of it would go on running what is no longer there."""
    lock = composed(made, "a")["lock"]
    assert hashlib.sha256(lock.encode()).hexdigest()[:12] in (made / "a-ray.service").read_text()


@pytest.mark.parametrize("unit", ["a-ray", "b-ray", "a-server"])
def test_systemd_reads_the_units_as_they_are_meant(made: Path, unit: str) -> None:
    text = (made / f"{unit}.service").read_text()
    assert [finding for finding in lint.unit(text) if finding.level == lint.ERROR] == []
    assert "/srv/80%% $$x/eyrie" in next(line for line in text.splitlines() if line.startswith("ExecStart="))
    assert "eyrie/ray" in next(line for line in text.splitlines() if line.startswith("ReadWritePaths="))

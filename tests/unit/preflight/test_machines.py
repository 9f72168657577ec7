"""Whole machines, right and wrong: which checks speak, and that right ones are silent.

The machines are composed in the form that nvidia-smi, lspci, dmesg and sysfs print.
"""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.eyrie.preflight import examine

from tests.unit.preflight.conftest import recorded

#: machine, profile -> {check: level} of everything that is not mere information
MACHINES = {
    ("rtx6000bw-good", "rtx6000bw"): {},
    ("b200nvl8-good", "b200nvl8"): {},
    ("rtx6000bw-virtual", "rtx6000bw"): {"peer to peer": "warning", "nccl topology": "warning", "iommu": "warning"},
    ("rtx6000bw-epyc", "rtx6000bw"): {"nccl topology": "warning"},
    ("rtx6000bw-seven", "rtx6000bw"): {"gpus": "error", "xid": "warning"},
    ("rtx6000bw-acs", "rtx6000bw"): {"acs": "warning", "iommu": "warning"},
    ("rtx6000bw-old-driver", "rtx6000bw"): {"driver": "error"},
    ("rtx6000bw-leftovers", "rtx6000bw"): {"gpu memory in use": "error"},
    ("b200nvl8-no-fabric", "b200nvl8"): {"link": "error", "ecc": "error"},
    ("mismatch", "rtx6000bw"): {"gpus": "error"},
    ("mixed", "rtx6000bw"): {"gpu model": "error", "gpu memory": "error"},
    ("cpu-only", "rtx6000bw"): {"gpus": "error"},
    ("cpu-only", "local"): {},
    # the wrong profile for the machine
    ("rtx6000bw-good", "b200nvl8"): {
        "gpu model": "error",
        "gpu memory": "error",
        "compute capability": "error",
        "link": "error",
        "all-reduce": "error",
    },
    ("b200nvl8-good", "rtx6000bw"): {
        "gpu model": "error",
        "compute capability": "error",
        "link": "warning",
        "all-reduce": "warning",
    },
}


def spoken(machine: str, profile: str, context: Any, **more: Any) -> list[dict[str, str]]:
    host = recorded(machine)
    host.data["commands"] = {**host.data["commands"], **PYTHON}
    known = context(profile, expect={"memory_bytes": 0}, plans=PLANS, **more)
    return [item for item in examine(host, known) if item["level"] != "info"]


PLANS = [{"stage": "draft", "up_to_date": True, "forecast": {"bytes": 0, "seconds": 0}}]
PYTHON = {
    "-c import": '{"version": [3, 11, 7], "executable": "/usr/bin/python3.11", "venv": true}',
    "pip --version": "pip 23.2.1",
    "index versions": "torch (2.15.0)\nAvailable versions: 2.15.0, 2.14.0, 2.13.0+cpu\n",
}


@pytest.mark.parametrize(("machine", "profile"), list(MACHINES))
def test_exactly_what_is_wrong_is_said(machine: str, profile: str, context: Any) -> None:
    found = spoken(machine, profile, context)
    assert {item["check"]: item["level"] for item in found} == MACHINES[machine, profile], found


@pytest.mark.parametrize(("machine", "profile"), list(MACHINES))
def test_every_finding_says_what_why_and_how(machine: str, profile: str, context: Any) -> None:
    for item in spoken(machine, profile, context):
        assert item["what"].endswith((".", "?", ")")), item
        assert item["cure"], item
        assert item["why"], item


def test_errors_come_first(context: Any) -> None:
    levels = [item["level"] for item in spoken("rtx6000bw-seven", "rtx6000bw", context)]
    assert levels == sorted(levels)


def test_a_given_topology_file_answers_the_misread_one(context: Any) -> None:
    from tests.unit.preflight.conftest import spec_of

    spec = spec_of()
    spec["server"]["environment"] = {"NCCL_GRAPH_FILE": "/etc/nccl.xml"}
    for machine in ("rtx6000bw-virtual", "rtx6000bw-epyc"):
        checks = [item["check"] for item in spoken(machine, "rtx6000bw", context, spec=spec)]
        assert "nccl topology" not in checks


def test_our_own_servers_may_hold_gpu_memory(context: Any) -> None:
    host = recorded("rtx6000bw-leftovers")
    for pid in (4242, 4243):
        host.data["files"][f"/proc/{pid}/environ"] = "PATH=/bin\0EYRIE_SERVER=/data/eyrie:baseline\0"
    checks = [item["check"] for item in examine(host, context("rtx6000bw", runtime={}, plans=PLANS))]
    assert "gpu memory in use" not in checks


def test_the_two_numbers_of_a_slow_bridge_are_told(context: Any) -> None:
    found = {item["check"]: item for item in spoken("rtx6000bw-virtual", "rtx6000bw", context)}
    assert "0.2 GB/s" in found["nccl topology"]["what"] or "0.3 GB/s" in found["nccl topology"]["what"]
    assert "63.0 GB/s" in found["nccl topology"]["what"]
    assert "CNS: chipset" in found["peer to peer"]["what"]

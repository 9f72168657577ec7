"""Hosts of a group agree on the run, or say on what they do not."""

from __future__ import annotations

from typing import Any

import pytest

from eyrie.core.errors import SpecError
from eyrie.port import carry


def test_equal_hosts_agree(hosts: Any) -> None:
    leader = carry.identities(hosts.alpha, {})
    found = carry.agree(hosts.beta, {"leader": leader})
    assert found["ok"]
    assert found["differences"] == []


def test_another_version_is_named_with_its_stage(hosts: Any) -> None:
    hosts.set("beta", "draft", tool="2.14.0")
    found = carry.agree(hosts.beta, {"leader": carry.identities(hosts.alpha, {})})
    assert not found["ok"]
    assert found["differences"] == [{"stage": "draft", "name": "tools.torch", "leader": "1.2.3", "host": "2.14.0"}]
    assert "draft tools.torch '1.2.3' there, '2.14.0' here" in found["message"]


def test_a_difference_far_up_the_chain_is_named_once(hosts: Any) -> None:
    hosts.set("beta", "dataset", text="other prompts")
    found = carry.agree(hosts.beta, {"leader": carry.identities(hosts.alpha, {})})
    assert not found["ok"]
    assert [(item["stage"], item["name"]) for item in found["differences"]] == [("dataset", "settings.text")]


def test_what_is_no_identity_is_refused(hosts: Any) -> None:
    with pytest.raises(SpecError, match="identities are missing"):
        carry.agree(hosts.beta, {"leader": {}})

"""Hosts that train together: who leads, how they meet, what each says when the group breaks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eyrie.core import addresses, spec
from eyrie.core.errors import SpecError
from eyrie.draft import group, last_words, launch
from eyrie.draft.settings import DraftSettings

CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [{}]:4711"


def settings(**values: Any) -> DraftSettings:
    base = {"hosts": ["a", "b", "c"], "rdzv_endpoint": "10.0.0.1:29400", "local_addr": "10.0.0.2"}
    return spec.load(DraftSettings, {**base, **values}, "draft")


def test_the_first_host_leads_and_the_others_follow() -> None:
    assert [group.rank_of(settings(), host) for host in "abc"] == [0, 1, 2]
    assert [group.follows(settings(), host) for host in "abc"] == [False, True, True]


@pytest.mark.parametrize("hosts", [[], ["a"]])
def test_a_host_alone_leads_whatever_its_name(hosts: list[str]) -> None:
    assert not group.follows(settings(hosts=hosts), "anything")
    assert group.environment(settings(hosts=hosts)) == {}


def test_a_stranger_is_named() -> None:
    with pytest.raises(SpecError, match="'d' is not among the hosts that train together: a, b, c"):
        group.rank_of(settings(), "d")


def test_hosts_meet_under_fingerprint_and_step() -> None:
    words = group.rendezvous(settings(), "b", "0123456789ab-250")
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options["--nnodes"] == "3"
    assert options["--node-rank"] == "1"
    assert options["--rdzv-id"] == "0123456789ab-250"
    assert options["--rdzv-endpoint"] == "10.0.0.1:29400"
    assert options["--local-addr"] == "10.0.0.2"
    assert options["--rdzv-backend"] == "static", "c10d numbers hosts by address: the leader must be rank 0"
    assert options["--rdzv-conf"] == "timeout=600"


@pytest.mark.parametrize(
    ("values", "host", "address"),
    [
        ({}, "a", "10.0.0.2"),
        ({"local_addr": ""}, "a", "10.0.0.1"),
        ({"local_addr": "", "rdzv_endpoint": "[fd00::1]:29400"}, "a", "fd00::1"),
        ({}, "b", ""),
        ({"hosts": [], "processes": 8}, "a", "127.0.0.1"),
    ],
)
def test_only_the_leader_listens_and_on_one_address(values: dict[str, Any], host: str, address: str) -> None:
    made = settings(**values)
    assert group.listens_on(made, host) == address
    command = launch.command(made, Path("/x"), [], 8, host, "fp")
    assert command[1:5] == ["-m", "eyrie.draft.meeting", address, "--nproc-per-node"]


@pytest.fixture
def by_name(monkeypatch: pytest.MonkeyPatch) -> DraftSettings:
    """A group whose hosts are known by name; on each its own name leads home only, as Debian's hosts file has it."""
    known = {"a.example": "127.0.1.1", "b.example": "127.0.0.2"}
    real = socket.getaddrinfo

    def getaddrinfo(name: Any, *rest: Any, **more: Any) -> Any:
        if str(name).endswith(".gone"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(known.get(name, name), *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    addresses = ["a.example", "b.example", "c.gone"]
    return settings(addresses=addresses, rdzv_endpoint="a.example:29400", local_addr="a.example")


def test_a_leader_known_by_name_listens_where_the_others_come_from(by_name: DraftSettings) -> None:
    made = group.numbered(by_name, "a")
    assert (made.local_addr, made.rdzv_endpoint) == ("127.0.0.1", "127.0.0.1:29400"), "not 127.0.1.1"
    assert group.listens_on(made, "a") == "127.0.0.1"
    assert made.addresses == ["127.0.1.1", "127.0.0.2", "c.gone"]
    assert group.lost_hosts(made, CLOSED.format("127.0.0.2"), "a") == ["b"]


def test_the_others_go_to_the_leader_by_its_name(by_name: DraftSettings) -> None:
    made = group.numbered(spec.load(DraftSettings, {**vars(by_name), "local_addr": "b.example"}, "draft"), "b")
    assert (made.local_addr, made.rdzv_endpoint) == ("127.0.0.1", "a.example:29400")


def test_numbers_stand_and_so_does_a_name_without_a_way() -> None:
    assert group.numbered(settings(), "a") == settings()
    assert group.numbered(settings(hosts=[], local_addr="a.example"), "a").local_addr == "a.example"
    assert group.numbered(settings(local_addr="a.example"), "a").local_addr == "a.example"
    assert addresses.own_on_the_way_to("::1") in ("::1", "")


def test_processes_of_one_host_talk_over_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = settings(hosts=[], processes=2)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    assert group.environment(alone) == {"GLOO_SOCKET_IFNAME": "lo"}, "what the environment names stands"
    assert group.environment(settings(hosts=[], processes=1)) == {}


def test_who_trains_is_no_part_of_the_fingerprint() -> None:
    first, second = settings(hosts=["a", "b"]), settings(hosts=["x", "y"], local_addr="10.9.9.9")
    assert spec.identity(first) == spec.identity(second)


def test_the_interface_is_found_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = json.dumps(
        [
            {"ifname": "lo", "addr_info": [{"local": "127.0.0.1"}]},
            {"ifname": "ib0", "addr_info": [{"local": "10.0.0.2"}, {"local": "fe80::1"}]},
            {"ifname": "down0"},
        ]
    )
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: subprocess.CompletedProcess(args, 0, shown, ""))
    assert group.environment(settings()) == {"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "ib0"}
    assert group.environment(settings(local_addr="10.0.0.9")) == {}


def test_without_the_tool_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: Any, **kwargs: Any) -> Any:
        raise FileNotFoundError("ip")

    monkeypatch.setattr(subprocess, "run", missing)
    assert addresses.interface_of("10.0.0.2") == ""


@pytest.mark.parametrize(
    ("said", "code", "why"),
    [
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "group-not-met", "A host is missing"),
        (
            "DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
            "group-not-met",
            "A host",
        ),
        (
            "step 12\nRuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:4711\nexit",
            "group-broken",
            "Connection closed by peer [10.0.0.3]",
        ),
        ("RuntimeError: out of memory\nlast line", "group-broken", "out of memory"),
        ("something else", "group-broken", "something else"),
    ],
)
def test_what_broke_is_said(said: str, code: str, why: str) -> None:
    error = group.broken(settings(), said)
    assert error.code == code
    assert why in error.why
    assert "train.yml" in error.todo


@pytest.mark.parametrize(
    ("addresses", "peer", "lost"),
    [
        (["10.0.0.1", "10.0.0.2", "10.0.0.3"], "10.0.0.3", "c was lost"),
        (["10.0.0.1", "10.0.0.2", "10.0.0.3"], "10.0.0.30", "a host or its trainer was lost"),
        (["10.0.0.1", "10.0.0.2", "10.0.0.3"], "10.0.0.1", "a host or its trainer was lost"),
        (["127.0.0.1", "127.0.0.1", "127.0.0.1"], "127.0.0.1", "a host or its trainer was lost"),
        ([], "10.0.0.3", "a host or its trainer was lost"),
    ],
)
def test_who_was_lost_is_named_by_its_address(addresses: list[str], peer: str, lost: str) -> None:
    error = group.broken(settings(addresses=addresses), CLOSED.format(peer), "a")
    assert error.what == f"the training of the group broke: {lost}."


def test_a_read_error_names_the_peer_before_it_says_what_happened() -> None:
    said = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:4711: Connection reset by peer"
    assert group.lost_hosts(settings(addresses=["10.0.0.1", "10.0.0.2", "10.0.0.3"]), said, "a") == ["b"]


FOUR = {
    "hosts": ["a", "b", "c", "d"],
    "addresses": ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"],
}


def test_a_neighbour_that_ended_after_the_lost_one_is_not_called_lost() -> None:
    """c was lost; its neighbours b and d ended by it, and the leader heard of b's end."""
    said = "".join(last_words.SAID.format(rank, CLOSED.format("10.0.0.3")) for rank in (1, 3))
    said += "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:4711: Connection reset by peer"
    error = group.broken(settings(**FOUR), said, "a")
    assert error.what == "the training of the group broke: c was lost."
    assert error.why == "b: " + CLOSED.format("10.0.0.3"), "who heard of it"
    only_two_left = said.replace("host 3", "host 2")  # c spoke as well: who was lost is not known
    assert group.lost_hosts(settings(**FOUR), only_two_left, "a") == []


def test_a_host_that_failed_by_itself_is_named_with_its_reason() -> None:
    said = last_words.SAID.format(1, CLOSED.format("10.0.0.3")) + last_words.SAID.format(2, "RuntimeError: no memory")
    error = group.broken(settings(**FOUR), said + CLOSED.format("10.0.0.2"), "a")
    assert error.what == "the training of the group broke: the trainer of c failed."
    assert error.why == "RuntimeError: no memory"


def test_a_host_whose_own_trainer_was_killed_says_so() -> None:
    error = group.broken(settings(), CLOSED.format("10.0.0.1"), "b", -9)
    assert error.what == "the training of the group broke: the trainer of b was killed (signal 9)."


def test_an_orderly_stop_of_another_host_is_no_loss() -> None:
    said = "Root Cause (first observed failure):\n  host      : b\n  exitcode  : {} (pid: 4711)\n  error_file: <N/A>\n"
    assert group.stopped(said.format(75))
    assert not group.stopped(said.format(1))
    assert not group.stopped(said.format(-9))
    assert not group.stopped("")
    others = "Failures:\n[1]:\n  host      : a\n  exitcode  : 75 (pid: 4712)\n"
    assert not group.stopped(others + said.format(1)), "the trainer that failed first took the other along"
    assert group.stopped(others + said.format(75))


def test_only_what_this_attempt_said_counts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("exitcode  : 75 (pid: 1)\n")
    trainer = launch.Trainer([sys.executable, "-c", "print('lost')"], tmp_path, log, dict(os.environ))
    trainer.process.wait(30)
    assert trainer.last_lines() == "lost"
    assert not group.stopped(trainer.last_lines())

"""What the trainers of a group tell one another when they end."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs the node environment")

from torch.distributed import TCPStore

from eyrie.draft import last_words

pytestmark = pytest.mark.node


def environ(port: int, rank: int, hosts: int = 3) -> dict[str, str]:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {**where, "GROUP_RANK": str(rank), "GROUP_WORLD_SIZE": str(hosts)}


def test_each_reads_what_those_before_it_said(capfd: pytest.CaptureFixture[str]) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    last_words.exchange(RuntimeError("closed by\npeer"), environ(store.port, 1), patience_s=0)
    assert last_words.read(capfd.readouterr().err) == {}
    last_words.exchange(ValueError("x" * 1000), environ(store.port, 2), patience_s=0)
    assert last_words.read(capfd.readouterr().err) == {1: "RuntimeError: closed by peer"}
    last_words.exchange(RuntimeError("reset"), environ(store.port, 0), patience_s=60)  # all have spoken: no wait
    assert last_words.read(capfd.readouterr().err) == {
        1: "RuntimeError: closed by peer",
        2: "ValueError: " + "x" * (last_words.LIMIT - 12),
    }


def test_a_leader_that_is_gone_and_a_host_alone_change_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store
    last_words.exchange(RuntimeError("lost"), environ(port, 1), patience_s=0)
    last_words.exchange(RuntimeError("lost"), environ(port, 0, hosts=1), patience_s=0)
    last_words.exchange(RuntimeError("lost"), {}, patience_s=0)
    assert last_words.read(capfd.readouterr().err) == {}

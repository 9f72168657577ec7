"""Training that goes on at another host, and training over two hosts: the same figures as where nothing happened."""

import os
import signal
import socket
import threading

import draft_house
import pytest
import torch
from draft_house import House

from eyrie.core import registry
from eyrie.core.errors import EyrieError, Interrupted
from eyrie.core.progress import Progress
from eyrie.core.stage import Work
from eyrie.draft import checkpoints
from eyrie.port import carry

pytestmark = pytest.mark.slow
STAGES = ("target", "tokens", "hidden_states", "draft")


def at(tiny, tmp_path, monkeypatch, host, **settings):
    """A host of its own: its root, its name."""
    house = House(tiny, tmp_path / host, monkeypatch)
    house.host = host
    house.settings.update(epochs=2, **settings)
    for name in STAGES[:-1]:  # inputs that every host has
        ctx = house.pipeline().context(name)
        ctx.state.write({"status": "done", "fingerprint": ctx.fingerprint, "outputs": []})
    return house


@pytest.fixture
def hosts(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "NAMES", STAGES)
    monkeypatch.setattr(draft_house.Fixed, "carry", lambda stage, ctx: [])
    return lambda host, **settings: at(tiny, tmp_path, monkeypatch, host, **settings)


def port(source, destination, **options):
    """A whole port of the draft between two houses, by the verbs of `eyrie port`."""
    there = carry.survey(source.pipeline(), {})
    made = carry.plan(destination.pipeline(), {"source": there, "link": {"mb_s": 100.0}, "options": options})
    draft = made["decisions"][-1]
    assert (draft["action"], draft["unfinished"]) == ("copy", True), draft["reason"]
    packed = carry.pack(source.pipeline(), {"decisions": made["decisions"]})
    place = carry.prepare(destination.pipeline(), {"source": there, "trees": packed["trees"]})
    carry.send({**packed, "to": {"folder": place["folder"]}})
    request = {"plan": made, "folder": place["folder"], "sha256": packed["sha256"]}
    return carry.land(destination.pipeline(), request)


def same(house, other):
    assert house.losses() == other.losses()
    theirs = other.weights()
    for name, tensor in house.weights().items():
        assert torch.equal(tensor, theirs[name]), name


def test_training_ported_in_the_middle_ends_as_if_it_had_stayed(hosts):
    stayed, source, destination = hosts("stayed"), hosts("alpha"), hosts("beta")
    stayed.run()
    works = source.remember_work()
    source.when(lambda: source.steps_done() >= 5, lambda: setattr(works[-1], "stop_requested", True))
    with pytest.raises(Interrupted):
        source.run()
    stopped = checkpoints.find(source.out / "train/checkpoints")[-1].global_step
    assert 0 < stopped < len(stayed.losses())
    assert port(source, destination)["landed"] == ["draft"]
    record = destination.run()
    assert record["figures"]["resumed_from"] == stopped
    same(destination, stayed)
    assert record["figures"]["predicted_acceptance"] == stayed.context().record()["figures"]["predicted_acceptance"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def together(houses):
    """{host: outcome or error} of the stage on all hosts at once; without the runner, whose signals want one thread."""
    found = {}

    def go(house):
        ctx = house.context()
        ctx.out.mkdir(parents=True, exist_ok=True)
        try:
            found[house.host] = ctx.stage.run(ctx, Work(Progress(house.tmp / "progress.json")))
        except EyrieError as error:
            found[house.host] = error
            ctx.state.write({"status": "failed", "fingerprint": ctx.fingerprint, "identity": ctx.identity})

    threads = [threading.Thread(target=go, args=(house,)) for house in houses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
        assert not thread.is_alive()
    return found


def test_two_hosts_train_as_one_and_go_on_when_one_was_lost(hosts):
    alone = hosts("alone", processes=2)
    alone.run()
    group = {"hosts": ["a", "b"], "local_addr": "127.0.0.1", "join_timeout_s": 90.0}
    leader, follower = (hosts(name, **group, rdzv_endpoint=f"127.0.0.1:{free_port()}") for name in "ab")
    follower.settings["rdzv_endpoint"] = leader.settings["rdzv_endpoint"]
    assert leader.context().fingerprint == follower.context().fingerprint

    def lose():
        os.killpg(next(t.group for t in follower.trainers if str(follower.tmp) in str(t.train_dir)), signal.SIGKILL)

    leader.when(lambda: len([line for line in leader.lines() if "checkpoint" in line]) >= 2, lose)
    lost = together([leader, follower])
    assert lost["a"].code == lost["b"].code == "group-broken"
    assert "a, b" in lost["a"].where
    kept = checkpoints.find(leader.out / "train/checkpoints")[-1].global_step
    port(leader, follower, replace=["draft"])
    for house in (leader, follower):
        house.settings["rdzv_endpoint"] = f"127.0.0.1:{free_port()}"
    follower.settings["rdzv_endpoint"] = leader.settings["rdzv_endpoint"]
    ended = together([leader, follower])
    assert ended["a"].figures["resumed_from"] == ended["b"].figures["resumed_from"] == kept
    assert ended["b"].figures["draft_is_on"] == "a"
    assert not (follower.out / "checkpoint").exists()
    same(leader, alone)

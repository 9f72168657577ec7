"""Training that goes on at another host, and over several hosts: the same figures as where nothing happened."""

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
    """A host of its own: its root, its name, the inputs that every host has."""
    house = House(tiny, tmp_path / host, monkeypatch)
    house.host = host
    house.settings.update({"epochs": 2, **settings})
    for name in STAGES[:-1]:
        ctx = house.pipeline().context(name)
        ctx.state.write({"status": "done", "fingerprint": ctx.fingerprint, "outputs": []})
    return house


@pytest.fixture
def hosts(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "NAMES", STAGES)
    monkeypatch.setattr(draft_house.Fixed, "carry", lambda stage, ctx: [])
    return lambda host, **settings: at(tiny, tmp_path, monkeypatch, host, **settings)


def port(source, destination, **options):
    """A whole port of the draft between two houses, by the verbs of `eyrie port`; the trees that travelled."""
    there = carry.survey(source.pipeline(), {})
    made = carry.plan(destination.pipeline(), {"source": there, "link": {"mb_s": 100.0}, "options": options})
    draft = made["decisions"][-1]
    assert (draft["action"], draft["unfinished"]) == ("copy", True), draft["reason"]
    packed = carry.pack(source.pipeline(), {"decisions": made["decisions"]})
    place = carry.prepare(destination.pipeline(), {"source": there, "trees": packed["trees"]})
    carry.send({**packed, "to": {"folder": place["folder"]}})
    request = {"plan": made, "folder": place["folder"], "sha256": packed["sha256"]}
    assert carry.land(destination.pipeline(), request)["landed"] == ["draft"]


def kept(house):
    return [item.global_step for item in checkpoints.find(house.out / "train/checkpoints")]


def same(house, other):
    assert house.losses() == other.losses()
    theirs = other.weights()
    for name, tensor in house.weights().items():
        assert torch.equal(tensor, theirs[name]), name


def test_training_ported_in_the_middle_ends_as_if_it_had_stayed(hosts):
    stayed, source, destination = hosts("stayed"), hosts("alpha"), hosts("beta")
    stayed.run()
    works = source.remember_work()
    source.when(lambda: source.steps_done() >= 7, lambda: setattr(works[-1], "stop_requested", True))
    with pytest.raises(Interrupted):
        source.run()
    stopped = kept(source)[-1]
    assert 0 < stopped < len(stayed.losses())
    port(source, destination)
    assert len(kept(destination)) < len(kept(source)), "only what training goes on from travels"
    assert kept(destination)[-1] == stopped
    record = destination.run()
    assert record["figures"]["resumed_from"] == stopped
    same(destination, stayed)
    assert record["figures"]["predicted_acceptance"] == stayed.context().record()["figures"]["predicted_acceptance"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def group(hosts, names, **more):
    """Houses that train as one, the first leads."""
    settings = {"hosts": list(names), "local_addr": "127.0.0.1", "join_timeout_s": 120.0, **more}
    houses = [hosts(name, **settings, rdzv_endpoint="127.0.0.1:1") for name in names]
    assert len({house.context().fingerprint for house in houses}) == 1
    return houses


def together(houses):
    """{host: outcome or error} of the stage on all hosts at once; without the runner, whose signals want one thread."""
    found = {}
    meeting = f"127.0.0.1:{free_port()}"

    def go(house):
        ctx = house.context()
        ctx.out.mkdir(parents=True, exist_ok=True)
        try:
            found[house.host] = ctx.stage.run(ctx, Work(Progress(house.tmp / "progress.json")))
        except EyrieError as error:
            found[house.host] = error
            ctx.state.write({"status": "failed", "fingerprint": ctx.fingerprint, "identity": ctx.identity})

    for house in houses:
        house.settings["rdzv_endpoint"] = meeting
    threads = [threading.Thread(target=go, args=(house,)) for house in houses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    return found


def test_two_hosts_train_as_one_and_go_on_when_one_was_lost(hosts):
    alone = hosts("alone", processes=2, epochs=6)
    alone.run()
    leader, follower = group(hosts, "ab", epochs=6)
    metrics = leader.out / "train/metrics.jsonl"

    def lose():
        os.killpg(next(t.group for t in follower.trainers if str(follower.tmp) in str(t.train_dir)), signal.SIGKILL)

    leader.when(lambda: metrics.exists() and '"checkpoint"' in metrics.read_text(), lose)
    lost = together([leader, follower])
    assert [getattr(lost[name], "code", "trained to the end") for name in "ab"] == ["group-broken"] * 2
    assert lost["b"].what.endswith("the trainer of b was killed (signal 9).")
    newest = kept(leader)[-1]
    port(leader, follower, replace=["draft"])
    ended = together([leader, follower])
    assert ended["a"].figures["resumed_from"] == ended["b"].figures["resumed_from"] == newest
    assert ended["b"].figures["draft_is_on"] == "a"
    assert not (follower.out / "checkpoint").exists()
    same(leader, alone)


def test_four_hosts_train_as_one_with_four_processes(hosts):
    alone = hosts("alone", processes=4, epochs=1)
    alone.run()
    houses = group(hosts, "abcd", epochs=1)
    ended = together(houses)
    assert [ended[name].figures.get("draft_is_on") for name in "abcd"] == [None, "a", "a", "a"]
    same(houses[0], alone)

"""From one host's folders to the other's: proved, put in place, up to date, and safe against a crash at any step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from eyrie.core import planner, runner
from eyrie.core.errors import EyrieError
from eyrie.core.lock import Lock
from eyrie.port import carry, land
from eyrie.port import plan as plans
from eyrie.port.survey import survey


def port(hosts: Any, **options: Any) -> dict[str, Any]:
    """A whole port by the verbs, as the playbook calls them."""
    step = Steps(hosts, **options)
    step.send()
    return step.land()


class Steps:
    """The verbs of one port, one by one."""

    def __init__(self, hosts: Any, **options: Any):
        self.hosts = hosts
        self.source = carry.survey(hosts.alpha, {})
        self.plan = carry.plan(hosts.beta, {"source": self.source, "link": {"mb_s": 1000.0}, "options": options})
        self.packed = carry.pack(hosts.alpha, {"decisions": self.plan["decisions"]})
        self.place = carry.prepare(hosts.beta, {"source": self.source, "trees": self.packed["trees"]})

    def send(self) -> dict[str, Any]:
        return carry.send({**self.packed, "to": {"folder": self.place["folder"]}})

    def check(self) -> dict[str, Any]:
        return carry.check(self.hosts.beta, {"folder": self.place["folder"], "sha256": self.packed["sha256"]})

    def land(self) -> dict[str, Any]:
        request = {"plan": self.plan, "folder": self.place["folder"], "sha256": self.packed["sha256"]}
        return carry.land(self.hosts.beta, request)

    def arrived(self, name: str) -> Path:
        return Path(self.place["folder"]) / name


def up_to_date(hosts: Any) -> list[str]:
    pipeline = hosts.beta
    names = ("target", "dataset", "responses", "tokens", "hidden_states", "draft", "benchmark", "report")
    return [name for name in names if planner.plan(pipeline.context(name))["up_to_date"]]


def test_a_finished_run_is_up_to_date_on_the_other_host(hosts: Any, stages: Any) -> None:
    hosts.run("alpha")
    hosts.set("beta", "responses", tool="9.9")
    answer = port(hosts)
    assert answer["landed"] == ["target", "dataset", "responses", "tokens", "draft"]
    assert answer["left"] == ["hidden_states"]
    assert up_to_date(hosts) == ["target", "dataset", "responses", "tokens", "hidden_states", "draft"]
    record = hosts.beta.context("responses").record()
    mark = record["imported_from"]
    assert record["fingerprint"] == hosts.beta.context("responses").fingerprint
    assert mark["fingerprint"] == hosts.alpha.context("responses").fingerprint != record["fingerprint"]
    assert mark["host"] == "alpha"
    assert [item["name"] for item in mark["differences"]] == ["tools.vllm"]
    assert (hosts.beta.context("draft").out / "result").read_text() == "draft of alpha"
    assert (hosts.beta.context("responses").base / "store" / "answers-0.log").exists()
    assert stages["draft"].adopted == [str(hosts.beta.root)]
    assert str(hosts.alpha.root) not in json.dumps(record), "no path of the other host"


def test_what_was_handed_over_is_not_run_again(hosts: Any) -> None:
    hosts.run("alpha")
    port(hosts)
    hosts.run("beta")
    assert (hosts.beta.context("draft").out / "result").read_text() == "draft of alpha"
    assert (hosts.beta.context("benchmark").out / "result").read_text() == "benchmark of beta"
    assert not hosts.beta.context("hidden_states").out.exists(), "nothing needed the states"


def test_left_states_are_made_when_something_needs_them(hosts: Any) -> None:
    hosts.run("alpha")
    port(hosts)
    hosts.set("beta", "draft", text="another learning rate")
    states = planner.plan(hosts.beta.context("hidden_states"))
    assert not states["up_to_date"]
    assert "needed by draft" in states["differences"][0]["name"]
    with pytest.raises(EyrieError, match="needs hidden_states"):
        runner.run(hosts.beta, "draft")
    hosts.run("beta", "hidden_states", "draft")
    assert up_to_date(hosts) == ["target", "dataset", "responses", "tokens", "hidden_states", "draft"]


def test_mid_training_goes_on_with_what_was_carried(hosts: Any) -> None:
    hosts.run("alpha", "target", "dataset", "responses", "tokens", "hidden_states")
    hosts.run_stopped("alpha", "draft")
    port(hosts)
    ctx = hosts.beta.context("draft")
    assert ctx.record()["status"] == "interrupted"
    assert ctx.record()["imported_from"]["host"] == "alpha"
    assert (ctx.out / "part" / "data").read_bytes().startswith(b"alpha:a:")
    states = hosts.beta.context("hidden_states").out / "states" / "hs_1"
    assert os.readlink(states) == "../../store/ab/k1"
    assert states.read_bytes()[-1] == 1
    hosts.run("beta", "draft")
    assert ctx.record()["status"] == "done"
    assert ctx.record()["attempt"] == 2, "the source's attempt is counted"
    assert ctx.record()["imported_from"]["host"] == "alpha", "`eyrie why` tells where its first half was trained"
    hosts.run("beta", "benchmark")
    assert "imported_from" not in hosts.beta.context("benchmark").record()


def test_a_second_port_changes_nothing(hosts: Any) -> None:
    hosts.run("alpha", "target", "dataset", "responses", "tokens", "hidden_states")
    hosts.run_stopped("alpha", "draft")
    port(hosts)
    before = hosts.beta.context("draft").record()
    plan = plans.make(hosts.beta, survey(hosts.alpha), {}, {})
    assert {item["action"] for item in plan["decisions"] if item["stage"] not in ("benchmark", "report")} == {"reuse"}
    assert not plan["changes"]
    assert hosts.beta.context("draft").record() == before


def test_rot_on_the_way_is_found_and_only_that_is_sent_again(hosts: Any) -> None:
    hosts.run("alpha")
    step = Steps(hosts)
    step.send()
    rotten, lost = step.arrived("draft/out/part/data"), step.arrived("tokens/out/result")
    body = bytearray(rotten.read_bytes())
    body[100] ^= 1
    times = (rotten.stat().st_atime, rotten.stat().st_mtime)
    rotten.write_bytes(body)
    os.utime(rotten, times)  # as rsync's quick check sees it, nothing is wrong
    lost.unlink()
    kept = step.arrived("dataset/out/part/data").stat().st_ino
    with pytest.raises(EyrieError, match="did not arrive as they left"):
        step.land()
    assert up_to_date(hosts) == ["target", "dataset", "responses"], "sound stages before it have landed"
    found = step.check()
    assert not found["ok"]
    assert sorted(found["faults"]) == ["draft/out/part/data: SHA-256 differs", "tokens/out/result: is missing"]
    assert kept
    step.send()
    assert step.check()["ok"]
    step.land()
    assert "draft" in up_to_date(hosts)


def test_no_record_before_every_file_is_proved(hosts: Any) -> None:
    hosts.run("alpha", "dataset")
    step = Steps(hosts)
    step.send()
    step.arrived("dataset/out/result").write_text("x")
    with pytest.raises(EyrieError):
        step.land()
    assert hosts.beta.context("dataset").record() == {}
    assert not hosts.beta.context("dataset").out.exists()


@pytest.mark.parametrize("place", ["os.replace", "adopt", "write"])
def test_a_crash_while_landing_is_finished_by_the_next_call(
    hosts: Any, stages: Any, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    hosts.run("alpha")
    step = Steps(hosts)
    step.send()
    calls = {"left": 3}

    def dies(act: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            calls["left"] -= 1
            if calls["left"] == 0:
                raise KeyboardInterrupt
            return act(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patch:
        if place == "os.replace":
            patch.setattr(land.os, "replace", dies(os.replace))
        elif place == "adopt":
            calls["left"] = 1
            patch.setattr(stages["responses"], "adopt", dies(stages["responses"].adopt))
        else:
            patch.setattr(land, "_write_record", dies(land._write_record))
        with pytest.raises(KeyboardInterrupt):
            step.land()
    step.land()
    assert up_to_date(hosts) == ["target", "dataset", "responses", "tokens", "hidden_states", "draft"]
    assert not list(hosts.beta.run_dir.rglob("*.landing"))
    assert not list(hosts.beta.run_dir.rglob("*.aside-*"))


def test_the_destinations_own_unfinished_work_is_put_aside(hosts: Any) -> None:
    hosts.run("alpha")
    hosts.run("beta", "target")
    hosts.set("beta", "dataset", stop=True)
    with pytest.raises(EyrieError):
        runner.run(hosts.beta, "dataset")
    hosts.set("beta", "dataset", stop=False)
    port(hosts)
    aside = list(hosts.beta.context("dataset").base.glob("*.aside-*"))
    assert len(aside) == 1
    assert (aside[0] / "part" / "data").read_bytes().startswith(b"beta:a:")
    assert (hosts.beta.context("dataset").out / "result").read_text() == "dataset of alpha"


def test_a_store_with_other_content_under_the_same_name_is_a_conflict(hosts: Any) -> None:
    hosts.run("alpha", "target", "dataset", "responses", "tokens", "hidden_states")
    hosts.run_stopped("alpha", "draft")
    store = hosts.beta.context("hidden_states").base / "store" / "ab"
    store.mkdir(parents=True)
    (store / "k1").write_text("states of this host")
    with pytest.raises(EyrieError, match="holds another file of that name"):
        port(hosts)
    assert (store / "k1").read_text() == "states of this host"
    assert not (store / "k0").exists(), "nothing was put in place"
    assert hosts.beta.context("hidden_states").record() == {}


def test_a_store_that_can_be_merged_keeps_both(hosts: Any) -> None:
    hosts.run("alpha")
    store = hosts.beta.context("responses").base / "store"
    store.mkdir(parents=True)
    (store / "answers-0.log").write_text("answers of this host")
    port(hosts)
    assert (store / "answers-0.log").read_text() == "answers of this host"
    assert (store / "answers-1.log").read_bytes().startswith(b"alpha:a:")


def test_files_that_adopting_mends_are_no_rot(hosts: Any, stages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts.run("alpha")
    stages["draft"].mends = True
    step = Steps(hosts)
    step.send()
    with monkeypatch.context() as patch:
        patch.setattr(land, "_write_record", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            step.land()
    step.land()
    assert (hosts.beta.context("draft").out / "result").read_text() == "draft of alpha, adopted"
    assert "draft" in up_to_date(hosts)
    assert step.check()["ok"], "what has landed is not asked for again"


def test_settings_that_changed_since_the_plan_are_refused(hosts: Any) -> None:
    hosts.run("alpha")
    step = Steps(hosts)
    step.send()
    hosts.set("beta", "dataset", text="changed")
    with pytest.raises(EyrieError, match="other settings than were planned"):
        step.land()


def test_a_source_that_changed_since_the_plan_is_refused(hosts: Any) -> None:
    hosts.run("alpha")
    plan = plans.make(hosts.beta, survey(hosts.alpha), {}, {})
    hosts.set("alpha", "dataset", text="changed")
    with pytest.raises(EyrieError, match="changed since it was planned"):
        carry.pack(hosts.alpha, {"decisions": plan["decisions"]})


def test_a_stage_that_runs_is_neither_packed_nor_landed_on(hosts: Any) -> None:
    hosts.run("alpha")
    step = Steps(hosts)
    step.send()
    with Lock(hosts.alpha.context("draft").state.lock_path), pytest.raises(EyrieError, match="runs on this host"):
        carry.pack(hosts.alpha, {"decisions": step.plan["decisions"]})
    with (
        Lock(hosts.beta.context("dataset").state.lock_path),
        pytest.raises(EyrieError, match="runs on the destination"),
    ):
        step.land()


def test_through_a_spool_in_between(hosts: Any, tmp_path: Path) -> None:
    """Pulled by a third machine, then pushed from there: the same pack, the same proof."""
    hosts.run("alpha")
    step = Steps(hosts)
    spool = tmp_path / "spool"
    carry.send({**step.packed, "pull": True, "to": {"folder": str(spool)}})
    trees = [{**tree, "path": str(spool / tree["stage"] / tree["tree"])} for tree in step.packed["trees"]]
    pushed = {**step.packed, "trees": trees, "manifest": str(spool / "manifest.jsonl")}
    answer = carry.send({**pushed, "to": {"folder": step.place["folder"]}})
    assert answer["bytes"] == step.packed["bytes"]
    step.land()
    assert "draft" in up_to_date(hosts)


def test_provenance_chains_over_two_ports(hosts: Any) -> None:
    hosts.run("alpha")
    port(hosts)
    back = hosts.pipeline("alpha")
    for name in ("dataset", "responses", "tokens", "draft"):
        record = back.context(name).record()
        record["status"] = "failed"
        back.context(name).state.write(record)
    source = survey(hosts.beta)
    plan = plans.make(hosts.alpha, source, {"mb_s": 1000.0}, {"replace": ["draft", "responses"]})
    packed = carry.pack(hosts.beta, {"decisions": plan["decisions"]})
    place = carry.prepare(hosts.alpha, {"source": source, "trees": packed["trees"]})
    carry.send({**packed, "to": {"folder": place["folder"]}})
    store = hosts.alpha.context("responses").base / "store" / "answers-0.log"
    assert store.exists(), "equal content under the same name is no conflict"
    carry.land(hosts.alpha, {"plan": plan, "folder": place["folder"], "sha256": packed["sha256"]})
    mark = hosts.alpha.context("draft").record()["imported_from"]
    assert (mark["host"], mark["earlier"]["host"]) == ("beta", "alpha")

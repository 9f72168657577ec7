"""Sources that a mix went without: tried again by the next run, and what that does to the fingerprint."""

from __future__ import annotations

import json
import time

import pytest
from dataset_hub import Hub, Repository, commit
from dataset_run import prompts, run, spec, summary
from dataset_toy import chat, jsonl

from eyrie.core import planner, wait
from eyrie.core.errors import EyrieError, Interrupted
from eyrie.core.pipeline import Pipeline
from eyrie.dataset import engine
from eyrie.port import rules

pytestmark = pytest.mark.node

ONE = commit(1)


@pytest.fixture(autouse=True)
def no_token_from_outside(monkeypatch):
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub():
    with Hub({}) as server:
        yield server


def appears(hub, name: str, count: int = 4) -> None:
    """A repository that was not there, or not for us, is there."""
    data = "".join(json.dumps(chat(f"{name} {n}", "a")) + "\n" for n in range(count)).encode()
    hub.repositories[f"org/{name}"] = Repository({ONE: {"train.jsonl": data}}, {"main": ONE})


def value(tmp_path, hub, *late: str, **settings):
    path = tmp_path / "fine.jsonl"
    if not path.exists():
        jsonl(path, [chat(f"fine {n}", "a") for n in range(5)])
    registry = {"fine": {"kind": "local", "path": str(path), "adapter": "messages"}}
    for name in late:
        registry[name] = {
            "kind": "hub",
            "repository": f"org/{name}",
            "revision": ONE,
            "files": ["train.jsonl"],
            "adapter": "messages",
        }
    settings = {"endpoint": hub.url, "retries": 0, "on_source_failure": "continue", **settings}
    return spec(tmp_path / "root", registry, **settings)


def context(wanted):
    return Pipeline(wanted).context("dataset")


def stamps(ctx):
    return {path.name: path.stat().st_mtime_ns for path in ctx.out.glob("*.parquet")}


def test_the_plan_says_what_will_be_tried_again(tmp_path, hub):
    wanted = value(tmp_path, hub, "late", "later")
    run(wanted)
    ctx = context(wanted)
    plan = planner.plan(ctx)
    assert plan["differences"] == [
        {"name": "sources", "current": "2 sources failed last time: late, later", "desired": "will be tried again"}
    ]
    assert (plan["up_to_date"], plan["status"]) == (False, "done")
    assert {item["name"]: item["act"] for item in plan["forecast"]["sources"]} == {
        "fine": "keep",
        "late": "try again",
        "later": "try again",
    }
    assert planner.is_up_to_date(ctx), "later stages may use what is there"


def test_one_that_stays_away_changes_nothing(tmp_path, hub):
    wanted = value(tmp_path, hub, "late")
    first = run(wanted)
    before, record, asked = stamps(first), first.record(), len(hub.requests)
    said = (tmp_path / "root/runs/main/state/dataset/sources/fine.log").read_text()
    again = run(wanted)
    assert len(hub.requests) == asked + 1
    assert again.fingerprint == first.fingerprint
    assert stamps(again) == before
    for key in ("account", "outputs", "figures", "bytes"):
        assert again.record()[key] == record[key], key
    assert (tmp_path / "root/runs/main/state/dataset/sources/fine.log").read_text() == said, "only that one is tried"
    assert again.stage.verify(again) == []
    answer = wait.look(again.state, first.fingerprint, record["updated"] + 1e-6, time.time())
    assert answer["finished"], "who waits for the try sees its end"


def test_one_that_comes_in_makes_another_mix(tmp_path, hub):
    wanted = value(tmp_path, hub, "late", "later")
    first = run(wanted)
    inputs = {"dataset": first.fingerprint}
    appears(hub, "late")
    run(wanted)  # under the old name, as the plan before it said
    ctx = context(wanted)
    assert ctx.fingerprint != first.fingerprint
    assert ctx.identity["came_in"] == ["late"]
    assert {**ctx.identity, "came_in": None} == {**first.identity, "came_in": None}
    assert len(prompts(ctx)) == 9
    assert len(prompts(first)) == 5, "the mix that later stages have used stays what it was"
    assert summary(ctx)["sources"]["late"]["kept"] == 4
    assert inputs["dataset"] != Pipeline(wanted).context("responses").inputs["dataset"], "later stages follow"
    assert ctx.state.latest()["fingerprint"] == ctx.fingerprint
    assert wait.look(ctx.state, first.fingerprint, 0, time.time())["finished"]
    assert planner.missing_outputs(first, first.record()) == [f"(became {ctx.fingerprint[:12]})"]
    assert [item["current"] for item in planner.plan(ctx)["differences"]] == ["1 source failed last time: later"]
    appears(hub, "later")
    run(wanted)
    last = context(wanted)
    assert last.identity["came_in"] == ["late", "later"]
    assert len(prompts(last)) == 13
    assert planner.plan(last)["up_to_date"]
    assert last.record()["figures"]["warnings"] == []


def test_a_mix_that_cannot_be_made_anew_says_so_to_who_waits(tmp_path, hub, monkeypatch):
    wanted = value(tmp_path, hub, "late")
    first = run(wanted)
    appears(hub, "late")

    def broken(*args):
        raise EyrieError("the disk is gone.", code="gone")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_mixed", broken)
        with pytest.raises(EyrieError, match="the disk is gone"):
            run(wanted)
    answer = wait.look(first.state, first.fingerprint, 0, time.time())
    assert (answer["status"], answer["error"]["code"]) == ("failed", "gone")
    assert len(prompts(run(wanted))) == 9


def test_a_try_that_is_stopped_leaves_the_mix(tmp_path, hub, monkeypatch):
    wanted = value(tmp_path, hub, "late")
    first = run(wanted)
    before = stamps(first)

    def stopped(*args):
        raise Interrupted("asked to stop", code="interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_brought", stopped)
        with pytest.raises(Interrupted):
            run(wanted)
    assert planner.plan(context(wanted))["status"] == "interrupted"
    again = run(wanted)
    assert (again.fingerprint, stamps(again)) == (first.fingerprint, before)
    assert planner.is_up_to_date(again)


def test_a_verdict_on_what_a_source_holds_stands(tmp_path, hub):
    """The same bytes would be judged the same; other bytes are a difference by themselves."""
    wanted = value(tmp_path, hub)
    bad = jsonl(tmp_path / "bad.jsonl", [chat("q", "a"), "x", "y"])
    dataset = wanted["stages"]["dataset"]
    dataset["registry"]["bad"] = {"kind": "local", "path": str(bad), "adapter": "messages"}
    dataset["sources"] = ["fine", "bad"]
    run(wanted)
    assert planner.plan(context(wanted))["up_to_date"]
    jsonl(bad, [chat("q", "a")])
    assert [item["name"] for item in planner.plan(context(wanted))["differences"]] == ["files.bad.bad.jsonl"]


def test_what_was_in_the_mix_is_not_left_out_when_it_is_made_again(tmp_path, hub):
    import shutil

    wanted = value(tmp_path, hub, "there")
    appears(hub, "there")
    ctx = run(wanted)
    assert planner.plan(context(wanted))["up_to_date"]
    shutil.rmtree(tmp_path / "root/cache")
    shutil.rmtree(ctx.base / "sources")
    (ctx.out / "train.parquet").unlink()
    hub.repositories.clear()
    with pytest.raises(EyrieError, match="1 of 2 sources failed: there"):
        run(wanted)
    appears(hub, "there")
    assert (run(wanted).fingerprint, len(prompts(ctx))) == (ctx.fingerprint, 9)


def test_a_host_that_knows_no_late_comers_may_take_the_mix(tmp_path, hub):
    verdict = rules.judge("dataset", "came_in", ["late"], None)
    assert verdict.verdict is rules.Verdict.VALID

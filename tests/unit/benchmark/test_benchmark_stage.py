"""The stage on a made-up host: order, books, promotion, refusal, resume, restoring."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from made_host import House

from eyrie.benchmark import drafts
from eyrie.core import planner
from eyrie.core.errors import EyrieError, Interrupted

FRESH = ["untrained", "baseline", "checkpoint", "baseline", "checkpoint"]


def test_a_winner_is_measured_in_turns_promoted_and_left_serving(house: House) -> None:
    record = house.run()
    assert house.machine.started == FRESH
    assert record["account"]["in"] == record["account"]["kept"] == 8 + 4 * 12
    results = house.results()
    assert results["promotion"]["promoted"] is True
    assert results["decision"]["verdict"]["serve"] == "eagle3"
    assert results["decision"]["sets"]["own"]["acceptance"]["length"] == pytest.approx(1.8, abs=0.02)
    assert results["decision"]["sets"]["own"]["untrained"]["length"] == 1.0
    assert results["serving"]["profile"] == "eagle3"
    version = results["draft"]["version"]
    assert drafts.current(house.root) == version
    assert (drafts.find(house.root, "current") / "model.safetensors").read_text() == "checkpoint 0"
    assert house.machine.name() == "checkpoint"


def test_a_second_run_measures_nothing_and_starts_nothing(house: House) -> None:
    first = house.run()
    answers = house.machine.answers
    assert house.run()["finished"] == first["finished"]
    assert house.machine.answers == answers
    assert house.machine.started == FRESH


def test_a_loser_is_not_promoted_and_what_served_serves_again(house: House) -> None:
    house.machine.speeds["checkpoint"] = 35.0
    house.machine.serving = {"profile": "baseline", "draft": "", "k": 0}
    record = house.run()
    assert record["figures"]["promotion"]["promoted"] is False
    assert drafts.current(house.root) == ""
    assert house.machine.name() == "baseline"
    assert "Serve the baseline" in record["figures"]["verdict"]["words"]


def test_where_nothing_served_a_loser_leaves_nothing(house: House) -> None:
    house.machine.speeds["checkpoint"] = 35.0
    house.run()
    assert house.machine.serving is None
    assert house.results()["serving"]["profile"] == ""


@pytest.mark.parametrize(("after", "left"), [("stop", None), ("restore", "baseline"), ("serve", "checkpoint")])
def test_what_serves_afterwards_is_policy(house: House, after: str, left: str | None) -> None:
    house.machine.serving = {"profile": "baseline", "draft": "", "k": 0}
    house.run(after=after)
    assert (house.machine.name() if house.machine.serving else None) == left


def test_promotion_can_be_switched_off(house: House) -> None:
    record = house.run(promote=False)
    assert "eyrie_benchmark_promote is off" in record["figures"]["promotion"]["reason"]
    assert drafts.current(house.root) == ""


def test_a_draft_that_loses_to_the_promoted_one_is_refused(house: House) -> None:
    house.run()
    first = drafts.current(house.root)
    house.machine.speeds[first] = 80.0
    house.machine.accepted[first] = 1.4
    record = house.run(draft=1)
    assert house.machine.started.count(first) == 2
    assert record["figures"]["promotion"]["promoted"] is False
    assert "loses to the draft that is promoted now" in record["figures"]["promotion"]["reason"]
    assert drafts.current(house.root) == first
    # what had served, the first draft, serves again
    assert house.machine.serving is not None
    assert house.machine.name() in (first, "checkpoint")
    assert house.results(draft=1)["predecessor"] == first


def test_a_better_draft_takes_over_and_the_one_before_is_kept(house: House) -> None:
    house.run()
    first = drafts.current(house.root)
    house.machine.speeds[first] = 50.0
    house.run(draft=1)
    second = drafts.current(house.root)
    assert second != first
    assert {item["version"] for item in drafts.versions(house.root)} == {first, second}


def test_a_stop_keeps_finished_servers_and_the_next_run_goes_on(house: House) -> None:
    def stop(machine: Any) -> None:
        if machine.answers == 7:  # the third server's first counted cell
            os.kill(os.getpid(), signal.SIGTERM)

    house.machine.on_work = stop
    with pytest.raises(Interrupted):
        house.run()
    assert house.machine.started == FRESH[:3]
    house.machine.on_work = None
    house.machine.serving = None
    record = house.run()
    assert house.machine.started == [*FRESH[:3], *FRESH[2:]]
    assert record["account"]["in"] == 8 + 4 * 12


def test_a_torn_line_of_a_crash_is_measured_again(house: House) -> None:
    house.run()
    ctx = house.pipeline().context("benchmark")
    path = ctx.out / "sessions.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    (ctx.out / "results.json").unlink()
    house.run()
    assert house.machine.started == FRESH  # the last server still served: it was measured again, not started
    assert len(house.results()["sessions"]) == 5
    assert planner.plan(ctx)["up_to_date"]


def test_a_start_that_fails_restores_what_served_and_says_so(house: House) -> None:
    house.machine.serving = {"profile": "baseline", "draft": "", "k": 0}
    house.machine.fail_at = 1
    with pytest.raises(EyrieError, match="baseline served before and serves again") as caught:
        house.run()
    assert caught.value.code == "switch-failed"
    assert house.machine.name() == "baseline"


def test_a_server_that_dies_under_load_fails_with_the_reason(house: House) -> None:
    house.machine.broken_after = 3
    with pytest.raises(EyrieError, match=r"server gone \(4x\)") as caught:
        house.run()
    assert caught.value.code == "cell-empty"
    house.machine.broken_after = 0
    house.run()
    assert house.results()["promotion"]["promoted"] is True


def test_the_plan_names_what_changed_and_forecasts(house: House) -> None:
    house.run()
    plan = planner.plan(house.pipeline(rounds=3).context("benchmark"))
    assert plan["differences"] == [{"name": "settings.rounds", "current": 2, "desired": 3}]
    assert "7 server starts" in plan["forecast"]["basis"]


@pytest.mark.parametrize(
    "settings", [{"cell_timeout_s": 5.0}, {"after": "stop"}, {"keep_drafts": 2}, {"promote": False}]
)
def test_what_cannot_change_the_figures_is_no_reason_to_measure_again(house: House, settings: dict[str, Any]) -> None:
    house.run()
    assert planner.plan(house.pipeline(**settings).context("benchmark"))["up_to_date"]


def test_a_changed_question_file_is_measured_again(house: House) -> None:
    house.run()
    path = house.root / "prompts" / "own.jsonl"
    path.write_text(path.read_text() + '\n{"turns": ["one more?"]}')
    plan = planner.plan(house.pipeline().context("benchmark"))
    assert [difference["name"] for difference in plan["differences"]] == ["prompt_files.own"]


def test_verify_finds_torn_results(house: House) -> None:
    house.run()
    ctx = house.pipeline().context("benchmark")
    assert ctx.stage.verify(ctx) == []
    (ctx.out / "results.json").write_text("{")
    assert [fault.code for fault in ctx.stage.verify(ctx)] == ["results-torn"]
    (ctx.out / "results.json").unlink()
    assert [fault.code for fault in ctx.stage.verify(ctx)] == ["output-missing"]

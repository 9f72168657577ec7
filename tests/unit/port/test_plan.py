"""What a port plans, over synthetic runs of two hosts."""

from __future__ import annotations

from typing import Any

import pytest

from eyrie.core.errors import SpecError
from eyrie.port import plan as plans
from eyrie.port.shown import lines
from eyrie.port.survey import survey

FAST, SLOW = {"mb_s": 1000.0, "basis": "measured"}, {"mb_s": 0.001, "basis": "measured"}


def planned(hosts: Any, link: dict[str, Any] = FAST, **options: Any) -> dict[str, Any]:
    return plans.make(hosts.beta, survey(hosts.alpha), dict(link), options)


def actions(plan: dict[str, Any]) -> dict[str, str]:
    return {item["stage"]: item["action"] for item in plan["decisions"]}


def decision(plan: dict[str, Any], stage: str) -> dict[str, Any]:
    return next(item for item in plan["decisions"] if item["stage"] == stage)


def test_finished_run_hands_over_all_but_measurements_and_leaves_states(hosts: Any) -> None:
    hosts.run("alpha")
    plan = planned(hosts)
    assert actions(plan) == {
        "target": "copy",
        "dataset": "copy",
        "responses": "copy",
        "tokens": "copy",
        "hidden_states": "leave",
        "draft": "copy",
        "benchmark": "recompute",
        "report": "recompute",
    }
    assert plan["ok"]
    assert plan["totals"]["bytes"] == sum(item["bytes"] for item in plan["decisions"])
    assert decision(plan, "responses")["bytes"] == 2 * (2000 + len("alpha:a:")) + len("responses of alpha")


def test_mid_training_carries_states_when_the_link_is_quicker_than_capture(hosts: Any) -> None:
    hosts.run("alpha", "target", "dataset", "responses", "tokens", "hidden_states")
    hosts.run_stopped("alpha", "draft")
    plan = planned(hosts)
    assert actions(plan)["hidden_states"] == "copy"
    draft = decision(plan, "draft")
    assert (draft["action"], draft["unfinished"]) == ("copy", True)
    assert "goes on there" in draft["reason"]


def test_states_are_made_again_when_the_link_is_slower_than_capture(hosts: Any) -> None:
    for host in ("alpha", "beta"):
        hosts.set(host, "hidden_states", size=40_000)
    hosts.run("alpha", "target", "dataset", "responses", "tokens", "hidden_states")
    hosts.run_stopped("alpha", "draft")
    plan = planned(hosts, SLOW)
    states = decision(plan, "hidden_states")
    assert states["action"] == "recompute"
    assert not states["refused"]
    assert "sooner made than carried" in states["reason"]
    assert decision(plan, "draft")["action"] == "copy", "equivalent states let the training go on"


def test_other_kernels_make_states_again_but_keep_answers(hosts: Any) -> None:
    hosts.run("alpha", "target", "dataset", "responses", "tokens", "hidden_states")
    hosts.run_stopped("alpha", "draft")
    hosts.set("beta", "responses", tool="9.9")
    hosts.set("beta", "hidden_states", tool="9.9")
    plan = planned(hosts)
    answers, states = decision(plan, "responses"), decision(plan, "hidden_states")
    assert answers["action"] == "copy"
    assert answers["source"] != answers["destination"]
    assert [item["verdict"] for item in answers["differences"]] == ["valid"]
    assert states["action"] == "recompute"
    assert [item["verdict"] for item in states["differences"]] == ["rounding"]
    assert decision(plan, "draft")["action"] == "copy"
    assert plan["ok"]


def test_states_of_other_kernels_cannot_be_forced(hosts: Any) -> None:
    hosts.run("alpha", "target", "dataset", "responses", "tokens", "hidden_states")
    hosts.set("beta", "hidden_states", tool="9.9")
    plan = planned(hosts, stages={"hidden_states": "copy"})
    states = decision(plan, "hidden_states")
    assert (states["action"], states["refused"]) == ("recompute", True)
    assert "kernels" in states["reason"]


def served(hosts: Any, host: str, **args: Any) -> None:
    hosts.server[host] = {"args": args}


def test_another_way_of_serving_makes_states_again_unless_chosen(hosts: Any) -> None:
    hosts.run("alpha", "target", "dataset", "responses", "tokens", "hidden_states")
    hosts.run_stopped("alpha", "draft")
    served(hosts, "alpha", tensor_parallel_size=8, max_num_seqs=64)
    served(hosts, "beta", tensor_parallel_size=4, max_num_seqs=256)
    states = decision(planned(hosts), "hidden_states")
    assert states["action"] == "recompute"
    assert not states["refused"]
    assert [(item["name"], item["source"], item["destination"]) for item in states["differences"]] == [
        ("serving.args.tensor_parallel_size", 8, 4)
    ]
    assert decision(planned(hosts), "responses")["action"] == "copy"
    assert decision(planned(hosts), "draft")["action"] == "copy"
    assert decision(planned(hosts, stages={"hidden_states": "copy"}), "hidden_states")["action"] == "copy"


def test_a_converted_model_of_another_tool_is_carried_not_made(hosts: Any) -> None:
    """Two versions of a converter may give two sets of bytes, and everything was made with the first."""
    for host in ("alpha", "beta"):
        hosts.set(host, "target", seconds=0.0)
    hosts.run("alpha")
    assert decision(planned(hosts), "target")["action"] == "recompute"
    hosts.set("beta", "target", tool="9.9")
    plan = planned(hosts)
    assert decision(plan, "target")["action"] == "copy"
    assert "these very files" in decision(plan, "target")["reason"]
    assert decision(plan, "draft")["action"] == "copy"


def test_another_dataset_refuses_all_that_was_made_from_it(hosts: Any) -> None:
    hosts.run("alpha")
    hosts.set("beta", "dataset", text="other prompts")
    plan = planned(hosts)
    assert actions(plan) == {
        "target": "copy",
        "dataset": "recompute",
        "responses": "recompute",
        "tokens": "recompute",
        "hidden_states": "recompute",
        "draft": "recompute",
        "benchmark": "recompute",
        "report": "recompute",
    }
    assert not plan["ok"]
    refused = [gate["name"] for gate in plan["gates"] if not gate["ok"]]
    assert refused == ["responses is handed over", "draft is handed over"]
    assert "settings.text" in decision(plan, "dataset")["reason"]
    assert "made from another dataset" in decision(plan, "responses")["reason"]


def test_the_operator_may_accept_a_refusal(hosts: Any) -> None:
    hosts.run("alpha")
    hosts.set("beta", "dataset", text="other prompts")
    assert planned(hosts, accept=["responses", "draft"])["ok"]


def test_a_difference_without_a_rule_refuses(hosts: Any) -> None:
    hosts.run("alpha")
    hosts.set("beta", "draft", text="another learning rate")
    plan = planned(hosts)
    draft = decision(plan, "draft")
    assert draft["refused"]
    assert "no rule says that it may differ" in draft["reason"]
    assert actions(plan)["hidden_states"] == "copy", "the states are needed after all"


def test_same_settings_do_not_mean_same_answers(hosts: Any) -> None:
    """Both hosts sampled by themselves: what the source made from its answers does not fit the destination's."""
    hosts.run("alpha")
    hosts.run("beta", "target", "dataset", "responses")
    plan = planned(hosts)
    assert decision(plan, "responses")["action"] == "reuse"
    assert decision(plan, "responses")["source"] == decision(plan, "responses")["destination"]
    assert "made from another responses" in decision(plan, "tokens")["reason"]
    assert decision(plan, "draft")["refused"]


def test_a_running_stage_blocks(hosts: Any) -> None:
    from eyrie.core.lock import Lock

    hosts.run("alpha", "target", "dataset", "responses", "tokens", "hidden_states")
    hosts.run_stopped("alpha", "draft")
    with Lock(hosts.alpha.context("draft").state.lock_path):
        plan = planned(hosts)
    assert decision(plan, "draft")["action"] == "blocked"
    assert not plan["ok"]


def test_unfinished_work_of_the_destination_is_never_overwritten_unasked(hosts: Any) -> None:
    hosts.run("alpha", "target", "dataset", "responses", "tokens", "hidden_states")
    hosts.run_stopped("alpha", "draft")
    hosts.run("beta", "target", "dataset", "responses", "tokens", "hidden_states")
    for stage in ("dataset", "responses", "tokens"):  # the same content, as after an earlier port
        mend_provenance(hosts, stage)
    hosts.run_stopped("beta", "draft")
    assert decision(planned(hosts), "draft")["action"] == "blocked"
    assert decision(planned(hosts, replace=["draft"]), "draft")["action"] == "copy"


def mend_provenance(hosts: Any, stage: str) -> None:
    ctx = hosts.beta.context(stage)
    source = hosts.alpha.context(stage)
    ctx.state.write({**ctx.record(), "imported_from": {"fingerprint": source.fingerprint}})


def test_nothing_on_the_source_plans_everything_again(hosts: Any) -> None:
    plan = planned(hosts)
    assert set(actions(plan).values()) == {"recompute"}
    assert not plan["changes"]
    assert decision(plan, "draft")["reason"] == "the source has none"


def test_work_for_other_settings_is_named(hosts: Any) -> None:
    hosts.run("alpha", "dataset")
    hosts.set("alpha", "dataset", text="changed since")
    assert "only for other settings" in decision(planned(hosts), "dataset")["reason"]


def test_damaged_output_is_not_carried_as_done(hosts: Any) -> None:
    hosts.run("alpha", "dataset")
    (hosts.alpha.context("dataset").out / "result").write_text("shorter")
    plan = planned(hosts)
    assert decision(plan, "dataset")["action"] == "recompute"
    assert "damaged" in decision(plan, "dataset")["reason"]


def test_bandwidth_bound_lengthens_the_minutes(hosts: Any) -> None:
    hosts.set("alpha", "responses", size=4_000_000)
    hosts.set("beta", "responses", size=4_000_000)
    hosts.run("alpha", "target", "dataset", "responses")
    free, bound = planned(hosts), planned(hosts, bandwidth_mb_s=1.0)
    assert decision(bound, "responses")["seconds"] == pytest.approx(8.0, rel=0.1)
    assert decision(free, "responses")["seconds"] < 1.0
    assert bound["link"]["mb_s"] == 1.0


def test_too_little_space_refuses(hosts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts.run("alpha", "dataset")
    monkeypatch.setattr(plans, "free_bytes", lambda path: 100)
    plan = planned(hosts)
    assert not plan["ok"]
    assert "are free on the destination" in plan["gates"][0]["message"]


def test_options_are_checked(hosts: Any) -> None:
    with pytest.raises(SpecError, match="no stage 'responces'"):
        planned(hosts, accept=["responces"])
    with pytest.raises(SpecError, match="neither 'copy' nor 'recompute'"):
        planned(hosts, stages={"draft": "teleport"})
    with pytest.raises(SpecError, match="unknown setting 'bandwith'"):
        planned(hosts, bandwith=3)


def test_plan_reads_as_a_table(hosts: Any) -> None:
    hosts.run("alpha", "target", "dataset", "responses", "tokens", "hidden_states")
    hosts.set("beta", "responses", tool="9.9")
    text = "\n".join(lines(planned(hosts)))
    assert "port alpha -> beta, 1e+03 MB/s measured, direct" in text
    assert "valid: tools.vllm '1.2.3' -> '9.9'" in text
    assert text.count("copy") >= 4

"""The report stage over outputs as the other stages leave them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_house import INPUTS, House, Size, stand_in

from eyrie.core import planner, registry, runner
from eyrie.core.errors import EyrieError

pytestmark = pytest.mark.node

CONTRACT = ["run", "host", "target", "draft", "stages", "acceptance", "throughput", "break_even_acceptance", "verdict"]


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setattr(registry, "get", stand_in)
    return House(tmp_path)


def test_the_report_holds_what_was_measured(house: House) -> None:
    value = house.run()
    assert set(CONTRACT) <= set(value)
    assert [entry["name"] for entry in value["stages"]] == list(INPUTS)
    dataset = value["stages"][1]
    assert (dataset["in"], dataset["kept"], dataset["failed"]) == (5414, 350, {"not JSON": 1})
    assert value["acceptance"]["trained"] == pytest.approx(1.87, abs=0.02)
    assert value["acceptance"]["untrained"] == 1.0
    assert value["acceptance"]["predicted"] == 2.01
    assert [line["concurrency"] for line in value["throughput"]] == [1, 8]
    assert value["supervision"] == {
        "rows": 6,
        "tokens": 18,
        "supervised": 9,
        "sources": {
            "chat": {"rows": 3, "tokens": 9, "supervised": 6},
            "made": {"rows": 3, "tokens": 9, "supervised": 3},
        },
    }
    assert value["vocabulary_curve"][-1] == [3, 1.0]
    assert value["changes"] is None
    assert value["summary_lines"][0] == "m on here, run main"


def test_the_page_shows_samples_with_their_mask(house: House) -> None:
    house.run()
    text = (house.pipeline().context("report").out / "report.html").read_text()
    assert "<mark>because &lt;b&gt;&amp;</mark>" in text
    assert text.count("chat, 2 of 3 tokens supervised") == 2  # of three: two of each source are shown
    assert text.count("made, 2 of 3 tokens supervised") == 1


def test_the_page_and_the_json_show_what_has_no_mask(house: House) -> None:
    value = house.run()
    assert value["audit"]["zero_mask"] == 6
    assert value["audit"]["sources"]["silent"]["rows"] == 0
    assert "samples" not in value["audit"]
    text = (house.pipeline().context("report").out / "report.html").read_text()
    for part in ("without a mask", "cut at the end", "silent", "9 of 396 turns do not fit seq_length 512"):
        assert part in text


def test_a_long_training_keeps_its_shape_in_few_points(house: House) -> None:
    house.size = Size(steps=20_000)
    training = house.run()["training"]
    assert training["recorded"] == 20_000
    assert len(training["loss"]) <= 1600
    assert [training["loss"][0][0], training["loss"][-1][0]] == [1, 20_000]


def test_a_run_without_an_audit_has_a_report_too(house: House) -> None:
    pipeline = house.pipeline()
    (pipeline.context("tokens").out / "audit.json").unlink()
    runner.run(pipeline, "report")
    ctx = pipeline.context("report")
    assert json.loads((ctx.out / "report.json").read_text())["audit"] is None
    assert "What the loss sees" not in (ctx.out / "report.html").read_text()


def test_a_second_run_says_what_changed_since_the_first(house: House) -> None:
    house.run()
    value = house.run(version=1, gain=0.9)
    assert value["changes"]["settings"] == [{"stage": "draft", "name": "settings.version", "current": 0, "desired": 1}]
    figures = {item["name"]: item for item in value["changes"]["figures"]}
    assert figures["ratio at concurrency 1"]["now"] < figures["ratio at concurrency 1"]["before"]


def test_it_is_made_once_and_verified_against_its_source(house: House) -> None:
    house.run()
    ctx = house.pipeline().context("report")
    assert planner.plan(ctx)["up_to_date"]
    assert ctx.stage.verify(ctx) == []
    path = ctx.out / "report.json"
    value = json.loads(path.read_text())
    value["cells"][0]["tok_s"] += 1
    path.write_text(json.dumps(value))
    assert [fault.code for fault in ctx.stage.verify(ctx)] == ["report-stale"]


def test_states_that_were_given_up_do_not_matter(house: House) -> None:
    pipeline = house.pipeline()
    states = pipeline.context("hidden_states")
    states.state.write({**states.record(), "released": {"by": "gc", "reason": "can be made again", "when": 0}})
    states.out.rmdir()
    runner.run(pipeline, "report")
    assert planner.plan(pipeline.context("report"))["up_to_date"]


def test_missing_results_are_named(house: House) -> None:
    pipeline = house.pipeline()
    (pipeline.context("benchmark").out / "results.json").write_text("{")
    with pytest.raises(EyrieError, match=r"results\.json of benchmark is missing or torn") as caught:
        runner.run(pipeline, "report")
    assert caught.value.code == "report-input"

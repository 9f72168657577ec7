"""From samples to the decision, over whole made-up benchmarks."""

from __future__ import annotations

from typing import Any

import pytest

from eyrie.benchmark import cells, summary
from eyrie.benchmark.settings import Settings
from eyrie.core import spec

HEAD = {"set": "heldout", "concurrency": [1, 8], "prompts": 4, "output_tokens": 64}
LATENCY = {"mean": 1.0, "p50": 1.0, "p99": 2.0}


def settings(**more: Any) -> Settings:
    grid = more.pop("grid", [HEAD, {**HEAD, "set": "open", "concurrency": [1]}, {**HEAD, "variants": ["untrained"]}])
    return spec.load(Settings, {"grid": grid, **more}, "benchmark")


def sample(cell: cells.Cell, tok_s: float, drafts: int, accepted: int, **more: Any) -> dict[str, Any]:
    return {
        **vars(cell),
        "repeat": 0,
        "tok_s": tok_s,
        "completed": cell.prompts,
        "failed": {},
        "generated": 400,
        "drafts": drafts,
        "accepted": accepted,
        "per_position": [accepted / drafts] if drafts else [],
        "tokens_per_message_ci": None,
        "ttft_ms": LATENCY,
        "tpot_ms": LATENCY,
        "latency_ms": LATENCY,
        "in_flight": 1.0,
        "queue_share": 0.0,
        "past_end_share": 0.0,
        "foreign_cpu_share": 0.0,
        "digests": ["a", "b", "c", "d"],
        "flags": [],
        **more,
    }


SPEEDS = {"baseline": 40.0, "eagle3": 60.0, "untrained": 33.0, "predecessor": 50.0}
ACCEPTED = {"baseline": (0, 0), "eagle3": (200, 160), "untrained": (396, 2), "predecessor": (220, 110)}


def run(
    given: Settings, speeds: dict[str, float] = SPEEDS, predecessor: bool = False, **more: Any
) -> list[dict[str, Any]]:
    found = []
    for session in cells.sessions(given, 3, predecessor):
        drift = 1.01 if session.round == 2 else 1.0
        variant = session.variant
        samples = [
            sample(cell, drift * speeds[variant] * cell.concurrency**0.8, *ACCEPTED[variant], **more)
            for cell in session.cells
        ]
        found.append({**session.as_dict(), "key": session.key, "samples": samples})
    return found


def test_repeats_become_one_cell_with_pooled_acceptance() -> None:
    found = summary.cells(run(settings()))
    (cell,) = summary.pick(found, "eagle3", summary.headline(settings()), concurrency=1)
    assert cell["n"] == 2
    assert cell["drafts"] == 400
    assert cell["acceptance"] == pytest.approx(1.8)
    assert cell["tok_s"] == pytest.approx(60.0 * 1.01**0.5)
    assert cell["tok_s_ci"][0] < 60.3 < cell["tok_s_ci"][1]
    assert cell["noise_df"] >= 3


def test_a_winning_draft_is_promoted_with_its_lines() -> None:
    given = settings()
    found = summary.decision(given, summary.cells(run(given)))
    assert found["verdict"]["serve"] == "eagle3"
    assert found["verdict"]["max_concurrency"] == 8
    assert [line["concurrency"] for line in found["lines"]] == [1, 8]
    assert found["lines"][0]["ratio"] == pytest.approx(1.5)
    assert found["lines"][0]["break_even_acceptance"] == pytest.approx(1.8 / 1.5)
    for line in found["lines"]:
        assert line["ratio"] == pytest.approx(line["eagle3_tok_s"] / line["baseline_tok_s"])
    assert found["promote"] is True
    assert found["sets"]["heldout"]["untrained"]["length"] == pytest.approx(1 + 2 / 396)
    assert found["sets"]["open"]["acceptance"]["length"] == pytest.approx(1.8)
    assert found["sets"]["open"]["untrained"] is None


@pytest.mark.parametrize(("before", "promote"), [(50.0, True), (60.0, True), (80.0, False)])
def test_a_draft_that_loses_to_its_predecessor_is_refused(before: float, promote: bool) -> None:
    given = settings()
    found = summary.decision(given, summary.cells(run(given, {**SPEEDS, "predecessor": before}, predecessor=True)))
    assert found["verdict"]["serve"] == "eagle3"
    assert found["promote"] is promote
    assert [item[0] for item in found["predecessor"]] == [1, 8]
    assert promote or "loses to the draft that is promoted now" in found["promote_reason"]


def test_measured_once_there_is_no_interval_and_nothing_is_promoted() -> None:
    given = settings(rounds=1)
    found = summary.decision(given, summary.cells(run(given)))
    assert found["lines"][0]["ratio_ci"] is None
    assert found["promote"] is False
    assert "measured once" in found["verdict"]["words"]


def test_marks_of_the_deciding_cells_are_in_the_verdict() -> None:
    given = settings()
    found = summary.decision(given, summary.cells(run(given, flags=["capacity-limited"])))
    assert "Doubtful cells: capacity-limited." in found["verdict"]["words"]


def test_the_fastest_k_of_a_sweep_is_named() -> None:
    given = settings(grid=[HEAD, {**HEAD, "concurrency": [1], "variants": ["sweep"]}], k_sweep=[1, 3, 5])
    sessions = []
    for session in cells.sessions(given, 3):
        speed = {0: 40.0, 1: 50.0, 3: 60.0, 5: 66.0}[session.k]
        taken = (0, 0) if session.variant == "baseline" else (200, 160)
        samples = [sample(cell, speed * (1 + session.round / 500), *taken) for cell in session.cells]
        sessions.append({**session.as_dict(), "key": session.key, "samples": samples})
    best = summary.decision(given, summary.cells(sessions))["best_k"]
    assert best[1]["k"] == 5
    assert best[1]["of"] == [1, 3, 5]
    assert best[8]["of"] == [3]


@pytest.mark.parametrize(("other", "same", "promote"), [("d", 4, True), ("x", 3, False)])
def test_lossless_in_fp32_or_not_promoted(other: str, same: int, promote: bool) -> None:
    given = settings(lossless_prompts=4)
    speeds = {**SPEEDS, "baseline fp32": 20.0, "eagle3 fp32": 30.0}
    ACCEPTED.update({"baseline fp32": (0, 0), "eagle3 fp32": (200, 160)})
    sessions = run(given, speeds)
    exact = next(session for session in sessions if session["variant"] == cells.EXACT_EAGLE3)
    exact["samples"][0]["digests"] = ["a", "b", "c", other]
    lossless = summary.lossless(sessions)
    assert lossless is not None
    assert (lossless["same"], lossless["of"], lossless["dtype"]) == (same, 4, "float32")
    found = summary.decision(given, summary.cells(sessions), lossless)
    assert found["promote"] is promote
    assert promote or "3 of 4 answers are the same" in found["verdict"]["words"]


def test_the_same_text_is_counted_in_the_first_turn_only() -> None:
    sessions = run(settings())
    assert summary.same_text(sessions) == {"same": 12, "of": 12}
    sessions[-1]["samples"][0]["digests"] = ["z"] * 4
    assert summary.same_text(sessions) == {"same": 12, "of": 12}
    assert summary.lossless(sessions) is None

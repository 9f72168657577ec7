"""Break-even, outcome, best k, verdict and promotion as tables."""

from __future__ import annotations

import math

import pytest

from eyrie.benchmark import decide


def line(concurrency: int, base: float, eagle: float, interval: list[float] | None, length: float = 1.8) -> decide.Line:
    return decide.Line(concurrency, base, eagle, eagle / base, interval, length, 3)


@pytest.mark.parametrize(
    ("length", "base", "eagle", "expected"),
    [
        (2.1, 90.0, 82.3, 2.2965),  # a draft of 2.1 that was slower than the baseline: a step cost 2.30 steps
        (1.8, 40.0, 60.0, 1.2),
        (1.0, 38.5, 32.9, 1.1702),  # an untrained draft shows the bare cost of drafting
        (2.94, 88.5, 114.0, 2.2824),
    ],
)
def test_break_even_is_the_step_cost(length: float, base: float, eagle: float, expected: float) -> None:
    assert decide.break_even(length, base, eagle) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("interval", "gain", "expected"),
    [
        ([1.05, 1.4], 0.0, "win"),
        ([1.05, 1.4], 0.1, "even"),
        ([0.97, 1.1], 0.0, "even"),
        ([0.8, 0.99], 0.0, "loss"),
        ([1.0, 1.2], 0.0, "even"),
        (None, 0.0, "unrepeated"),
    ],
)
def test_outcome_needs_the_whole_interval(interval: list[float] | None, gain: float, expected: str) -> None:
    assert decide.outcome(1.2, interval, gain) == expected


@pytest.mark.parametrize(
    ("generated", "accepted", "expected"),
    [
        (100, 0, 1.0),  # nothing accepted: one token a step
        (100, 50, 2.0),
        (128, 28, 1.28),  # n-gram drafted in a few steps only; the others count too
        (0, 0, math.nan),
    ],
)
def test_tokens_per_step_counts_all_steps(generated: float, accepted: float, expected: float) -> None:
    assert decide.tokens_per_step(generated, accepted) == pytest.approx(expected, nan_ok=True)


def test_best_k_is_the_fastest_per_concurrency_and_the_smallest_of_equals() -> None:
    found = decide.best_k({8: {1: 200.0, 3: 180.0}, 1: {1: 50.0, 3: 62.0, 5: 62.0}})
    assert list(found) == [1, 8]
    assert found[1] == {"k": 3, "tok_s": 62.0, "of": [1, 3, 5]}
    assert found[8]["k"] == 1


WIN, EVEN, LOSS = [1.1, 1.5], [0.95, 1.06], [0.8, 0.95]


@pytest.mark.parametrize(
    ("intervals", "serve", "up_to", "words"),
    [
        ([(1, WIN), (8, WIN)], "eagle3", 8, "Serve EAGLE3 up to concurrency 8 with k=3"),
        ([(1, WIN), (8, EVEN)], "eagle3", 1, "no difference beyond noise"),
        ([(1, WIN), (8, LOSS), (32, WIN)], "eagle3", 1, "Above that serve the baseline"),
        ([(1, LOSS), (8, LOSS)], "baseline", None, "Serve the baseline"),
        ([(1, EVEN)], "baseline", None, "to break even it needs"),
        ([(1, LOSS), (8, WIN)], "baseline", None, "EAGLE3 wins only above"),
        ([(1, None)], "baseline", None, "measured once: no interval"),
    ],
)
def test_verdict(intervals: list[tuple[int, list[float] | None]], serve: str, up_to: int | None, words: str) -> None:
    # order of the lines must not matter
    lines = [line(c, 40.0, 40.0 * (sum(i) / 2 if i else 1.3), i) for c, i in reversed(intervals)]
    found = decide.verdict(lines)
    assert found["serve"] == serve
    assert found["max_concurrency"] == up_to
    assert words in found["words"]
    assert found["num_speculative_tokens"] == 3


def test_verdict_says_what_it_is_limited_by() -> None:
    found = decide.verdict([line(1, 40.0, 52.0, WIN)], ["Doubtful cells: capacity-limited."])
    assert found["words"].endswith("Doubtful cells: capacity-limited.")


@pytest.mark.parametrize(
    ("serve", "against", "promoted", "reason"),
    [
        ("baseline", None, False, "does not win against the baseline"),
        ("eagle3", None, True, "no draft was promoted before"),
        ("eagle3", [(1, 1.1, [1.02, 1.2])], True, "does not lose"),
        ("eagle3", [(1, 0.99, [0.9, 1.08])], True, "does not lose"),
        (
            "eagle3",
            [(1, 1.1, [1.02, 1.2]), (8, 0.8, [0.7, 0.9])],
            False,
            "loses to the draft that is promoted now: 0.80x at 8",
        ),
    ],
)
def test_promotion(
    serve: str, against: list[tuple[int, float, list[float] | None]] | None, promoted: bool, reason: str
) -> None:
    found, text = decide.promotion({"serve": serve}, against)
    assert found is promoted
    assert reason in text

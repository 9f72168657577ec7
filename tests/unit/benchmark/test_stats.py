"""Intervals against values worked out by hand or known from tables."""

from __future__ import annotations

import math
import random

import pytest

from eyrie.benchmark import stats


@pytest.mark.parametrize(
    ("df", "value"), [(1, 12.706), (3, 3.182), (30, 2.042), (40, 2.021), (120, 1.980), (10**6, 1.960)]
)
def test_t_quantiles_are_those_of_the_tables(df: int, value: float) -> None:
    assert stats.t95(df) == pytest.approx(value, abs=0.0015)


def test_no_degrees_of_freedom_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        stats.t95(0)


def test_noise_is_pooled_over_groups_of_any_level() -> None:
    low, high = [10.0, 11.0], [1000.0, 1100.0]
    noise, df = stats.pooled_noise([low, high, [7.0]])
    one, _ = stats.pooled_noise([low])
    assert df == 2
    assert noise == pytest.approx(one)
    assert noise == pytest.approx(math.log(1.1) / math.sqrt(2))


def test_without_repeats_there_is_no_noise_and_no_interval() -> None:
    noise, df = stats.pooled_noise([[5.0], [6.0]])
    assert math.isnan(noise)
    assert df == 0
    assert stats.interval([5.0], noise, df) is None
    assert stats.ratio([6.0], [5.0], noise, df) == (pytest.approx(1.2), None)


def test_intervals_cover_as_often_as_they_say() -> None:
    rng = random.Random(4)
    covered = 0
    for _ in range(2000):
        groups = [[math.exp(rng.gauss(level, 0.05)) for _ in range(2)] for level in (1.0, 3.0, 5.0, 2.0)]
        noise, df = stats.pooled_noise(groups)
        low, high = stats.interval(groups[0], noise, df) or [0.0, 0.0]
        covered += low <= math.exp(1.0) <= high
    assert 0.93 < covered / 2000 < 0.97


def test_ratio_intervals_cover_as_often_as_they_say() -> None:
    rng = random.Random(5)
    covered = 0
    for _ in range(2000):
        groups = [[math.exp(rng.gauss(level, 0.05)) for _ in range(2)] for level in (1.0, 1.3, 5.0)]
        _, interval = stats.ratio(groups[1], groups[0], *stats.pooled_noise(groups))
        assert interval is not None
        covered += interval[0] <= math.exp(0.3) <= interval[1]
    assert 0.93 < covered / 2000 < 0.97


def test_ratio_of_sums_weighs_prompts_by_their_steps() -> None:
    value, interval = stats.ratio_of_sums([(10, 5), (30, 10), (2, 2)])
    assert value == pytest.approx(42 / 17)
    assert interval is not None
    assert interval[0] < value < interval[1]
    assert stats.ratio_of_sums([(4, 2), (6, 3)]) == (pytest.approx(2.0), None)
    exact, narrow = stats.ratio_of_sums([(4, 2), (6, 3), (2, 1)])
    assert narrow == pytest.approx([exact, exact])

"""Means and Student intervals. Pure, standard library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

#: two-sided 95 % quantiles of Student's t for 1..30 degrees of freedom
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def t95(df: int) -> float:
    """Two-sided 95 % quantile of Student's t; the expansion in 1/df beyond the table (error below 0.001)."""
    if df < 1:
        raise ValueError("degrees of freedom must be at least 1")
    if df <= len(_T95):
        return _T95[df - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def geometric_mean(values: Sequence[float]) -> float:
    """Mean of positive values by their logarithms: ratios of such means are means of ratios."""
    return math.exp(mean([math.log(value) for value in values]))


def pooled_noise(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """(relative standard deviation of one measurement, degrees of freedom) from groups of repeats.

    Repeats of different cells differ in level, not in relative noise: their logarithms are pooled, so that two
    repeats of many cells say what many repeats of one would. (nan, 0) without any repeat.
    """
    square, df = 0.0, 0
    for group in groups:
        logs = [math.log(value) for value in group if value > 0]
        if len(logs) > 1:
            centre = mean(logs)
            square += math.fsum((value - centre) ** 2 for value in logs)
            df += len(logs) - 1
    return (math.sqrt(square / df), df) if df else (math.nan, 0)


def interval(values: Sequence[float], noise: float, df: int) -> list[float] | None:
    """95 % interval of the mean of repeats, given the pooled noise; None when nothing was repeated."""
    if df < 1 or not values:
        return None
    half = t95(df) * noise / math.sqrt(len(values))
    centre = mean([math.log(value) for value in values])
    return [math.exp(centre - half), math.exp(centre + half)]


def ratio(upper: Sequence[float], lower: Sequence[float], noise: float, df: int) -> tuple[float, list[float] | None]:
    """(ratio of geometric means, its 95 % interval or None) of two sets of repeats."""
    centre = mean([math.log(value) for value in upper]) - mean([math.log(value) for value in lower])
    if df < 1:
        return math.exp(centre), None
    half = t95(df) * noise * math.sqrt(1 / len(upper) + 1 / len(lower))
    return math.exp(centre), [math.exp(centre - half), math.exp(centre + half)]


def ratio_of_sums(pairs: Sequence[tuple[float, float]]) -> tuple[float, list[float] | None]:
    """(sum a / sum b, 95 % interval over the pairs) by linearisation: tokens per step over prompts."""
    below = math.fsum(b for _, b in pairs)
    value = math.fsum(a for a, _ in pairs) / below
    count = len(pairs)
    if count < 3:
        return value, None
    spread = math.fsum((a - value * b) ** 2 for a, b in pairs)
    half = t95(count - 1) * math.sqrt(spread * count / (count - 1)) / below
    return value, [value - half, value + half]

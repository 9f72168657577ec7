"""Series for plots: thinned without losing their extremes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Point = tuple[float, float]


def thin(points: Sequence[Point], count: int) -> list[Point]:
    """At most `count` points that look the same: the first, the last, and each bucket's lowest and highest."""
    if len(points) <= count:
        return list(points)
    buckets = max(1, (count - 2) // 2)
    inner = points[1:-1]
    kept = [points[0]]
    for number in range(buckets):
        part = inner[number * len(inner) // buckets : (number + 1) * len(inner) // buckets]
        if not part:
            continue
        low, high = min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])
        kept += sorted({low, high})
    return [*kept, points[-1]]


def smooth(points: Sequence[Point], window: int) -> list[Point]:
    """Mean of the last `window` values at each point."""
    out: list[Point] = []
    total = 0.0
    for place, (x, y) in enumerate(points):
        total += y
        if place >= window:
            total -= points[place - window][1]
        out.append((x, total / min(place + 1, window)))
    return out


def finite(points: Sequence[Any]) -> list[Point]:
    """[step, value] pairs without NaN and infinity."""
    found = [(float(point[0]), float(point[1])) for point in points]
    return [point for point in found if math.isfinite(point[1])]

"""What changed since the run before: settings by name, figures side by side."""

from __future__ import annotations

from typing import Any

from eyrie.core import atomic
from eyrie.core.fingerprint import differences, short
from eyrie.core.pipeline import Context


def last(ctx: Context) -> dict[str, Any] | None:
    """The newest report of this run with another fingerprint; None when this is the first."""
    found: list[tuple[float, dict[str, Any]]] = []
    for path in ctx.base.glob("*/report.json"):
        if path.parent == ctx.out:
            continue
        value = atomic.read_json(path)
        if isinstance(value, dict) and value.get("schema") == 1:
            found.append((path.stat().st_mtime, value))
    return max(found, key=lambda item: item[0])[1] if found else None


def changes(ctx: Context, now: dict[str, Any]) -> dict[str, Any] | None:
    """{since, settings: [{stage, name, current, desired}], figures: [{name, before, now}]}; None without a last run."""
    before = last(ctx)
    return None if before is None else between(before, now)


def between(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Differences of two reports. Pure."""
    old = {item["stage"]: item["identity"] for item in before["provenance"]}
    new = {item["stage"]: item["identity"] for item in now["provenance"]}
    settings = [
        {"stage": name, **difference}
        for name in sorted(old.keys() | new.keys(), key=[*new, *old].index)
        for difference in differences(old.get(name), new.get(name))
    ]
    pairs = [(name, read(before, path), read(now, path)) for name, path in FIGURES]
    pairs += _throughput(before, now)
    figures = [{"name": name, "before": a, "now": b} for name, a, b in pairs if a is not None or b is not None]
    return {"since": short(before["draft"]["fingerprint"]), "settings": settings, "figures": figures}


FIGURES = (
    ("acceptance length, trained", "acceptance.trained"),
    ("acceptance length, untrained", "acceptance.untrained"),
    ("acceptance length, predicted", "acceptance.predicted"),
    ("supervised tokens", "supervision.supervised"),
    ("break-even acceptance length", "break_even_acceptance"),
)


def _throughput(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, float | None, float | None]]:
    old = {line["concurrency"]: line for line in before["throughput"]}
    new = {line["concurrency"]: line for line in now["throughput"]}
    pairs = []
    for concurrency in sorted(old.keys() | new.keys()):
        for key, text in (("baseline_tok_s", "baseline tok/s"), ("eagle3_tok_s", "EAGLE3 tok/s"), ("ratio", "ratio")):
            pair = [found.get(concurrency, {}).get(key) for found in (old, new)]
            pairs.append((f"{text} at concurrency {concurrency}", pair[0], pair[1]))
    return pairs


def read(value: Any, path: str) -> float | None:
    """A number by its dotted path; None where it is not there."""
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return float(value) if isinstance(value, (int, float)) else None

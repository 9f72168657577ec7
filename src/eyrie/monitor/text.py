"""Prometheus' text format (0.0.4). Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Family:
    """One metric: its name, its help line, its samples. All are gauges: they are read anew at every scrape."""

    name: str
    help: str
    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)

    def add(self, value: float | int | None, **labels: object) -> None:
        """One sample; what is not known (None) has none."""
        if value is not None:
            self.samples.append(({name: str(text) for name, text in labels.items()}, float(value)))


def render(families: Iterable[Family]) -> str:
    """The families that have samples, in order."""
    lines: list[str] = []
    for family in families:
        if not family.samples:
            continue
        lines += [f"# HELP {family.name} {_escape(family.help)}", f"# TYPE {family.name} gauge"]
        lines += [f"{family.name}{_labels(labels)} {number(value)}" for labels, value in family.samples]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{name}="{_escape(text, quotes=True)}"' for name, text in labels.items())
    return "{" + inside + "}"


def _escape(text: str, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def number(value: float) -> str:
    """A value as Prometheus reads it: '12', '0.25', '+Inf', 'NaN'."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)

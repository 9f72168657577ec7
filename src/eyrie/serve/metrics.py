"""Prometheus counters of a server, and the acceptance length between two readings."""

from __future__ import annotations

import re
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.serve import http

_POSITION = re.compile(r'position="(\d+)"')
FORMULA = "1 + accepted / drafts, from differences of counters"


def scrape(base_url: str, timeout_s: float = 10.0) -> dict[str, float]:
    """{'name{labels}': value} of GET /metrics. Raises EyrieError when the server does not answer."""
    return parse(http.get(base_url, "/metrics", timeout_s).text)


def parse(text: str) -> dict[str, float]:
    """Prometheus' text format; lines that are no samples are passed over."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name, _, value = line.rpartition("}") if "}" in line else line.partition(" ")
        key = name + "}" if "}" in line else name
        words = value.split()
        try:
            found[key.strip()] = float(words[0])
        except (IndexError, ValueError):
            continue
    return found


def total(samples: dict[str, float], name: str) -> float:
    """Sum of a metric over its labels (engines, models); 0.0 when it is not there."""
    return sum(value for key, value in samples.items() if key.split("{", 1)[0] == name)


def speculates(samples: dict[str, float]) -> bool:
    """Whether the server has counters of drafted tokens at all."""
    return any(key.startswith("vllm:spec_decode_num_drafts") for key in samples)


def acceptance(before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    """Acceptance of the work between two scrapes.

    Returns {drafts, draft_tokens, accepted, length, per_position, formula}; length is tokens per step with the
    bonus token, None when nothing was drafted. Raises EyrieError when a counter went down.
    """
    prefix = "vllm:spec_decode_num_"
    values = {}
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        old, new = total(before, f"{prefix}{name}_total"), total(after, f"{prefix}{name}_total")
        if new < old:
            raise _restarted(f"{prefix}{name}_total", old, new)
        values[name] = new - old
    drafts = values["drafts"]
    old_positions, new_positions = _positions(before), _positions(after)
    per_position = []
    for position in sorted(new_positions):
        difference = new_positions[position] - old_positions.get(position, 0.0)
        if difference < 0:
            raise _restarted(f"position {position}", old_positions[position], new_positions[position])
        per_position.append(difference / drafts if drafts else 0.0)
    return {
        "drafts": int(drafts),
        "draft_tokens": int(values["draft_tokens"]),
        "accepted": int(values["accepted_tokens"]),
        "length": 1 + values["accepted_tokens"] / drafts if drafts else None,
        "per_position": per_position,
        "formula": FORMULA,
    }


def _positions(samples: dict[str, float]) -> dict[int, float]:
    found: dict[int, float] = {}
    for key, value in samples.items():
        if key.startswith("vllm:spec_decode_num_accepted_tokens_per_pos_total{"):
            position = _POSITION.search(key)
            if position:
                number = int(position[1])
                found[number] = found.get(number, 0.0) + value
    return found


def _restarted(name: str, old: float, new: float) -> EyrieError:
    return EyrieError(
        f"The server restarted during the measurement: {name} went from {old:.0f} to {new:.0f}.",
        code="server-restarted",
        todo="Measure again; see the server's log for why it restarted.",
    )

"""From measured cells to a decision: break-even, best k, verdict in words. Pure.

Terms, per concurrency:

- acceptance length L = 1 + accepted / drafts: tokens that one verification step yields
- step cost r = L * baseline tok/s / EAGLE3 tok/s: how much longer a step with the draft takes than one without
- break-even = r: the acceptance length at which EAGLE3 is exactly as fast as the baseline
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

FORMULA = "1 + accepted/drafts"


@dataclass
class Line:
    """EAGLE3 against the baseline at one concurrency."""

    concurrency: int
    baseline_tok_s: float
    eagle3_tok_s: float
    ratio: float
    ratio_ci: list[float] | None
    acceptance: float
    num_speculative_tokens: int
    min_gain: float = 0.0

    @property
    def step_cost(self) -> float:
        return break_even(self.acceptance, self.baseline_tok_s, self.eagle3_tok_s)

    @property
    def outcome(self) -> str:
        return outcome(self.ratio, self.ratio_ci, self.min_gain)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "break_even_acceptance": self.step_cost, "outcome": self.outcome}


def break_even(acceptance: float, baseline_tok_s: float, eagle3_tok_s: float) -> float:
    """Acceptance length at which EAGLE3 equals the baseline."""
    return acceptance * baseline_tok_s / eagle3_tok_s


def outcome(ratio: float, interval: list[float] | None, min_gain: float = 0.0) -> str:
    """'win', 'loss' or 'even' against 1 + min_gain; without repeats there is no interval and nothing is won."""
    if interval is None:
        return "unrepeated"
    if interval[0] > 1.0 + min_gain:
        return "win"
    return "loss" if interval[1] < 1.0 + min_gain else "even"


def tokens_per_step(generated: float, accepted: float) -> float:
    """Tokens per step over *all* steps of all requests, whether or not they drafted.

    Every step yields one token of the target's own and what it accepted, so steps = generated - accepted.
    """
    steps = generated - accepted
    return generated / steps if steps > 0 else math.nan


def best_k(candidates: dict[int, dict[int, float]]) -> dict[int, dict[str, Any]]:
    """Per concurrency the fastest number of draft tokens: {concurrency: {k, tok_s, of}}.

    candidates: {concurrency: {k: tok/s}}.
    """
    best = {}
    for concurrency, speeds in sorted(candidates.items()):
        k = max(sorted(speeds), key=lambda number: speeds[number])
        best[concurrency] = {"k": k, "tok_s": speeds[k], "of": sorted(speeds)}
    return best


def verdict(lines: Sequence[Line], limits: Sequence[str] = ()) -> dict[str, Any]:
    """{serve, max_concurrency, num_speculative_tokens, words}: what to serve, and why.

    EAGLE3 is served up to the highest concurrency below which it wins everywhere.
    """
    ordered = sorted(lines, key=lambda line: line.concurrency)
    winning: list[Line] = []
    for line in ordered:
        if line.outcome != "win":
            break
        winning.append(line)
    later = ordered[len(winning) :]
    if winning:
        top = winning[-1]
        words = f"Serve EAGLE3 up to concurrency {top.concurrency} with k={top.num_speculative_tokens}: "
        words += ", ".join(_gain(line) for line in winning) + "."
        if later:
            words += " Above that serve the baseline: " + ", ".join(_gain(line) for line in later) + "."
    else:
        words = "Serve the baseline: " + ", ".join(_gain(line) for line in ordered) + "."
        words += " " + _needed(ordered)
        if any(line.outcome == "win" for line in later):
            words += " EAGLE3 wins only above a concurrency at which it does not."
    for limit in limits:
        words += f" {limit}"
    return {
        "serve": "eagle3" if winning else "baseline",
        "max_concurrency": winning[-1].concurrency if winning else None,
        "num_speculative_tokens": (winning or ordered)[-1].num_speculative_tokens,
        "words": words,
    }


def _gain(line: Line) -> str:
    text = f"{line.ratio:.2f}x at {line.concurrency}"
    if line.ratio_ci:
        text += f" (95% {line.ratio_ci[0]:.2f}-{line.ratio_ci[1]:.2f}"
        text += ", no difference beyond noise)" if line.outcome == "even" else ")"
    else:
        text += " (measured once: no interval)"
    return text


def _needed(lines: Sequence[Line]) -> str:
    parts = [f"{line.step_cost:.2f} at {line.concurrency}" for line in lines]
    shown = ", ".join(f"{line.acceptance:.2f}" for line in lines[:1])
    return f"The acceptance length is {shown}; to break even it needs {', '.join(parts)}."


def promotion(
    judged: dict[str, Any], against: Sequence[tuple[int, float, list[float] | None]] | None, lossy: bool = False
) -> tuple[bool, str]:
    """(promote?, reason).

    against: (concurrency, ratio, interval) of this draft over the promoted one on the same prompts; None = there is
    none. lossy: greedy text differed with the draft where it must not.
    """
    if lossy:
        return False, "With the draft greedy text differs in fp32: what serves is not the target's own text."
    if judged["serve"] != "eagle3":
        return False, "It does not win against the baseline beyond noise."
    if against is None:
        return True, "It wins against the baseline; no draft was promoted before."
    worse = [(c, value) for c, value, interval in against if outcome(value, interval) == "loss"]
    if worse:
        listed = ", ".join(f"{value:.2f}x at {c}" for c, value in worse)
        return False, f"It loses to the draft that is promoted now: {listed}."
    shown = ", ".join(f"{value:.2f}x at {c}" for c, value, _ in against)
    return True, f"It wins against the baseline and does not lose to the promoted draft ({shown})."

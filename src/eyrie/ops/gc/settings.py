"""How long what is kept (`execution.retention` of the spec; no part of any fingerprint)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from eyrie.core import spec


@dataclass
class Retention:
    """Defaults keep everything that took a GPU to make.

    keep_superseded: outputs of earlier settings kept per stage, newest first.
    states: 'keep' hidden states; give those of a finished draft up 'after_training', or only those of a draft that
    is promoted ('after_promotion'). They are captured again when something needs them.
    unreferenced_states: delete states that no prepared data refers to any more.
    canary_days, log_days, tmp_days: age in days at which these go.
    """

    keep_superseded: int = 1
    states: Literal["keep", "after_training", "after_promotion"] = "keep"
    unreferenced_states: bool = True
    unused_targets: bool = True
    canary_days: float = 7.0
    log_days: float = 30.0
    tmp_days: float = 1.0

    def __post_init__(self) -> None:
        if self.keep_superseded < 0 or min(self.canary_days, self.log_days, self.tmp_days) < 0:
            raise ValueError("counts and days must not be negative.")


def load(execution: dict[str, Any]) -> Retention:
    """Typed settings. Raises SpecError."""
    return spec.load(Retention, execution.get("retention") or {}, "execution.retention")

"""Exact accounting: in = kept + dropped (by reason) + failed (by reason)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from eyrie.core.errors import EyrieError

FIRST_FAULTS = 3


@dataclass
class Account:
    """Counts of one stage or one source.

    examples holds, per reason, the first places (file:line, row key) where it occurred.
    """

    entered: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def keep(self, count: int = 1) -> None:
        self.entered += count
        self.kept += count

    def drop(self, reason: str, where: str = "", count: int = 1) -> None:
        """A rule excluded it: wrong shape, duplicate, too long."""
        self.entered += count
        self.dropped[reason] += count
        self._note(reason, where)

    def fail(self, reason: str, where: str = "", count: int = 1) -> None:
        """Work on it broke: the server refused it, the line was torn."""
        self.entered += count
        self.failed[reason] += count
        self._note(reason, where)

    def _note(self, reason: str, where: str) -> None:
        seen = self.examples.setdefault(reason, [])
        if where and len(seen) < FIRST_FAULTS:
            seen.append(where)

    def merge(self, other: Account) -> None:
        self.entered += other.entered
        self.kept += other.kept
        self.dropped.update(other.dropped)
        self.failed.update(other.failed)
        for reason, places in other.examples.items():
            seen = self.examples.setdefault(reason, [])
            seen.extend(places[: FIRST_FAULTS - len(seen)])

    @property
    def balanced(self) -> bool:
        return self.entered == self.kept + self.dropped.total() + self.failed.total()

    def check(self, stage: str) -> None:
        """Raise when the books do not balance or nothing was kept."""
        if not self.balanced:
            raise EyrieError(
                f"The books of {stage} do not balance: in {self.entered}, kept {self.kept}, "
                f"dropped {self.dropped.total()}, failed {self.failed.total()}.",
                code="books-unbalanced",
                todo="This is a defect in Eyrie: keep the state folder and report it.",
            )
        if self.kept == 0:
            reasons = (self.dropped + self.failed).most_common(3)
            listed = ", ".join(f"{reason} {count}" for reason, count in reasons) or "nothing came in"
            raise EyrieError(
                f"{stage} kept nothing of {self.entered}.",
                code="zero-kept",
                why=f"Commonest reasons: {listed}.",
                todo="See the first faults of each reason in `eyrie status`.",
            )

    def as_dict(self) -> dict[str, Any]:
        return {
            "in": self.entered,
            "kept": self.kept,
            "dropped": dict(sorted(self.dropped.items())),
            "failed": dict(sorted(self.failed.items())),
            "examples": {reason: places for reason, places in sorted(self.examples.items()) if places},
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Account:
        return cls(
            entered=value["in"],
            kept=value["kept"],
            dropped=Counter(value["dropped"]),
            failed=Counter(value["failed"]),
            examples=dict(value.get("examples", {})),
        )

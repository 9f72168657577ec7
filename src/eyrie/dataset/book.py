"""The books of one part of one source: what came in, what was kept, what was repaired, with the first places."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from eyrie.core.accounting import FIRST_FAULTS, Account

#: reasons that say something of the source's quality; the rest are choices of ours (too long, duplicate, over quota)
CHOICES = frozenset(
    {
        "prompt_too_long",
        "duplicate",
        "duplicate_across",
        "near_duplicate",
        "near_eval",
        "eval_overlap",
        "held_out",
        "over_quota",
        "not_sampled",
    }
)

Place = tuple[int, int]


@dataclass
class Book:
    """Counts of a run of records; places are (file index, line counted from the part's first line)."""

    entered: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[Place]] = field(default_factory=dict)

    def drop(self, reason: str, file: int, line: int) -> None:
        self.entered += 1
        self.dropped[reason] += 1
        self._place(reason, file, line)

    def fail(self, reason: str, file: int, line: int) -> None:
        self.entered += 1
        self.failed[reason] += 1
        self._place(reason, file, line)

    def note(self, names: list[str], file: int, line: int) -> None:
        self.notes.update(names)
        for name in names:
            self._place(name, file, line)

    def _place(self, reason: str, file: int, line: int) -> None:
        seen = self.places.setdefault(reason, [])
        if len(seen) < FIRST_FAULTS:
            seen.append((file, line))

    @property
    def bad(self) -> int:
        """Rows that could not be read or had the wrong shape."""
        return self.failed.total() + sum(count for reason, count in self.dropped.items() if reason not in CHOICES)

    def merge(self, other: Book, line_base: int = 0) -> None:
        """Add a later part's book; its lines are moved by the lines before it."""
        self.entered += other.entered
        self.kept += other.kept
        self.dropped.update(other.dropped)
        self.failed.update(other.failed)
        self.notes.update(other.notes)
        for reason, places in other.places.items():
            for file, line in places:
                self._place(reason, file, line + line_base)

    def as_dict(self) -> dict[str, Any]:
        return {
            "in": self.entered,
            "kept": self.kept,
            "dropped": dict(self.dropped),
            "failed": dict(self.failed),
            "notes": dict(self.notes),
            "places": self.places,
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Book:
        return cls(
            value["in"],
            value["kept"],
            Counter(value["dropped"]),
            Counter(value["failed"]),
            Counter(value["notes"]),
            {reason: [(file, line) for file, line in places] for reason, places in value["places"].items()},
        )

    def account(self, files: list[str]) -> Account:
        """The same as an Account, places as file:line."""
        examples = {
            reason: [f"{files[file]}:{line}" for file, line in places]
            for reason, places in self.places.items()
            if reason in self.dropped or reason in self.failed
        }
        return Account(self.entered, self.kept, Counter(self.dropped), Counter(self.failed), examples)

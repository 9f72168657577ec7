"""The failure-signature catalogue: data in signatures/*.yml, typed here.

One signature:

  id        stable kebab-case name
  title     one line, what an operator sees
  sources   where it shows: log (stage and server logs), state (a stage's record), host (facts of the machine),
            play (Ansible's own output)
  patterns  regular expressions, any of which matches one line (case-insensitive)
  context   regular expressions, all of which must match somewhere in the same text
  facts     conditions [{fact, below|above|equals}], all of which must hold
  stages    only for these stages (empty: any)
  cause, cure   what went wrong, and what to do
  weight    0..1, less for signatures that say little by themselves
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from eyrie.core import spec
from eyrie.core.errors import SpecError

FOLDER = Path(__file__).parent / "signatures"
SOURCES = ("log", "state", "host", "play")


@dataclass
class Fact:
    """A condition on one named fact; exactly one of below, above, equals is given."""

    fact: str
    below: float | None = None
    above: float | None = None
    equals: Any = None

    def holds(self, facts: dict[str, Any]) -> bool:
        value = facts.get(self.fact)
        if self.equals is not None:
            return bool(value == self.equals)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return (self.below is None or value < self.below) and (self.above is None or value > self.above)


@dataclass
class Signature:
    """One known failure."""

    id: str
    title: str
    cause: str
    cure: str
    sources: list[str]
    patterns: list[str] = field(default_factory=list)
    context: list[str] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.patterns and not self.facts:
            raise ValueError(f"signature {self.id!r} has neither patterns nor facts.")
        for source in self.sources:
            if source not in SOURCES:
                raise ValueError(f"source {source!r} is none of {', '.join(SOURCES)}.{spec.nearest(source, SOURCES)}")
        for fact in self.facts:
            if sum(bound is not None for bound in (fact.below, fact.above, fact.equals)) == 0:
                raise ValueError(f"fact {fact.fact!r} has no bound.")
        self.compiled = [_compiled(self.id, text) for text in self.patterns]
        self.needed = [_compiled(self.id, text) for text in self.context]


def _compiled(name: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"pattern {text!r} of {name!r}: {error}") from None


@cache
def load(folder: Path = FOLDER) -> tuple[Signature, ...]:
    """All signatures, in file and reading order. Raises SpecError on a broken or doubled entry."""
    signatures: list[Signature] = []
    seen: set[str] = set()
    for path in sorted(folder.glob("*.yml")):
        for signature in load_file(path):
            if signature.id in seen:
                raise SpecError(f"signature {signature.id!r} is there twice.", where=path.name)
            seen.add(signature.id)
            signatures.append(signature)
    return tuple(signatures)


def load_file(path: Path) -> list[Signature]:
    """The signatures of one file. Raises SpecError."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries = yaml.load(path.read_text("utf-8"), Loader=loader)  # noqa: S506 (a safe loader, the C one where built)
    return [spec.load(Signature, entry, f"{path.name}[{index}]") for index, entry in enumerate(entries)]

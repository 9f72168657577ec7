"""The words of a port plan: actions, options, the link and one stage's decision."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from eyrie.core import registry
from eyrie.port.rules import Difference

COPY, RECOMPUTE, REUSE, LEAVE, BLOCKED = "copy", "recompute", "reuse", "leave", "blocked"

#: measured on the machine: a figure of another host says nothing of this one
HOST_BOUND = ("benchmark", "report")
#: either way gives the same thing, so the cheaper way is taken
REPRODUCIBLE = ("target", "hidden_states")
#: unfinished work of these goes on elsewhere; of the others it is quicker to begin again
RESUMABLE = ("responses", "hidden_states", "draft")
#: what it costs to lose: refused hand-overs of these want the operator's consent
EXPENSIVE = ("responses", "draft")
RESERVE = 0.02  # of the destination's free bytes, kept free


class Content(StrEnum):
    """What the destination will hold of a stage, seen from the source's outputs."""

    SAME = "same"  # the same bytes
    EQUIVALENT = "equivalent"  # equal up to rounding
    OTHER = "other"  # its own, or none


@dataclass
class Options:
    """What the operator may choose. stages: action by stage ('copy', 'recompute'), in place of the plan's own choice.

    accept: stages whose hand-over may be refused (they are made again). replace: stages whose unfinished work on
    the destination may be put aside. bandwidth_mb_s: upper bound, 0 = none.
    """

    stages: dict[str, str] = field(default_factory=dict)
    accept: list[str] = field(default_factory=list)
    replace: list[str] = field(default_factory=list)
    bandwidth_mb_s: float = 0.0

    def __post_init__(self) -> None:
        for name in [*self.stages, *self.accept, *self.replace]:
            if name not in registry.NAMES:
                raise ValueError(f"there is no stage {name!r}.")
        for name, action in self.stages.items():
            if action not in (COPY, RECOMPUTE):
                raise ValueError(f"stages.{name}: {action!r} is neither 'copy' nor 'recompute'.")


@dataclass
class Link:
    """The way between the hosts. mb_s: 10^6 bytes per second, 'measured' or 'assumed'; via: direct or controller."""

    mb_s: float = 10.0
    basis: str = "assumed"
    via: str = "direct"
    why: str = ""


@dataclass
class Decision:
    """What happens with one stage. seconds: of this action; content: what the destination will then hold."""

    stage: str
    action: str
    reason: str
    bytes: int = 0
    files: int = 0
    seconds: float = 0.0
    unfinished: bool = False
    refused: bool = False
    differences: list[Difference] = field(default_factory=list)
    content: Content = Content.OTHER
    source: str = ""
    destination: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "action": self.action,
            "reason": self.reason,
            "bytes": self.bytes,
            "files": self.files,
            "seconds": round(self.seconds, 1),
            "unfinished": self.unfinished,
            "refused": self.refused,
            "differences": [item.as_dict() for item in self.differences],
            "source": self.source,
            "destination": self.destination,
        }

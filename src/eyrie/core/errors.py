"""Errors that say what, where, why and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)  # exceptions stay hashable
class EyrieError(Exception):
    """A failure that an operator can act on.

    what: one sentence naming what failed.
    where: file:line, dataset, row, host, unit or setting; empty when `what` names it.
    why: the cause, as far as it is known.
    todo: the next step for the operator.
    code: a stable, greppable identifier (kebab case).
    """

    what: str = ""
    where: str = ""
    why: str = ""
    todo: str = ""
    code: str = "error"

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.why:
            text += f" Why: {self.why}"
        if self.todo:
            text += f" Do: {self.todo}"
        return text

    def as_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "what": self.what,
            "where": self.where,
            "why": self.why,
            "todo": self.todo,
        }


class SpecError(EyrieError):
    """A setting is unknown, missing or of the wrong type."""


class GateError(EyrieError):
    """A check that stands before costly work refused it."""


class Interrupted(EyrieError):
    """The stage was asked to stop; what it finished is kept and the next run resumes."""

"""What differs between two serving engines, and nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eyrie.core.target import Target
    from eyrie.serve.settings import ServerSettings

#: methods of speculation by profile ('' = none)
METHODS = {"baseline": "", "extract": "extract_hidden_states", "eagle3": "eagle3"}


@dataclass(frozen=True)
class Request:
    """What a profile is asked to be: the pieces from which an engine's arguments are made."""

    profile: str
    settings: ServerSettings
    target: Target
    model: Path
    storage: Path
    draft: Path | None
    num_speculative_tokens: int
    device: str


@dataclass(frozen=True)
class InForce:
    """What a running engine says of itself. method '' = no speculation; None = it did not say."""

    method: str | None
    draft: str = ""
    num_speculative_tokens: int | None = None
    source: str = ""


class Engine(ABC):
    name: str
    #: readiness probe
    health: str = "/health"

    @abstractmethod
    def command(self) -> list[str]:
        """The words that start the engine, before its arguments."""

    @abstractmethod
    def positional(self, request: Request) -> list[str]:
        """Words between the command and the named arguments."""

    @abstractmethod
    def arguments(self, request: Request) -> dict[str, Any]:
        """Arguments that follow from target and profile, as data; the settings' own are laid over them."""

    def flag_words(self, args: dict[str, Any]) -> dict[str, Any]:
        """The arguments as this engine's command line can say them."""
        return args

    @abstractmethod
    def method(self, profile: str, args: dict[str, Any]) -> str:
        """The method of speculation that these arguments ask for; '' for none."""

    @abstractmethod
    def in_force(self, base_url: str, log: list[str]) -> InForce:
        """The speculation that is really in force, from the engine itself; `log` is its log since its start."""

    @abstractmethod
    def loading(self, log: list[str]) -> str:
        """Where a start stands, from the log: 'loading shard 34/64'; '' when it says nothing known."""

    @abstractmethod
    def acceptance(self, base_url: str, before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
        """Acceptance between two scrapes: {drafts, draft_tokens, accepted, length, per_position}."""

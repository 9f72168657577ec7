"""The stage contract: a stage is a resource that is up to date or knows why not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyrie.core import estimate, spec
from eyrie.core.accounting import Account
from eyrie.core.errors import Interrupted
from eyrie.core.fingerprint import short, tool_versions
from eyrie.core.progress import Progress

if TYPE_CHECKING:
    from eyrie.core.pipeline import Context


@dataclass
class Fault:
    """One thing `verify` found wrong: where (path, row), what, and what to do."""

    where: str
    what: str
    todo: str = ""
    code: str = "fault"


@dataclass
class Outcome:
    """What a stage's run leaves.

    account: the books of this run of the stage (over the whole input, not only the resumed part).
    outputs: files or folders, relative to the stage's folder, whose presence means 'still there'.
    figures: stage-specific results that the report shows (JSON).
    bytes: size of the outputs.
    """

    account: Account
    outputs: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    bytes: int = 0


class Renamed(Exception):
    """Raised by a stage's run: what its fingerprint is made of has changed meanwhile, so its outputs are another's.

    No error: the runner begins again under the fingerprint that the spec has now; what was finished so far is not lost.
    """


class Work:
    """What a running stage is given: progress to report, and a stop flag to look at between batches."""

    def __init__(self, progress: Progress):
        self.progress = progress
        self.stop_requested = False

    def check_stop(self) -> None:
        """Raise Interrupted once SIGTERM or SIGINT came; call it between batches."""
        if self.stop_requested:
            raise Interrupted("asked to stop", code="interrupted", todo="Run again: it resumes.")


class Stage(ABC):
    """One stage. Subclasses live in src/eyrie/<name>/stage.py as `STAGE = TheStage()`.

    plan-side methods (identity, outputs, forecast, gates) are read-only, import nothing heavy and return in
    milliseconds; `run` and `verify` may import what they need, inside the function.
    """

    name: str
    inputs: tuple[str, ...] = ()
    settings_type: type[Any]
    #: distributions whose version decides the output's bytes
    tools: tuple[str, ...] = ()
    #: the server profile that the runner proves to be serving before `run` ('' = none, or the stage switches itself)
    server: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """The inputs whose files this stage opens when it runs (an input may be there for its fingerprint only)."""
        return self.inputs

    def identity(self, ctx: Context) -> dict[str, Any]:
        """What can change the output, besides the input stages. Extend it with content hashes."""
        return {"settings": spec.identity(ctx.settings), "tools": tool_versions(self.tools)}

    def forecast(self, ctx: Context) -> dict[str, Any]:
        """{'bytes', 'seconds', 'basis'}; override to use counted inputs and measured rates."""
        return estimate.estimate(self.name, ctx.pipeline.raw)

    def gates(self, ctx: Context) -> list[dict[str, Any]]:
        """Cheap checks shown by the plan and enforced before the run: [{name, ok, message}]."""
        return []

    def again(self, ctx: Context) -> list[dict[str, Any]]:
        """What a finished run had to leave out and the next run tries again, as differences; read-only.

        Its outputs are valid all the same: later stages use them, and are stale only if the run raises Renamed.
        """
        return []

    def folder(self, ctx: Context) -> Path:
        """Where this fingerprint's outputs live."""
        return ctx.base / short(ctx.fingerprint)

    def carry(self, ctx: Context) -> list[Path]:
        """What another host needs to go on from here: files and folders below ctx.out or ctx.base.

        Override it when a store beside the output folder belongs to the output, or parts of the folder do not.
        """
        return [ctx.out]

    def adopt(self, ctx: Context) -> None:
        """After another host's outputs were put in place: mend what names that host's folders."""
        return None

    def wants_server(self, ctx: Context) -> bool:
        """Whether this run needs `server` at all (asked by the runner only); override when all may be there already."""
        return True

    #: names (patterns, below ctx.base) of store files that `merge` takes in where the name is taken
    merged: tuple[str, ...] = ()

    def merge(self, ctx: Context, arrived: Path, present: Path) -> None:
        """Take a carried store file in, whose name a file of this host's own store has."""
        raise NotImplementedError(f"{self.name} declares no store files that can be merged")

    @abstractmethod
    def run(self, ctx: Context, work: Work) -> Outcome:
        """Do the work into ctx.out, resuming what is there. Raise EyrieError on failure."""

    def verify(self, ctx: Context) -> list[Fault]:
        """Re-read the outputs (checksums, counts, shapes); [] when all is well."""
        record = ctx.state.read(ctx.fingerprint)
        return [
            Fault(str(ctx.out / name), "output is missing", "Run the stage again.", "output-missing")
            for name in record.get("outputs", ["."])
            if not (ctx.out / name).exists()
        ]


def tree_bytes(path: Path) -> int:
    """Bytes of all files below a folder (a stage's own, of modest count)."""
    return sum(item.stat().st_size for item in path.rglob("*") if item.is_file())

"""Sources that a mix went without (`on_source_failure: continue`), and those that came in at a later try.

<run>/dataset/without.json  {key: {failed: {source: code of its error}, came_in: [source, ...]}}

The key stands for the stage's identity without this. A mix that was made is a promise to the later stages: under its
fingerprint nothing else is ever made. So a source that comes in later is part of the identity (`came_in`), and one
that was in the mix must not be left out of it when it is made again. Standard library only: the plan reads this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyrie.core import atomic
from eyrie.core.fingerprint import fingerprint

if TYPE_CHECKING:
    from eyrie.core.pipeline import Context

NAME = "without.json"
KEY = "came_in"
#: verdicts on what a source holds: its bytes are locked or in the fingerprint, another look would find the same
SETTLED = frozenset({"bad-share", "source-zero-kept", "file-torn", "field-missing", "lfs-pointer"})


@dataclass
class Mix:
    """What is known of the mixes of one identity. made: whether there was one."""

    failed: dict[str, str] = field(default_factory=dict)
    came_in: list[str] = field(default_factory=list)
    made: bool = False

    @property
    def open(self) -> list[str]:
        """The failed sources that another try may bring in."""
        return [name for name, code in sorted(self.failed.items()) if code not in SETTLED]


def _path(ctx: Context) -> Path:
    return ctx.base / NAME


def _key(identity: dict[str, Any]) -> str:
    return fingerprint({name: value for name, value in identity.items() if name != KEY})


def of(ctx: Context, identity: dict[str, Any]) -> Mix:
    """What is known of the mix of an identity (with or without its `came_in`)."""
    if ctx.settings.on_source_failure != "continue":
        return Mix()
    entry = (atomic.read_json(_path(ctx), {}) or {}).get(_key(identity))
    return Mix(dict(entry["failed"]), list(entry[KEY]), made=True) if entry else Mix()


def write(ctx: Context, mix: Mix) -> None:
    """Keep what is known of the mix of the stage's identity."""
    known = atomic.read_json(_path(ctx), {}) or {}
    known[_key(ctx.identity)] = {"failed": mix.failed, KEY: mix.came_in}
    atomic.write_json(_path(ctx), known)


def again(ctx: Context) -> list[dict[str, Any]]:
    """The difference that makes the next run try failed sources again; [] where there is nothing to try."""
    names = of(ctx, ctx.identity).open
    if not names:
        return []
    count = "1 source" if len(names) == 1 else f"{len(names)} sources"
    return [
        {
            "name": "sources",
            "current": f"{count} failed last time: {', '.join(names)}",
            "desired": "will be tried again",
        }
    ]

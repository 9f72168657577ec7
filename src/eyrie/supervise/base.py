"""What a supervisor can do for us, whichever it is."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from eyrie.core.errors import EyrieError

RUNNING, STOPPED, FAILED, ABSENT = "running", "stopped", "failed", "absent"
#: between states: a start, stop or restart is under way
CHANGING = "changing"


@dataclass(frozen=True)
class Program:
    """One supervised program.

    environment: additions to the supervisor's own environment.
    stop_timeout_s: seconds between SIGTERM to the main process and SIGKILL to all of its group.
    restart: start it again when it dies by itself (servers), or not (jobs).
    installed: its systemd unit was put there by the role; it is only started, never composed here.
    """

    name: str
    argv: tuple[str, ...]
    log: Path
    directory: Path
    environment: dict[str, str] = field(default_factory=dict)
    stop_timeout_s: int = 120
    restart: bool = False
    installed: bool = False


@dataclass(frozen=True)
class UnitStatus:
    """state: running | changing | stopped | failed | absent; pid: main process, 0 when none."""

    state: str
    pid: int = 0
    exit_status: int = 0
    restarts: int = 0
    detail: str = ""

    @property
    def active(self) -> bool:
        return self.state in (RUNNING, CHANGING)


class Supervisor(ABC):
    """start, stop, status, pids, log tail."""

    kind: str

    @abstractmethod
    def start(self, program: Program) -> None:
        """Start a program that does not run; returns as soon as its process exists. Raises EyrieError."""

    @abstractmethod
    def stop(self, name: str) -> None:
        """Stop it and all of its processes, and return when they are gone; no error when it does not run."""

    @abstractmethod
    def status(self, name: str) -> UnitStatus:
        """What the supervisor knows now; 'absent' when it knows nothing of it (or does not run itself)."""

    @abstractmethod
    def pids(self, name: str) -> set[int]:
        """All live processes of the unit."""

    @abstractmethod
    def log_hint(self, name: str) -> str:
        """The command that shows the unit's log to a person."""

    def unit_files(self, name: str) -> list[Path]:
        """Files outside of our folders that decide how the unit runs; [] where there are none."""
        return []

    def wait_stopped(self, name: str, timeout_s: float) -> None:
        """Return once the unit is not active any more. Raises EyrieError at the limit."""
        deadline = time.monotonic() + timeout_s
        while self.status(name).active:
            if time.monotonic() > deadline:
                raise EyrieError(
                    f"{name} did not stop within {timeout_s:.0f} s.",
                    code="stop-timeout",
                    todo=f"Look at it: {self.log_hint(name)}.",
                )
            time.sleep(0.1)


def tail(log: Path, lines: int = 15, since: int = 0) -> list[str]:
    """The last lines of a log file, of what was written after byte `since`; [] when there is none."""
    try:
        with open(log, "rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(since if since <= size else 0, size - 65536))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.replace("\r", "\n").splitlines() if line.strip()][-lines:]

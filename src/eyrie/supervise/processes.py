"""Processes as /proc shows them: who belongs to a unit, who is left over, who owns a port."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """pid, parent, process group, start time (clock ticks since boot; with the pid it names a process for ever)."""

    pid: int
    parent: int
    group: int
    start: int
    state: str
    name: str


def read(pid: int) -> Process | None:
    """A live process, None when it is gone (a zombie counts as gone: it holds no memory and no port)."""
    try:
        text = (PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    if rest[0] in "ZX":
        return None
    return Process(pid, int(rest[1]), int(rest[2]), int(rest[19]), rest[0], name)


def alive() -> list[Process]:
    found = (read(int(item.name)) for item in PROC.iterdir() if item.name.isdigit())
    return [process for process in found if process is not None]


def command(pid: int, limit: int = 120) -> str:
    """The command line for a message; the process name in brackets where it has none."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return "(gone)"
    text = " ".join(word.decode("utf-8", "replace") for word in words).strip()
    if not text:
        process = read(pid)
        return f"[{process.name}]" if process else "(gone)"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def has_mark(pid: int, mark: str) -> bool:
    """Whether `mark` (NAME=value) stands in the environment the process was started with."""
    try:
        with as_owner(pid):
            return mark.encode() in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


@contextmanager
def as_owner(pid: int) -> Iterator[None]:
    """Read a process' private files in /proc as its owner, in this thread only.

    In a container root lacks the capability to look into other accounts' processes, but may act as them.
    """
    if os.geteuid() != 0:
        yield
        return
    info = os.stat(PROC / str(pid))
    libc = ctypes.CDLL(None)
    libc.setfsgid(info.st_gid)
    libc.setfsuid(info.st_uid)
    try:
        yield
    finally:
        libc.setfsuid(0)
        libc.setfsgid(os.getegid())


def family(pid: int, known: Iterable[Process] | None = None) -> set[int]:
    """A process, its group (when it leads one) and all descendants."""
    processes = list(known) if known is not None else alive()
    found = {process.pid for process in processes if process.pid == pid or process.group == pid}
    grown = True
    while grown:
        more = {process.pid for process in processes if process.parent in found} - found
        grown = bool(more)
        found |= more
    return found


def wait_gone(pids: Iterable[int], timeout_s: float, clock: Callable[[], float] = time.monotonic) -> set[int]:
    """Wait until none of these processes lives; returns those that are left at the limit."""
    deadline = clock() + timeout_s
    left = {pid for pid in pids if read(pid)}
    while left and clock() < deadline:
        time.sleep(0.05)
        left = {pid for pid in left if read(pid)}
    return left


def signal_group(group: int, number: int) -> None:
    """Signal a process group; nothing when it is gone."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def port_owners(port: int) -> set[int] | None:
    """Processes that listen on a TCP port; None when someone does but we may not see who."""
    inodes = _listening(port)
    if not inodes:
        return set()
    wanted = {f"socket:[{inode}]" for inode in inodes}
    owners = {process.pid for process in alive() if _holds(process.pid, wanted)}
    return owners or None


def _listening(port: int) -> set[str]:
    """Socket inodes in state LISTEN (0A) on a local port, IPv4 and IPv6."""
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == "0A" and int(words[1].rsplit(":", 1)[1], 16) == port:
                found.add(words[9])
    return found


def _holds(pid: int, wanted: set[str]) -> bool:
    try:
        with as_owner(pid):
            return any(os.readlink(link) in wanted for link in (PROC / str(pid) / "fd").iterdir())
    except OSError:
        return False

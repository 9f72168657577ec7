"""What everybody on a machine can see of a run while it goes: command lines and listening sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from house import House

PROC = Path("/proc")
LISTEN = "0A"
#: 127.0.0.0/8, ::1, and 127.0.0.0/8 as IPv6 writes it; the kernel shows words of four bytes, the last byte first
LOOPBACK = ("7F", "00000000000000000000000001000000", "0000000000000000FFFF0000")


class Watcher(threading.Thread):
    """Looks at all processes of a house, again and again, until it is stopped.

    lines: command lines. open: (command line, address as the kernel shows it) of sockets that listen beyond loopback.
    """

    def __init__(self, house: House):
        super().__init__(daemon=True)
        self.house, self.ended = house, threading.Event()
        self.lines: set[bytes] = set()
        self.open: set[tuple[str, str]] = set()
        self.listened = 0

    def run(self) -> None:
        while not self.ended.wait(0.05):
            sockets = dict(listening())
            for pid in self.house.pids():
                line = read(PROC / str(pid) / "cmdline")
                self.lines.add(line)
                for inode in held(pid) & set(sockets):
                    self.listened += 1
                    if not loopback(sockets[inode]):
                        self.open.add((line.replace(b"\0", b" ").decode("utf-8", "replace")[:200], sockets[inode]))

    def stop(self) -> None:
        self.ended.set()
        self.join()


def listening() -> Iterator[tuple[str, str]]:
    """(inode, local address) of every listening TCP socket."""
    for table in ("tcp", "tcp6"):
        for line in read(PROC / "net" / table).decode().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTEN:
                yield words[9], words[1].rsplit(":", 1)[0]


def held(pid: int) -> set[str]:
    """Inodes of a process' sockets."""
    found = set()
    try:
        for link in (PROC / str(pid) / "fd").iterdir():
            name = str(link.readlink())
            if name.startswith("socket:["):
                found.add(name[8:-1])
    except OSError:
        return found
    return found


def loopback(address: str) -> bool:
    four, one, mapped = LOOPBACK
    if len(address) == 8:
        return address.endswith(four)
    return address == one or (address.startswith(mapped) and address.endswith(four))


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""

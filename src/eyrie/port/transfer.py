"""Moving a pack's files with rsync: resumable, bounded, patient with a link that is cut.

A file that the link cut goes on where it stopped; what has arrived is not sent again. Every file is proved by
SHA-256 on arrival by other code (manifest.check): rsync's own checks only decide what to send.
"""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eyrie.core.errors import EyrieError
from eyrie.port.manifest import Entry
from eyrie.port.survey import PARTIAL

log = logging.getLogger(__name__)

#: rsync's exit codes for a link that failed (10 socket, 12 stream, 30 and 35 time, 255 ssh), not for a bad request
LINK_CODES = frozenset({10, 12, 30, 35, 255})
DISK_CODE = 11
_TAIL = 6


@dataclass(frozen=True)
class Limits:
    """bandwidth_kb_s: 0 = none (1 kB = 1024 bytes, as rsync counts). timeout_s: silence on the link that ends a try.

    tries: attempts in a row that bring nothing; one that brings something starts the count again.
    """

    bandwidth_kb_s: int = 0
    timeout_s: int = 30
    tries: int = 8
    pause_s: float = 2.0
    longest_pause_s: float = 60.0


@dataclass(frozen=True)
class Way:
    """rsh: the remote shell's words ([] = both ends are local); host: what rsync puts before the colon."""

    rsh: tuple[str, ...] = ()
    host: str = ""

    def place(self, path: str) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host  # an IPv6 address
        return f"{host}:{path}" if host else path


def rsync_argv(source: str, destination: str, listing: Path, way: Way, limits: Limits) -> list[str]:
    """One rsync call. Listed files only, modes and times kept, links as links, no owner."""
    argv = ["rsync", "--recursive", "--links", "--perms", "--times", "--outbuf=L"]
    argv += [f"--partial-dir={PARTIAL}", "--no-human-readable", "--info=progress2", f"--timeout={limits.timeout_s}"]
    argv += ["--from0", f"--files-from={listing}"]
    if limits.bandwidth_kb_s:
        argv.append(f"--bwlimit={limits.bandwidth_kb_s}")
    if way.rsh:
        argv += ["--rsh", shlex.join(way.rsh)]
    return [*argv, source.rstrip("/") + "/", destination.rstrip("/") + "/"]


@contextmanager
def listing(entries: Sequence[Entry]) -> Iterator[Path]:
    """A file that names a tree's files and links, NUL between them."""
    with tempfile.NamedTemporaryFile("wb", prefix="eyrie-port-", suffix=".list") as stream:
        for entry in entries:
            if not entry.same:
                stream.write(entry.path.encode("utf-8", "surrogateescape") + b"\0")
        stream.flush()
        yield Path(stream.name)


def send(
    entries: Sequence[Entry],
    source: str,
    destination: str,
    way: Way,
    limits: Limits,
    moved: Callable[[int], None] = lambda size: None,
    check_stop: Callable[[], None] = lambda: None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Bring one tree over, over as many attempts as it takes; returns how many there were.

    moved(n): n more bytes crossed. Raises EyrieError when rsync refuses, the disk is full or the link stays dead.
    """
    attempts = fruitless = 0
    with listing(entries) as path:
        while True:
            check_stop()
            attempts += 1
            code, crossed, said = _attempt(rsync_argv(source, destination, path, way, limits), moved, check_stop)
            if code == 0:
                return attempts
            if code not in LINK_CODES:
                raise _refused(code, said, destination)
            fruitless = 0 if crossed else fruitless + 1
            if fruitless >= limits.tries:
                raise EyrieError(
                    f"the link stays dead: {fruitless} attempts in a row brought nothing.",
                    where=way.host or destination,
                    code="link-dead",
                    why=said,
                    todo="Run again when it is back: what has arrived is kept and goes on where it stopped.",
                )
            pause = min(limits.longest_pause_s, limits.pause_s * 2 ** max(0, fruitless - 1))
            log.warning("the link was cut (rsync %s: %s); attempt %s in %.0f s", code, said, attempts + 1, pause)
            sleep(pause)


def _attempt(argv: list[str], moved: Callable[[int], None], check_stop: Callable[[], None]) -> tuple[int, int, str]:
    """(exit code, bytes that crossed, last words) of one rsync."""
    crossed = 0
    said: list[str] = []
    environment = {**os.environ, "LC_ALL": "C"}
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            for line in _lines(process.stdout.read1):  # type: ignore[attr-defined]
                seen = _progress(line)
                if seen is None:
                    said = [*said, line.strip()][-_TAIL:]
                elif seen > crossed:
                    moved(seen - crossed)
                    crossed = seen
                check_stop()
        except BaseException:
            process.terminate()  # it keeps what it has of the file under way
            raise
    return process.returncode, crossed, " | ".join(text for text in said if text)


def _lines(read: Callable[[int], bytes]) -> Iterator[str]:
    """Lines of a stream; a carriage return ends one too (progress is redrawn with it)."""
    rest = b""
    while block := read(65536):
        *whole, rest = (rest + block).replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


def _progress(line: str) -> int | None:
    """Bytes of a progress2 line ('  1234567  12%  1.20MB/s  0:00:03'), None for any other line."""
    words = line.split()
    if len(words) >= 2 and words[0].isdecimal() and words[1].endswith("%"):
        return int(words[0])
    return None if line.strip() else 0


def _refused(code: int, said: str, destination: str) -> EyrieError:
    if code == DISK_CODE or "No space left" in said:
        return EyrieError(
            "the destination's disk refused a file.",
            where=destination,
            code="transfer-disk",
            why=said,
            todo="Free space there and run again: what has arrived is kept.",
        )
    return EyrieError(
        f"rsync ended with {code}.", where=destination, code="transfer-refused", why=said, todo="See its last words."
    )

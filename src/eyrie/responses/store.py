"""The answers' store: append-only shards of checksummed records, keyed by content.

One record is one line of a shard `answers-<n>.log`:

    <crc32, 8 hex> <key, 32 hex> <JSON payload>\n

The CRC covers everything after it up to the newline. Shards are only ever appended to. A torn last record (kill -9,
power loss, full disk) is cut when the store is opened for writing; a damaged record elsewhere is skipped and counted,
so its answer is generated again. The newest record of a key wins.

Memory: the index is four flat numpy arrays, 28 bytes a record, so a million answers cost 28 MB however long they are.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from eyrie.core.atomic import fsync_dir
from eyrie.core.errors import EyrieError
from eyrie.core.lock import Held, Lock

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger(__name__)

KEY_CHARS = 32
_CRC_CHARS = 8
_HEAD = _CRC_CHARS + 1 + KEY_CHARS + 1  # "<crc> <key> "
SHARD_BYTES = 256 << 20
READ_BYTES = 4 << 20


def frame(key: str, payload: bytes) -> bytes:
    """One record as it stands in a shard. payload: JSON without a newline."""
    body = key.encode("ascii") + b" " + payload
    return b"%08x %s\n" % (zlib.crc32(body), body)


def unframe(line: bytes) -> tuple[str, bytes] | None:
    """(key, payload) of a line without its newline; None when it is damaged."""
    if len(line) < _HEAD or line[_CRC_CHARS] != 32 or line[_HEAD - 1] != 32:
        return None
    body = line[_CRC_CHARS + 1 :]
    try:
        if int(line[:_CRC_CHARS], 16) != zlib.crc32(body):
            return None
        return body[:KEY_CHARS].decode("ascii"), body[KEY_CHARS + 1 :]
    except ValueError:
        return None


@dataclass
class Index:
    """Where each key's newest record stands: sorted key halves (uint64), shard numbers and offsets, all of length n."""

    high: np.ndarray[Any, Any]
    low: np.ndarray[Any, Any]
    shards: np.ndarray[Any, Any]
    offsets: np.ndarray[Any, Any]
    damaged: int = 0

    def __len__(self) -> int:
        return len(self.high)

    def find(self, key: str) -> tuple[int, int] | None:
        """(shard, offset) of a key; None when the store does not hold it."""
        import numpy as np

        high, low = np.uint64(int(key[:16], 16)), int(key[16:], 16)
        place = int(np.searchsorted(self.high, high))
        while place < len(self.high) and self.high[place] == high:
            if int(self.low[place]) == low:
                return int(self.shards[place]), int(self.offsets[place])
            place += 1
        return None


class Store:
    """One writer's view of a store. Open it with `with Store(path) as store:`.

    Raises EyrieError 'store-held' when another process writes to it, 'disk-full' when a record cannot be written
    (what was written before stays whole).
    """

    def __init__(self, path: Path, shard_bytes: int = SHARD_BYTES):
        self.path = path
        self.shard_bytes = shard_bytes
        self.cut_bytes = 0  # torn bytes that opening removed
        self.appended = 0
        self._lock = Lock(path / "lock")
        self._guard = threading.Lock()
        self._pending: list[bytes] = []
        self._fd = -1
        self._shard = 0
        self._size = 0
        self._readers: dict[int, int] = {}

    def __enter__(self) -> Store:
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except Held as held:
            raise EyrieError(
                "the store of answers is being written by another process.",
                where=str(self.path),
                why=f"pid {held.owner.get('pid')} holds it.",
                todo="Wait for it, or stop it with `eyrie stop responses`.",
                code="store-held",
            ) from None
        try:
            self._open_last()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.flush()
            self.sync()
        except EyrieError:
            if kind is None:
                raise
        finally:
            for fd in [self._fd, *self._readers.values()]:
                if fd >= 0:
                    os.close(fd)
            self._fd, self._readers = -1, {}
            self._lock.release()

    def _open_last(self) -> None:
        numbers = shard_numbers(self.path)
        self._open(numbers[-1] if numbers else 1)
        good = _last_newline(self._fd, self._size)
        if good != self._size:
            self.cut_bytes = self._size - good
            log.warning("%s: cut %d bytes of a torn last record", shard_path(self.path, self._shard), self.cut_bytes)
            os.ftruncate(self._fd, good)
            os.fsync(self._fd)
            self._size = good

    def _open(self, number: int) -> None:
        self._shard = number
        self._fd = os.open(shard_path(self.path, number), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._fd).st_size
        fsync_dir(self.path)

    def append(self, key: str, payload: bytes) -> None:
        """Queue one record; `flush` hands it to the kernel."""
        self._pending.append(frame(key, payload))
        self.appended += 1

    def flush(self) -> int:
        """Write what is queued; a process that dies after this loses none of it. Returns the bytes written."""
        if not self._pending:
            return 0
        data = b"".join(self._pending)
        try:
            _write_all(self._fd, data)
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            raise self._unwritable(error) from error
        self._pending.clear()
        self._size += len(data)
        if self._size >= self.shard_bytes:
            with self._guard:
                os.fsync(self._fd)
                os.close(self._fd)
                self._open(self._shard + 1)
        return len(data)

    def sync(self) -> None:
        """Make what was flushed durable against power loss; safe to call from another thread."""
        with self._guard:
            if self._fd >= 0:
                try:
                    os.fdatasync(self._fd)
                except OSError as error:
                    raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> EyrieError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return EyrieError(
            "the disk is full: answers cannot be stored." if full else f"answers cannot be stored: {error}",
            where=str(self.path),
            why=f"{len(self._pending)} finished answers were not written and will be asked for again.",
            todo="Free space and run again: it resumes." if full else "Check the disk and run again: it resumes.",
            code="disk-full" if full else "store-unwritable",
        )

    def index(self) -> Index:
        """Read all shards and index them (see `read_index`); queued records are flushed first."""
        self.flush()
        return read_index(self.path)

    def read(self, place: tuple[int, int]) -> bytes:
        """The payload of the record at (shard, offset). Raises EyrieError 'store-damaged'."""
        shard, offset = place
        fd = self._readers.get(shard)
        if fd is None:
            fd = self._readers[shard] = os.open(shard_path(self.path, shard), os.O_RDONLY | os.O_CLOEXEC)
        record = unframe(_read_line(fd, offset))
        if record is None:
            raise EyrieError(
                "a stored answer is damaged.",
                where=f"{shard_path(self.path, shard)} at byte {offset}",
                todo="Run again: its answer is generated again.",
                code="store-damaged",
            )
        return record[1]


def shard_path(path: Path, number: int) -> Path:
    return path / f"answers-{number:06d}.log"


def shard_numbers(path: Path) -> list[int]:
    return sorted(int(item.name[8:-4]) for item in path.glob("answers-*.log") if item.name[8:-4].isdecimal())


def scan(path: Path, number: int) -> Iterator[tuple[int, tuple[str, bytes] | None]]:
    """(offset, record or None when damaged) of every complete line of a shard, in order."""
    with open(shard_path(path, number), "rb") as stream:
        offset, rest = 0, b""
        while block := stream.read(READ_BYTES):
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            for line in lines:
                yield offset, unframe(line)
                offset += len(line) + 1
        if rest:
            yield offset, None


def read_index(path: Path) -> Index:
    """Index all shards of a store, read-only; damaged records are counted and left out."""
    import numpy as np

    high, low, shards, offsets = array("Q"), array("Q"), array("I"), array("Q")
    damaged = 0
    for number in shard_numbers(path):
        for offset, record in scan(path, number):
            if record is None:
                damaged += 1
                log.warning("%s: damaged record at byte %d is ignored", shard_path(path, number), offset)
                continue
            key = record[0]
            high.append(int(key[:16], 16))
            low.append(int(key[16:], 16))
            shards.append(number)
            offsets.append(offset)
    columns = [np.array(column) for column in (high, low, shards, offsets)]
    order = np.lexsort((columns[3], columns[2], columns[1], columns[0]))
    columns = [column[order] for column in columns]
    if len(order):
        newest = np.ones(len(order), dtype=bool)
        newest[:-1] = (columns[0][1:] != columns[0][:-1]) | (columns[1][1:] != columns[1][:-1])
        columns = [column[newest] for column in columns]
    return Index(columns[0], columns[1], columns[2], columns[3], damaged)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _last_newline(fd: int, size: int) -> int:
    """Offset just after the last newline of a file of `size` bytes."""
    end = size
    while end > 0:
        start = max(0, end - READ_BYTES)
        place = os.pread(fd, end - start, start).rfind(b"\n")
        if place >= 0:
            return start + place + 1
        end = start
    return 0


def _read_line(fd: int, offset: int) -> bytes:
    """The line at an offset, without its newline."""
    parts = []
    while block := os.pread(fd, 64 << 10, offset):
        place = block.find(b"\n")
        if place >= 0:
            parts.append(block[:place])
            break
        parts.append(block)
        offset += len(block)
    return b"".join(parts)

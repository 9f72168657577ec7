"""A Parquet file that is there wholly or not at all, its row groups encoded beside each other and written in order."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.dataset import groups

ENCODERS = 2  # at most: as many keep up with the reading; each holds a piece of the file in memory
FLUSH = 64 << 20  # bytes after which the disk is set to work, so that the end has little to wait for


class Sink:
    """Tables are added, encoded by some threads, and written and hashed by one more; rows: written so far."""

    def __init__(self, path: Path, schema: Any, encoders: int = ENCODERS):
        self.path, self.rows, self.size = path, 0, 0
        self.temporary = path.with_name(f".{path.name}.tmp")
        self._schema = schema
        self._digest = hashlib.sha256()
        self._raw = open(self.temporary, "wb", buffering=0)  # noqa: SIM115 - closed by finish or abandon
        self._ahead = min(encoders, ENCODERS)
        self._encoders, self._hand = ThreadPoolExecutor(self._ahead), ThreadPoolExecutor(1)
        self._waiting: deque[Future[None]] = deque()
        self._groups: list[Any] = []
        self._unflushed = 0
        self._put(groups.MAGIC)

    def add(self, table: Callable[[], Any]) -> None:
        """Append rows, which an encoder asks for. Waits for earlier ones; raises what became of them."""
        piece = self._encoders.submit(lambda: groups.encode(table()))
        self._waiting.append(self._hand.submit(self._append, piece))
        self._await(self._ahead)

    def _append(self, coming: Future[groups.Piece]) -> None:
        piece = coming.result()
        self._groups += groups.move(piece, self.size, len(self._groups))
        for page in piece.pages:
            self._put(page)
        self.rows += piece.rows

    def _put(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._raw.write(left) :]
        self._digest.update(data)
        self.size += len(data)
        self._unflushed += len(data)
        if self._unflushed >= FLUSH:
            os.fdatasync(self._raw.fileno())
            self._unflushed = 0

    def _await(self, waiting: int) -> None:
        """Wait until no more pieces than this are on their way."""
        while len(self._waiting) > waiting:
            self._waiting.popleft().result()

    def finish(self) -> dict[str, Any]:
        """Close durably under the final name; {rows, bytes, sha256}."""
        self._await(0)
        self._encoders.shutdown()
        self._hand.shutdown()
        self._put(groups.footer(self._schema, self._groups, self.rows))
        os.fsync(self._raw.fileno())
        self._raw.close()
        os.replace(self.temporary, self.path)
        atomic.fsync_dir(self.path.parent)
        return {"rows": self.rows, "bytes": self.size, "sha256": self._digest.hexdigest()}

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._encoders.shutdown(cancel_futures=True)
        self._hand.shutdown(cancel_futures=True)
        self._raw.close()
        self.temporary.unlink(missing_ok=True)

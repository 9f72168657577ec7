"""The content store: states by key in sharded folders, and a manifest that is believed instead of the folders.

<base>/store/<ab>/<key>.safetensors   one sample's states
<base>/store/quarantine/<key>.<kind>  what verify found bad, kept for a look until it is captured anew
<base>/store/manifest.sqlite          key, tokens, bytes, dtype, layers, checksum, shape digest

A file gets its final name only after it was checked and fsynced, and a manifest row only after that. What lies in a
folder without a row is checked in full before it is adopted.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from eyrie.core import atomic

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Entry:
    """A manifest row. bytes: size of the file; checksum: XXH3-128 of it; digest: Shape.digest."""

    key: str
    tokens: int
    bytes: int
    dtype: str
    layers: str
    checksum: str
    digest: str


FIELDS = "key, tokens, bytes, dtype, layers, checksum, digest"


class Store:
    """States on disk, by content key. One writer (the stage's lock); readers any time."""

    def __init__(self, path: Path):
        self.path = path
        self._db: sqlite3.Connection | None = None

    # -- files ---------------------------------------------------------------------------------------------

    def file(self, key: str) -> Path:
        return self.path / key[:2] / f"{key}{SUFFIX}"

    def put(self, source: Path, key: str) -> Path:
        """Give a checked file its final name: fsync, mode 0644, rename (copied first from another file system)."""
        target = self.file(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(source, os.O_RDONLY)
        try:
            os.fchmod(fd, 0o644)  # the server writes 0600
            os.fsync(fd)
        finally:
            os.close(fd)
        try:
            os.replace(source, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._copy(source, target)
        return target

    def _copy(self, source: Path, target: Path) -> None:
        staged = target.with_suffix(".tmp")
        try:
            with open(source, "rb") as reader, open(staged, "wb") as writer:
                shutil.copyfileobj(reader, writer, 1 << 22)
                writer.flush()
                os.fsync(writer.fileno())
            os.replace(staged, target)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise
        source.unlink()

    def sweep(self) -> int:
        """Remove half-made files that a crash left; returns how many."""
        count = 0
        for staged in self.path.glob("??/*.tmp"):
            staged.unlink()
            count += 1
        return count

    def quarantine(self, key: str, kind: str) -> Path | None:
        """Move a bad file aside and forget its row; returns where it lies now."""
        source = self.file(key)
        self.forget([key])
        if not source.exists():
            return None
        target = self.path / "quarantine" / f"{key}.{kind}"
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)
        return target

    def drop(self, keys: Iterable[str]) -> int:
        """Delete states and their rows; returns the bytes freed. Rows go first: a row never lacks its file."""
        listed = list(keys)
        self.forget(listed)
        freed = 0
        for key in listed:
            path = self.file(key)
            try:
                freed += path.stat().st_size
                path.unlink()
            except FileNotFoundError:
                continue
        return freed

    # -- manifest ------------------------------------------------------------------------------------------

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.sqlite"

    @property
    def db(self) -> sqlite3.Connection:
        if self._db is None:
            self.path.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.manifest, timeout=30.0, check_same_thread=False)
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS samples (key TEXT PRIMARY KEY, tokens INTEGER NOT NULL,"
                " bytes INTEGER NOT NULL, dtype TEXT NOT NULL, layers TEXT NOT NULL, checksum TEXT NOT NULL,"
                " digest TEXT NOT NULL, captured REAL NOT NULL) WITHOUT ROWID"
            )
            self._db.commit()
        return self._db

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def record(self, entries: Iterable[Entry]) -> None:
        """Enter captured files, durably; their folders are fsynced first, so that a row never precedes its file."""
        rows = list(entries)
        for folder in {self.file(row.key).parent for row in rows}:
            atomic.fsync_dir(folder)
        with self.db:
            self.db.executemany(
                f"INSERT OR REPLACE INTO samples ({FIELDS}, captured) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                [
                    (row.key, row.tokens, row.bytes, row.dtype, row.layers, row.checksum, row.digest, time.time())
                    for row in rows
                ],
            )

    def forget(self, keys: Iterable[str]) -> None:
        with self.db:
            self.db.executemany("DELETE FROM samples WHERE key = ?", [(key,) for key in keys])

    def entries(self) -> Iterator[Entry]:
        for row in self.db.execute(f"SELECT {FIELDS} FROM samples ORDER BY key"):  # noqa: S608
            yield Entry(*row)

    def get(self, key: str) -> Entry | None:
        row = self.db.execute(f"SELECT {FIELDS} FROM samples WHERE key = ?", (key,)).fetchone()  # noqa: S608
        return Entry(*row) if row else None

    def totals(self) -> tuple[int, int]:
        """(samples, bytes) by the manifest."""
        row = self.db.execute("SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM samples").fetchone()
        return int(row[0]), int(row[1])


def totals_read_only(path: Path) -> tuple[int, int]:
    """(samples, bytes) of a store without creating or locking anything; (0, 0) when there is none."""
    manifest = path / "manifest.sqlite"
    if not manifest.exists():
        return 0, 0
    try:
        with sqlite3.connect(f"file:{manifest}?mode=ro", uri=True, timeout=1.0) as db:
            row = db.execute("SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM samples").fetchone()
    except sqlite3.Error:
        return 0, 0
    finally:
        if "db" in locals():
            db.close()
    return int(row[0]), int(row[1])

"""Parts: what a worker leaves of a stretch of a source. A part is there wholly or not at all.

<task>-<number>.arrow  rows {id, first, key, row, line, file, conversation, tools}, grouped by the top bits of the id
                       (one record batch a bucket), so that a later shuffle reads each part once, in stretches
<task>-<number>.json   its books, counts and checksum; written last, so that it vouches for the other file
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.dataset import columns
from eyrie.dataset.book import Book

BUCKETS = 64
BUCKET_SHIFT = 2  # of the id's first byte


class Rows:
    """Columns of the rows that a part will hold; all of one file."""

    def __init__(self, file: int):
        self.file = file
        self.ids: list[bytes] = []
        self.firsts: list[bytes] = []
        self.keys: list[bytes] = []
        self.ordinals: list[int] = []
        self.lines: list[int] = []
        self.conversations: list[bytes] = []
        self.tools: list[str | None] = []

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class Part:
    """A finished part. records, lines: how many its stretch held; resume: where the task goes on after it."""

    name: str
    rows: int
    records: int
    lines: int
    buckets: list[int]
    book: Book
    checksum: str
    size: int
    read: int = 0
    last: bool = True
    resume: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "book": self.book.as_dict()}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Part:
        return cls(**{**value, "book": Book.from_dict(value["book"])})


def schema() -> Any:
    import pyarrow as pa

    key = pa.binary(16)
    return pa.schema(
        [
            ("id", key),
            ("first", key),
            ("key", key),
            ("row", pa.int64()),
            ("line", pa.int64()),
            ("file", pa.int64()),
            ("conversation", pa.string()),
            ("tools", pa.string()),
        ]
    )


def write(folder: Path, name: str, rows: Rows, signatures: Any = None, **figures: Any) -> Part:
    """Write a part so that a resumed run can check it (its checksum), and vouch for it."""
    import pyarrow as pa
    import xxhash

    own = schema()
    arrays = [
        columns.keys(rows.ids),
        columns.keys(rows.firsts),
        columns.keys(rows.keys),
        columns.integers(rows.ordinals),
        columns.integers(rows.lines),
        columns.integers([rows.file] * len(rows)),
        columns.texts(rows.conversations),
        columns.optional_texts(rows.tools),
    ]
    if signatures is not None:
        width = signatures.shape[1] * 4
        own = own.append(pa.field("minhash", pa.binary(width)))
        arrays.append(_signed(signatures, width))
    counts, order = _grouped(rows.ids)
    table = pa.RecordBatch.from_arrays(arrays, schema=own).take(columns.integers(order))
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_file(buffer, own) as writer:
        start = 0
        for count in counts:
            if count:
                writer.write_batch(table.slice(start, count))
                start += count
    data = buffer.getvalue()
    path, temporary = folder / f"{name}.arrow", folder / f".{name}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    digest = xxhash.xxh3_128_hexdigest(data)
    part = Part(name, len(rows), buckets=counts, checksum=digest, size=len(data), **figures)
    atomic.write_json(folder / f"{name}.json", part.as_dict())
    return part


def _signed(signatures: Any, width: int) -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.binary(width), len(signatures), [None, pa.py_buffer(signatures.tobytes())])


def _grouped(ids: list[bytes]) -> tuple[list[int], Any]:
    """Rows per bucket, and the stable order that groups them."""
    import numpy as np

    firsts = np.frombuffer(b"".join(ids), dtype=np.uint8)[::16] >> BUCKET_SHIFT
    return np.bincount(firsts, minlength=BUCKETS).tolist(), np.argsort(firsts, kind="stable")


def intact(folder: Path, part: Part) -> bool:
    """Whether the part's rows are what was written."""
    import xxhash

    try:
        data = (folder / f"{part.name}.arrow").read_bytes()
    except OSError:
        return False
    return len(data) == part.size and xxhash.xxh3_128_hexdigest(data) == part.checksum


def read(folder: Path, name: str) -> Part | None:
    """A part by its name, if it is there and vouched for."""
    value = atomic.read_json(folder / f"{name}.json")
    try:
        return Part.from_dict(value) if isinstance(value, dict) else None
    except (KeyError, TypeError):
        return None

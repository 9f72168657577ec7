"""Parts: what a worker leaves of a stretch of a source. A part is there wholly or not at all.

<task>-<number>.rows  columns one behind another, rows grouped by the top bits of the id, so that a later shuffle reads
                      each part in stretches: id, first, key (16 bytes a row), row, line (int64), size (int64, bytes of
                      the conversation), tool_size, minhash where there are any, then the conversations, then the tools
<task>-<number>.json  its books, counts, places of the columns and checksum; written last, so that it vouches for the
                      other file
"""

from __future__ import annotations

import json
import os
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.dataset.book import Book
from eyrie.dataset.keys import KEY_BYTES, content_id, content_ids

BUCKETS = 64
BUCKET_SHIFT = 2  # of the id's first byte
KEY = "V16"
#: columns of all rows that the mix looks at, and what one value of each is
MIXED = {"id": KEY, "first": KEY, "key": KEY, "row": "<i8", "line": "<i8", "size": "<i8", "tool_size": "<i8"}


class Rows:
    """Columns of the rows that a part will hold; all of one file.

    firsts, keys: 16 bytes a row; keys are empty where the first turn alone makes two rows equal. tools: {index of the
    row: schemas}.
    """

    def __init__(self, file: int):
        self.file = file
        self.firsts = bytearray()
        self.keys = bytearray()
        self.ordinals = array("q")
        self.lines = array("q")
        self.conversations: list[bytes] = []
        self.tools: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self.conversations)

    def ids(self) -> Any:
        """The key of each row's whole content, [rows, 16] bytes."""
        import numpy as np

        tools = self.tools
        if tools:
            texts = enumerate(self.conversations)
            found = b"".join([content_id(text, tools.get(index, b"")) for index, text in texts])
        else:
            found = content_ids(self.conversations)
        return np.frombuffer(found, dtype=np.uint8).reshape(-1, KEY_BYTES)


@dataclass
class Part:
    """A finished part of a file. records, lines: how many its stretch held; columns: {name: [offset, bytes]}."""

    name: str
    rows: int
    records: int
    lines: int
    buckets: list[int]
    book: Book
    checksum: str
    size: int
    file: int = 0
    read: int = 0
    last: bool = True
    columns: dict[str, list[int]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "book": self.book.as_dict()}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Part:
        return cls(**{**value, "book": Book.from_dict(value["book"])})


def path_of(folder: Path, part: Part) -> Path:
    return folder / f"{part.name}.rows"


def write(folder: Path, name: str, rows: Rows, signatures: Any = None, **figures: Any) -> Part:
    """Write a part so that a resumed run can check it (its checksum), and vouch for it."""
    import numpy as np
    import xxhash

    ids = rows.ids()
    groups = ids[:, 0] >> BUCKET_SHIFT
    counts, order = np.bincount(groups, minlength=BUCKETS).tolist(), np.argsort(groups, kind="stable")
    columns = _columns(rows, ids, order, signatures)
    digest, places, offset = xxhash.xxh3_128(), {}, 0
    path, temporary = folder / f"{name}.rows", folder / f".{name}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb", buffering=0) as stream:
            for column, data in columns.items():
                places[column] = [offset, len(data)]
                offset += len(data)
                digest.update(data)
                left = memoryview(data)
                while left:
                    left = left[stream.write(left) :]
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    part = Part(
        name,
        len(rows),
        buckets=counts,
        checksum=digest.hexdigest(),
        size=offset,
        file=rows.file,
        columns=places,
        **figures,
    )
    _vouch(folder, part)
    return part


def _vouch(folder: Path, part: Part) -> None:
    """Write the part's record. Not flushed to the disk: who takes the part over later compares its checksum."""
    temporary = folder / f".{part.name}.json.{os.getpid()}.tmp"
    try:
        temporary.write_text(json.dumps(part.as_dict()), "utf-8")
        os.replace(temporary, folder / f"{part.name}.json")
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _columns(rows: Rows, ids: Any, order: Any, signatures: Any) -> dict[str, bytes]:
    """The columns as bytes, in the given order of rows; those that say nothing are left out."""
    import numpy as np

    def arranged(values: Any, kind: str) -> bytes:
        return bytes(np.frombuffer(values, dtype=kind)[order].tobytes())

    places = order.tolist()
    texts = [rows.conversations[index] for index in places]
    found = {"id": ids[order].tobytes(), "first": arranged(rows.firsts, KEY)}
    if rows.keys:
        found["key"] = arranged(rows.keys, KEY)
    found |= {"row": arranged(rows.ordinals, "<i8"), "line": arranged(rows.lines, "<i8")}
    found["size"] = np.fromiter(map(len, texts), dtype="<i8", count=len(texts)).tobytes()
    tools = [rows.tools.get(index, b"") for index in places] if rows.tools else []
    if tools:
        found["tool_size"] = np.fromiter(map(len, tools), dtype="<i8", count=len(tools)).tobytes()
    if signatures is not None:
        found["minhash"] = signatures[order].astype("<u4").tobytes()
    found["conversation"] = b"".join(texts)
    found["tools"] = b"".join(tools)
    return found


def column(folder: Path, part: Part, name: str) -> Any:
    """One column of MIXED as a numpy array [rows]; a column that was left out has its plain meaning."""
    import numpy as np

    if name == "key" and name not in part.columns:
        name = "first"
    if name not in part.columns or not part.rows:
        return np.zeros(part.rows, dtype=MIXED[name])
    offset, _ = part.columns[name]
    return np.fromfile(path_of(folder, part), dtype=MIXED[name], count=part.rows, offset=offset)


def signatures(folder: Path, part: Part) -> Any:
    """MinHash signatures, uint32 [rows, permutations]."""
    import numpy as np

    offset, size = part.columns["minhash"]
    data = np.fromfile(path_of(folder, part), dtype="<u4", count=size // 4, offset=offset)
    return data.reshape(part.rows, -1)


def texts(folder: Path, part: Part, name: str = "conversation") -> list[bytes]:
    """All texts of a part; for reading it whole, as tests and benchmarks do."""
    import itertools

    sizes = column(folder, part, "size" if name == "conversation" else "tool_size").tolist()
    offset, size = part.columns[name]
    with open(path_of(folder, part), "rb") as stream:
        stream.seek(offset)
        data = stream.read(size)
    ends = list(itertools.accumulate(sizes, initial=0))
    return [data[start:end] for start, end in itertools.pairwise(ends)]


def intact(folder: Path, part: Part) -> bool:
    """Whether the part's rows are what was written."""
    import xxhash

    digest, size = xxhash.xxh3_128(), 0
    try:
        with open(path_of(folder, part), "rb", buffering=0) as stream:
            while data := stream.read(1 << 20):
                digest.update(data)
                size += len(data)
    except OSError:
        return False
    return size == part.size and digest.hexdigest() == part.checksum


def read(folder: Path, name: str) -> Part | None:
    """A part by its name, if it is there and vouched for."""
    value = atomic.read_json(folder / f"{name}.json")
    try:
        return Part.from_dict(value) if isinstance(value, dict) else None
    except (KeyError, TypeError):
        return None

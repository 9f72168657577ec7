"""Safetensors files without heavy imports: headers, and small tensors as plain numbers."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyrie.core.errors import EyrieError

MAX_HEADER = 100 << 20


@dataclass(frozen=True)
class Entry:
    """One tensor: dtype as safetensors names it (BF16, F32, I64, BOOL), shape, and where its bytes lie."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    start: int
    end: int


def header(path: Path) -> dict[str, Entry]:
    """The tensors of one file. Raises EyrieError when it is torn or no safetensors file."""
    try:
        with open(path, "rb") as stream:
            head = stream.read(8)
            size = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            if not 2 <= size <= MAX_HEADER:
                raise ValueError(f"header of {size} bytes")
            table = json.loads(stream.read(size))
            stream.seek(0, 2)
            length = stream.tell()
        found = {
            name: Entry(
                name,
                value["dtype"],
                tuple(value["shape"]),
                path,
                8 + size + value["data_offsets"][0],
                8 + size + value["data_offsets"][1],
            )
            for name, value in table.items()
            if name != "__metadata__"
        }
        if any(entry.end > length for entry in found.values()):
            raise ValueError("the file is shorter than its header says")
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise EyrieError(
            f"not a whole safetensors file: {error}", where=str(path), code="torn-tensors", todo="Write it again."
        ) from None
    return found


def folder(path: Path) -> dict[str, Entry]:
    """All tensors of a checkpoint folder (one file or shards). Raises EyrieError when there is none."""
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise EyrieError("there are no safetensors files.", where=str(path), code="no-tensors")
    found: dict[str, Entry] = {}
    for file in files:
        found.update(header(file))
    return found


_FORMATS = {"I64": "q", "I32": "i", "BOOL": "?", "U8": "B", "F32": "f", "F64": "d"}


def values(entry: Entry, limit: int = 4 << 20) -> list[Any]:
    """A small tensor's elements in order. BF16 and F16 come as floats. Raises EyrieError above `limit` elements."""
    count = 1
    for size in entry.shape:
        count *= size
    if count > limit:
        raise EyrieError(f"{entry.name} has {count} elements, too many to read here.", where=str(entry.path))
    return _decode(entry.dtype, _bytes(entry, entry.start, entry.end), entry)


def rows(entry: Entry, indices: list[int]) -> list[list[float]]:
    """Some rows of a matrix, as floats, without reading the rest."""
    row_bytes = (entry.end - entry.start) // entry.shape[0]
    return [
        _decode(
            entry.dtype, _bytes(entry, entry.start + index * row_bytes, entry.start + (index + 1) * row_bytes), entry
        )
        for index in indices
    ]


def _bytes(entry: Entry, start: int, end: int) -> bytes:
    with open(entry.path, "rb") as stream:
        stream.seek(start)
        return stream.read(end - start)


def _decode(dtype: str, data: bytes, entry: Entry) -> list[Any]:
    if dtype == "BF16":
        halves = struct.unpack(f"<{len(data) // 2}H", data)
        packed = struct.pack(f"<{len(halves)}I", *(half << 16 for half in halves))
        return list(struct.unpack(f"<{len(halves)}f", packed))
    if dtype == "F16":
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    code = _FORMATS.get(dtype)
    if code is None:
        raise EyrieError(f"{entry.name} has dtype {dtype}, which is not read here.", where=str(entry.path))
    return list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))

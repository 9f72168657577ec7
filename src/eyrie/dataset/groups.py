"""Row groups of one Parquet file that are encoded beside each other.

pyarrow writes the row groups of a file one after another. So each piece of the file is encoded as a file of its own in
memory, on whichever thread is free; its pages then go into the file as they are, and its row groups into the footer,
moved by where the pages came to stand.

Source of the field numbers: src/main/thrift/parquet.thrift in the Apache parquet-format repository.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eyrie.dataset import thrift

MAGIC = b"PAR1"
TAIL = 8  # the footer's length and the magic number
ROW_GROUP = 1 << 16

#: of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData
ROWS, GROUPS = 3, 4
COLUMNS, GROUP_OFFSET, ORDINAL = 1, 5, 7
CHUNK_OFFSET, META = 2, 3
PAGE_OFFSETS = (9, 10, 11)  # of the data, the index and the dictionary
OTHER_OFFSETS = (4, 6)  # of page indices, which are not written here


@dataclass
class Piece:
    """An encoded piece: its pages, and the footer of the file that it is in memory."""

    pages: list[bytes]
    footer: thrift.Struct

    @property
    def rows(self) -> int:
        return int(self.footer[ROWS][1])


class _Memory:
    """What pa.PythonFile needs of a file."""

    closed = False

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.size = 0

    def write(self, data: bytes) -> int:
        self.chunks.append(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        return None

    def close(self) -> None:
        return None


def options(schema: Any) -> dict[str, Any]:
    """How the writer is set: ids and row numbers hold nothing that repeats."""
    return {
        "compression": {name: "none" if name in ("id", "row") else "snappy" for name in schema.names},
        "use_dictionary": [name for name in schema.names if name in ("source", "set")],
        "write_statistics": False,
        "store_schema": False,
    }


def encode(table: Any) -> Piece:
    """A table as row groups. The interpreter is free for other threads meanwhile."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    memory = _Memory()
    with pq.ParquetWriter(pa.PythonFile(memory, mode="w"), table.schema, **options(table.schema)) as writer:
        if table.num_rows:
            writer.write_table(table, row_group_size=ROW_GROUP)
    return _cut(memory.chunks)


def _cut(chunks: list[bytes]) -> Piece:
    """Take a file in memory apart. Its last chunks are the footer."""
    tail = b""
    while len(tail) < TAIL or len(tail) < TAIL + int.from_bytes(tail[-TAIL:-4], "little"):
        tail = chunks.pop() + tail
    length = int.from_bytes(tail[-TAIL:-4], "little")
    rest, footer = tail[: -TAIL - length], tail[-TAIL - length : -TAIL]
    pages = [*chunks, rest] if rest else chunks
    if tail[-4:] != MAGIC or pages[0][:4] != MAGIC:
        raise ValueError("what was encoded is no Parquet file")
    pages[0] = pages[0][4:]
    return Piece([page for page in pages if page], thrift.read(footer)[0])


def move(piece: Piece, place: int, ordinal: int) -> list[thrift.Struct]:
    """The piece's row groups in a file that has its pages at a place; they are numbered from `ordinal`."""
    by = place - len(MAGIC)
    groups: list[thrift.Struct] = piece.footer[GROUPS][1][1]
    for number, group in enumerate(groups):
        for chunk in group[COLUMNS][1][1]:
            if any(field in chunk for field in OTHER_OFFSETS):
                raise ValueError("page indices cannot be moved")
            _move(chunk, (CHUNK_OFFSET,), by)
            _move(chunk[META][1], PAGE_OFFSETS, by)
        _move(group, (GROUP_OFFSET,), by)
        if ORDINAL in group:
            group[ORDINAL] = (group[ORDINAL][0], ordinal + number)
    return groups


def _move(fields: thrift.Struct, names: tuple[int, ...], by: int) -> None:
    """Move those offsets that are there; 0 stands for none."""
    for name in names:
        if name in fields and fields[name][1]:
            fields[name] = (fields[name][0], fields[name][1] + by)


def footer(schema: Any, groups: list[thrift.Struct], rows: int) -> bytes:
    """The end of a file of these row groups."""
    import pyarrow as pa

    empty = encode(pa.Table.from_batches([], schema=schema))  # schema.empty_table() would import pandas
    fields = dict(empty.footer)
    fields[ROWS] = (fields[ROWS][0], rows)
    fields[GROUPS] = (thrift.LIST, (thrift.STRUCT, groups))
    data = thrift.write(fields)
    return data + len(data).to_bytes(4, "little") + MAGIC

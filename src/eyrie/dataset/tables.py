"""Readers of tables: Parquet, Arrow, CSV. Each file keeps its own schema; rows become plain data batch by batch."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eyrie.dataset.formats import Shape, text_stream, torn
from eyrie.dataset.readers import NO_NOTES, Reader, Record

BATCH = 512


class Table(Reader):
    """Row groups [start, end) of a Parquet file, or all batches of an Arrow file or stream.

    columns: those that the adapter may look at; others are not read.
    """

    def __init__(self, path: Path, shape: Shape, columns: set[str], start: int = 0, end: int = 0):
        super().__init__(path, shape)
        self.columns, self.start, self.end = columns, start, end

    def __iter__(self) -> Iterator[Record]:
        import pyarrow as pa

        try:
            for batch in self._batches():
                for row in _rows(batch):
                    self.lines += 1
                    if isinstance(row, str):
                        yield self.lines, None, row, NO_NOTES
                    else:
                        yield self.lines, row, "", NO_NOTES
        except (pa.ArrowException, OSError, EOFError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise torn(self.path, error) from error

    def _batches(self) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self.shape.kind == "parquet":
            with pq.ParquetFile(self.path) as file:
                names = [name for name in file.schema_arrow.names if name in self.columns]
                for group in range(self.start, self.end or file.num_row_groups):
                    for batch in file.iter_batches(BATCH, row_groups=[group], columns=names, use_threads=False):
                        yield batch
                    self.position += file.metadata.row_group(group).total_byte_size
            return
        with pa.memory_map(str(self.path), "rb") as source:
            head = source.read(6)
            source.seek(0)
            if head == b"ARROW1":
                reader = pa.ipc.open_file(source)
                batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
            else:
                batches = iter(pa.ipc.open_stream(source))
            for batch in batches:
                self.position = source.tell()
                for start in range(0, batch.num_rows, BATCH):
                    piece = batch.slice(start, BATCH)
                    yield piece.select([name for name in piece.schema.names if name in self.columns])


def _rows(batch: Any) -> list[Any]:
    """Rows as plain data; a row that holds text which is not UTF-8 gives the name of its fault."""
    try:
        rows: list[Any] = batch.to_pylist()
        return rows
    except UnicodeDecodeError:
        return [_row(batch.slice(index, 1)) for index in range(batch.num_rows)]


def _row(batch: Any) -> Any:
    try:
        return batch.to_pylist()[0]
    except UnicodeDecodeError:
        return "bad_utf8"


class Csv(Reader):
    """A CSV file with a header; quoted fields may hold line breaks. A row with another number of fields is a fault."""

    def __init__(self, path: Path, shape: Shape):
        super().__init__(path, shape)

    def __iter__(self) -> Iterator[Record]:
        csv.field_size_limit(sys.maxsize)
        with text_stream(self.path, self.shape) as stream:
            counted = _Counted(stream)
            text = io.TextIOWrapper(io.BufferedReader(counted), "utf-8", errors="replace", newline="")
            reader = csv.reader(text, delimiter=self.shape.delimiter)
            try:
                names = next(reader, [])
                while True:
                    line = reader.line_num + 1
                    try:
                        fields = next(reader)
                    except StopIteration:
                        return
                    except csv.Error:
                        self.lines, self.position = reader.line_num, counted.count
                        yield line, None, "bad_csv", NO_NOTES
                        continue
                    self.lines, self.position = reader.line_num, counted.count
                    if not fields:
                        continue
                    if len(fields) != len(names):
                        yield line, None, "bad_csv", NO_NOTES
                        continue
                    yield line, {name: value or None for name, value in zip(names, fields, strict=True)}, "", NO_NOTES
            except (EOFError, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                raise torn(self.path, error) from error


class _Counted(io.RawIOBase):
    """Counts the bytes that pass."""

    def __init__(self, stream: Any):
        self.stream, self.count = stream, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.stream.read(len(buffer))
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)

"""Tasks: the stretches into which a source is cut. What a stretch gives depends on nothing but the files and the
settings, so any number of workers in any order leaves the same parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyrie.dataset import formats
from eyrie.dataset.settings import Source

STRETCH_BYTES = 8 << 20  # of JSON lines; larger stretches cost page faults, smaller ones bookkeeping
STRETCH_GROUPS_BYTES = 64 << 20  # of a Parquet file's row groups, uncompressed
PART_ROWS = 8192  # rows of a part of a file that has to be read from its beginning
PART_BYTES = 8 << 20


@dataclass
class Task:
    """One stretch of one file of one source."""

    source: str
    index: int
    file: int
    path: str
    shape: dict[str, Any] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    size: int = 0
    #: whether the whole stretch is one part; else parts are cut every PART_ROWS rows
    whole: bool = False

    @property
    def name(self) -> str:
        return f"{self.index:05d}"


def cut(name: str, source: Source, files: list[tuple[str, Path]]) -> list[Task]:
    """The tasks of a source's files. Raises EyrieError for a file that cannot be read at all."""
    if source.kind == "generated":
        return [Task(name, 0, 0, "", whole=False)]
    tasks: list[Task] = []
    for number, (_, path) in enumerate(files):
        shape = formats.shape(path, source.format, source.delimiter, source.field)
        size = path.stat().st_size
        for start, end, part in _stretches(path, shape, size, source):
            tasks.append(Task(name, len(tasks), number, str(path), shape.__dict__, start, end, part, end > start))
    return tasks


def _stretches(path: Path, shape: formats.Shape, size: int, source: Source) -> list[tuple[int, int, int]]:
    """[(start, end, bytes)]; (0, 0, size) = from the beginning to the end."""
    if source.rows:  # a limit in file order needs one reader
        return [(0, size if shape.splittable else 0, size)]
    if shape.splittable:
        return [
            (start, min(start + STRETCH_BYTES, size), min(STRETCH_BYTES, size - start))
            for start in range(0, size, STRETCH_BYTES)
        ]
    if shape.kind == "parquet":
        return _groups(path, size)
    return [(0, 0, size)]


def _groups(path: Path, size: int) -> list[tuple[int, int, int]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        meta = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise formats.torn(path, error) from error
    out, start, held = [], 0, 0
    total = sum(meta.row_group(index).total_byte_size for index in range(meta.num_row_groups)) or 1
    for index in range(meta.num_row_groups):
        held += meta.row_group(index).total_byte_size
        if held >= STRETCH_GROUPS_BYTES or index + 1 == meta.num_row_groups:
            out.append((start, index + 1, size * held // total))
            start, held = index + 1, 0
    return out

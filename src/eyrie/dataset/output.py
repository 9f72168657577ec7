"""The outputs: train.parquet and eval.parquet, written a bucket of rows at a time: memory does not grow with rows."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from eyrie.dataset import columns, mix
from eyrie.dataset import part as parts
from eyrie.dataset.keys import content_id
from eyrie.dataset.sink import Sink
from eyrie.dataset.unit import Unit

FEW = 8  # rows are read one by one where at most one in so many of a stretch is wanted

Run = tuple[int, int, int]  # a part's index, and rows [from, to) of all


def schema(evaluation: bool = False) -> Any:
    """id, source, row, conversation, tools (and set)."""
    import pyarrow as pa

    fields = [
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("conversation", pa.string(), nullable=False),
        pa.field("tools", pa.string()),
    ]
    return pa.schema([*fields, pa.field("set", pa.string(), nullable=False)] if evaluation else fields)


def write(
    out: Path,
    units: list[Unit],
    keys: mix.Keys,
    chosen: mix.Chosen,
    seed: int,
    open_prompts: list[str],
    workers: int,
    tick: Callable[[int], None],
) -> dict[str, dict[str, Any]]:
    """Write both files; {file name: {rows, bytes, sha256}}. tick is called with the rows written so far."""
    import pyarrow as pa

    train = Sink(out / "train.parquet", schema(), workers)
    evaluation = Sink(out / "eval.parquet", schema(True), workers)
    try:
        held: list[Any] = []
        for table, places in buckets(units, keys, chosen, seed):  # one is read while others are encoded
            mine = _order(places, mix.HELDOUT)
            if len(mine):
                held.append(table.take(columns.integers(mine)))
            train.add(partial(_training, table, places))
            tick(train.rows)
        last = pa.concat_tables(
            [_with_set(table, "heldout") for table in held] + [_with_set(_open_table(open_prompts), "open")]
        )
        evaluation.add(lambda: last)
        return {sink.path.name: sink.finish() for sink in (train, evaluation)}
    except BaseException:
        train.abandon()
        evaluation.abandon()
        raise


def _order(places: Any, kind: int) -> Any:
    """The rows of one set, in the order of their places."""
    import numpy as np

    rows = np.flatnonzero((places >= 0) & (places % 2 == kind))
    return rows[np.argsort(places[rows], kind="stable")]


def _training(table: Any, places: Any) -> Any:
    """The training rows of a bucket, in order. Their conversations stay where they were read."""
    rows = _order(places, mix.TRAIN)
    column = table.schema.get_field_index("conversation")
    taken = table.remove_column(column).take(columns.integers(rows))
    return taken.add_column(column, *columns.views(table, column, rows))


def buckets(units: list[Unit], keys: mix.Keys, chosen: mix.Chosen, seed: int) -> Iterator[tuple[Any, Any]]:
    """(rows, places; -1 = not chosen) of one bucket after another, in the order in which they are written."""
    import numpy as np

    order = np.argsort(mix.splitmix(np.arange(parts.BUCKETS, dtype=np.uint64), seed), kind="stable")
    ends = [start + np.cumsum([0, *part.buckets]) for start, part, *_ in keys.starts]
    names = [unit.name for unit in units]
    with Shelf(units, keys) as shelf:
        for bucket in order.tolist():
            runs: list[Run] = []
            for index, mine in enumerate(ends):
                low, high = int(mine[bucket]), int(mine[bucket + 1])
                rows = low + np.flatnonzero(chosen.where[low:high] >= 0)
                if len(rows) * FEW > high - low:  # what is not chosen is read too and left out later
                    runs.append((index, int(rows[0]), int(rows[-1]) + 1))
                else:
                    runs += [(index, row, row + 1) for row in rows.tolist()]
            if runs:
                rows = np.concatenate([np.arange(low, high) for _, low, high in runs])
                yield _table(rows, names, keys, shelf, runs), chosen.where[rows]


def _table(rows: Any, names: list[str], keys: mix.Keys, shelf: Shelf, runs: list[Run]) -> Any:
    import numpy as np
    import pyarrow as pa

    ids = columns.hexadecimal(keys.id[rows].astype(">u8").tobytes())
    sources = columns.chosen(names, keys.source[rows])
    conversations = columns.text(shelf.read("conversation", runs), keys.size[rows])
    tools = columns.no_text(len(rows))
    if keys.tool_size is not None and np.any(sizes := keys.tool_size[rows]):
        tools = columns.text(shelf.read("tools", runs), sizes, sizes > 0)
    return pa.table([ids, sources, columns.integers(keys.places(rows)), conversations, tools], schema=schema())


class Shelf:
    """Texts of parts, whose files stand open."""

    LIMIT = 256  # open files

    def __init__(self, units: list[Unit], keys: mix.Keys) -> None:
        import numpy as np

        self._paths = [parts.path_of(units[number].folder, part) for _, part, number, _ in keys.starts]
        self._starts = keys.starts
        self._open: OrderedDict[int, int] = OrderedDict()
        #: bytes of a text column before each row and behind the last, over all parts
        self._ends = {
            name: np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
            for name, sizes in (("conversation", keys.size), ("tools", keys.tool_size))
            if sizes is not None
        }

    def __enter__(self) -> Shelf:
        return self

    def __exit__(self, *exc: object) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def read(self, name: str, runs: list[Run]) -> Any:
        """The texts of runs of rows, one behind another (uint8)."""
        import numpy as np

        ends = self._ends[name]
        sizes = [int(ends[high] - ends[low]) for _, low, high in runs]
        out = np.empty(sum(sizes), dtype=np.uint8)
        rest = memoryview(out)
        for (index, low, _), size in zip(runs, sizes, strict=True):
            if size:
                start, part, *_ = self._starts[index]
                self._fill(index, rest[:size], part.columns[name][0] + int(ends[low] - ends[start]))
                rest = rest[size:]
        return out

    def _fill(self, index: int, place: memoryview, offset: int) -> None:
        handle = self._handle(index)
        while place:
            count = os.preadv(handle, [place], offset)
            if not count:
                raise EOFError(f"{self._paths[index]} is shorter than it was")
            place, offset = place[count:], offset + count

    def _handle(self, index: int) -> int:
        if index not in self._open:
            if len(self._open) >= self.LIMIT:
                os.close(self._open.popitem(last=False)[1])
            self._open[index] = os.open(self._paths[index], os.O_RDONLY)
        self._open.move_to_end(index)
        return self._open[index]


def _open_table(prompts: list[str]) -> Any:
    import orjson
    import pyarrow as pa

    conversations = [orjson.dumps([{"role": "user", "content": prompt}]) for prompt in prompts]
    arrays = [
        columns.hexadecimal(b"".join(content_id(text) for text in conversations)),
        columns.repeated("open", len(prompts)),
        columns.integers(range(len(prompts))),
        columns.texts(conversations),
        columns.no_text(len(prompts)),
    ]
    return pa.table(arrays, schema=schema())


def _with_set(table: Any, kind: str) -> Any:
    import pyarrow as pa

    return pa.table([*table.columns, columns.repeated(kind, table.num_rows)], schema=schema(True))

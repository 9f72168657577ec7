"""The outputs: train.parquet and eval.parquet, written a bucket of rows at a time: memory does not grow with rows."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.dataset import columns, mix
from eyrie.dataset import part as parts
from eyrie.dataset.keys import content_id
from eyrie.dataset.unit import Unit

ROW_GROUP = 1 << 16


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


class Sink:
    """A Parquet file that appears under its name only when it is whole; counts rows and bytes, hashes as it writes."""

    def __init__(self, path: Path, fields: Any):
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path, self.rows, self.size = path, 0, 0
        self.temporary = path.with_name(f".{path.name}.tmp")
        self._digest = hashlib.sha256()
        self._raw = open(self.temporary, "wb")  # noqa: SIM115 - closed by finish or abandon
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self, mode="w"),
            fields,
            compression="snappy",
            use_dictionary=["source"] + (["set"] if "set" in fields.names else []),
            write_statistics=False,
            store_schema=False,
        )

    # what pa.PythonFile needs
    closed = False

    def write(self, data: Any) -> int:
        self._raw.write(data)
        self._digest.update(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        self._raw.flush()

    def tell(self) -> int:
        return self.size

    def close(self) -> None:
        return None

    def add(self, table: Any) -> None:
        """Append rows as one row group."""
        if not table.num_rows:
            return
        self._writer.write_table(table, row_group_size=ROW_GROUP)
        self.rows += table.num_rows

    def finish(self) -> dict[str, Any]:
        """Close durably under the final name; {rows, bytes, sha256}."""
        self._writer.close()
        self._raw.flush()
        os.fsync(self._raw.fileno())
        self._raw.close()
        os.replace(self.temporary, self.path)
        atomic.fsync_dir(self.path.parent)
        return {"rows": self.rows, "bytes": self.size, "sha256": self._digest.hexdigest()}

    def abandon(self) -> None:
        self._raw.close()
        self.temporary.unlink(missing_ok=True)


def write(
    out: Path,
    units: list[Unit],
    keys: mix.Keys,
    chosen: mix.Chosen,
    seed: int,
    open_prompts: list[str],
    tick: Callable[[int], None],
) -> dict[str, dict[str, Any]]:
    """Write both files; {file name: {rows, bytes, sha256}}. tick is called with the rows written so far."""
    train, evaluation = Sink(out / "train.parquet", schema()), Sink(out / "eval.parquet", schema(True))
    try:
        import pyarrow as pa

        held: list[Any] = []
        with ThreadPoolExecutor(1) as encoder:  # one bucket is encoded while the next one is read
            under_way: Future[None] | None = None
            for table, places in buckets(units, keys, chosen, seed):
                mine = _of(table, places, mix.HELDOUT)
                if mine.num_rows:
                    held.append(mine)
                rows = _of(table, places, mix.TRAIN)
                if under_way is not None:
                    under_way.result()
                under_way = encoder.submit(train.add, rows)
                tick(train.rows)
            if under_way is not None:
                under_way.result()

        evaluation.add(
            pa.concat_tables(
                [_with_set(table, "heldout") for table in held] + [_with_set(_open_table(open_prompts), "open")]
            )
        )
        return {sink.path.name: sink.finish() for sink in (train, evaluation)}
    except BaseException:
        train.abandon()
        evaluation.abandon()
        raise


def _of(table: Any, places: Any, kind: int) -> Any:
    """The rows of one set, in the order of their places."""
    import numpy as np

    rows = np.flatnonzero((places >= 0) & (places % 2 == kind))
    return table.take(columns.integers(rows[np.argsort(places[rows], kind="stable")]))


def buckets(units: list[Unit], keys: mix.Keys, chosen: mix.Chosen, seed: int) -> Iterator[tuple[Any, Any]]:
    """(rows, places) of one bucket after another, in the order in which they are written."""
    import numpy as np
    import pyarrow as pa

    order = np.argsort(mix.splitmix(np.arange(parts.BUCKETS, dtype=np.uint64), seed), kind="stable")
    offsets = [np.concatenate([[0], np.cumsum(part.buckets)]) for _, part, _ in keys.starts]
    bases: dict[tuple[int, str], int] = {
        (number, part.name): records for number, unit in enumerate(units) for part, records, _ in unit.bases()
    }
    shelf = Shelf()
    for bucket in order.tolist():
        tables, places = [], []
        for (start, part, number), offset in zip(keys.starts, offsets, strict=True):
            low, high = int(offset[bucket]), int(offset[bucket + 1])
            mine = chosen.where[start + low : start + high]
            wanted = np.flatnonzero(mine >= 0)
            if not len(wanted):
                continue
            path = units[number].folder / f"{part.name}.arrow"
            batch = shelf.reader(path).get_batch(sum(1 for count in part.buckets[:bucket] if count))
            if len(wanted) < batch.num_rows:
                batch = batch.take(columns.integers(wanted))
            tables.append(_columns(batch, units[number].name, bases[number, part.name]))
            places.append(mine[wanted])
        if tables:
            yield pa.concat_tables(tables), np.concatenate(places)


class Shelf:
    """Parts that stand open: each is read once a bucket."""

    LIMIT = 256  # open files

    def __init__(self) -> None:
        self._open: OrderedDict[Path, Any] = OrderedDict()

    def reader(self, path: Path) -> Any:
        import pyarrow as pa

        if path not in self._open:
            if len(self._open) >= self.LIMIT:
                self._open.popitem(last=False)
            options = pa.ipc.IpcReadOptions(included_fields=[0, 3, 6, 7], use_threads=False)
            self._open[path] = pa.ipc.open_file(pa.OSFile(str(path), "rb"), options=options)
        self._open.move_to_end(path)
        return self._open[path]


def _columns(batch: Any, source: str, base: int) -> Any:
    import pyarrow as pa

    rows = columns.integers(columns.numbers(batch.column("row")) + base)
    names = columns.repeated(source, batch.num_rows)
    ids = columns.hexadecimal(batch.column("id"))
    return pa.table([ids, names, rows, batch.column("conversation"), batch.column("tools")], schema=schema())


def _open_table(prompts: list[str]) -> Any:
    import orjson
    import pyarrow as pa

    conversations = [orjson.dumps([{"role": "user", "content": prompt}]) for prompt in prompts]
    arrays = [
        columns.hexadecimal(columns.keys([content_id(text, None) for text in conversations])),
        columns.repeated("open", len(prompts)),
        columns.integers(range(len(prompts))),
        columns.texts(conversations),
        columns.optional_texts([None] * len(prompts)),
    ]
    return pa.table(arrays, schema=schema())


def _with_set(table: Any, kind: str) -> Any:
    import pyarrow as pa

    return pa.table([*table.columns, columns.repeated(kind, table.num_rows)], schema=schema(True))

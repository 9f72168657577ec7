"""The prepared data that the states belong to: rows of the tokens stage's data/."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.hidden_states.keys import Shape, array_digest, key_of


@dataclass(frozen=True)
class Row:
    """One row of data/: its number, content key and token count."""

    row: int
    key: str
    tokens: int


class Corpus:
    """Rows of data/ (Arrow, read lazily)."""

    def __init__(self, folder: Path):
        self.folder = folder

    @cached_property
    def data(self) -> Any:
        from datasets import load_from_disk

        try:
            data = load_from_disk(str(self.folder))
        except (FileNotFoundError, ValueError, OSError) as error:
            raise EyrieError(
                f"the prepared data cannot be read: {error}",
                where=str(self.folder),
                code="data-unreadable",
                todo="Run the tokens stage again.",
            ) from None
        missing = {"input_ids", "loss_mask", "seq_len"} - set(data.column_names)
        if missing:
            raise EyrieError(f"columns are missing: {sorted(missing)}", where=str(self.folder), code="data-columns")
        return data.with_format("numpy", columns=["input_ids"])

    def __len__(self) -> int:
        return len(self.data)

    def ids(self, row: int) -> list[int]:
        """Token ids of a row."""
        return [int(token) for token in self.data[row]["input_ids"]]

    def rows(self, shape: Shape) -> Iterator[Row]:
        """All rows with their keys, in order. Memory is that of one batch, whatever the size of the data."""
        digest = shape.digest
        for row, ids in enumerate(self._in_order()):
            yield Row(row, key_of(array_digest(ids), digest), len(ids))

    def _in_order(self) -> Iterator[Any]:
        """Token ids of each row as an array, read from the shards one record batch after another."""
        import pyarrow as pa

        for path in self._shards():
            with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as reader:
                for batch in reader:
                    column = batch.column("input_ids")
                    values = column.flatten().to_numpy(zero_copy_only=False)
                    end = 0
                    for length in column.value_lengths().to_pylist():
                        yield values[end : end + length]
                        end += length

    def _shards(self) -> list[Path]:
        """The data's files in the order of their rows, after the data was seen to load."""
        assert self.data is not None
        return [Path(entry["filename"]) for entry in self.data.cache_files]

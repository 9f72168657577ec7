"""The prepared data that the states belong to: rows of the tokens stage's data/."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.hidden_states.keys import Shape, key_of, token_digest


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
        """All rows with their keys, in order."""
        digest = shape.digest
        for start in range(0, len(self), 512):
            batch = self.data[start : start + 512]["input_ids"]
            for offset, ids in enumerate(batch):
                listed = ids.tolist()
                yield Row(start + offset, key_of(token_digest(listed), digest), len(listed))

"""Seeded token rows as the tokens stage leaves them: what is in them does not matter to a prefill, their lengths do."""

from __future__ import annotations

import random
from pathlib import Path


def rows(count: int, vocabulary: int, mean: int, seed: int = 5) -> list[list[int]]:
    """`count` rows of 0.3 to 2 times the mean length."""
    dice = random.Random(seed)
    return [[dice.randrange(3, vocabulary) for _ in range(int(mean * dice.uniform(0.3, 1.7)))] for _ in range(count)]


def write(folder: Path, made: list[list[int]], prompt: int = 8) -> Path:
    """folder/data (torch format, as speculators' generate-offline-data reads it) and folder/samples.parquet."""
    import pyarrow as pa
    import pyarrow.parquet as parquet
    from datasets import Dataset

    masks = [[0] * prompt + [1] * (len(ids) - prompt) for ids in made]
    data = Dataset.from_dict({"input_ids": made, "loss_mask": masks, "seq_len": [len(ids) for ids in made]})
    data.with_format("torch").save_to_disk(str(folder / "data"))
    parquet.write_table(
        pa.table(
            {
                "id": [f"row{number}" for number in range(len(made))],
                "length": [len(ids) for ids in made],
                "supervised": [sum(mask) for mask in masks],
            }
        ),
        folder / "samples.parquet",
    )
    return folder

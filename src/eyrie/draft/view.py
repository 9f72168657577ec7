"""The training view: prepared rows in the order that makes speculators' split a split by conversation.

speculators takes the first share of the rows for training and the rest for validation. The view puts all rows of the
conversations that are held out at the end, so that no conversation lies on both sides, and an index beside it names
each row's states.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError, GateError


@dataclass(frozen=True)
class Sample:
    """A row of data/ with states: its number, conversation, length and supervised tokens."""

    row: int
    conversation: str
    length: int
    supervised: int


@dataclass(frozen=True)
class View:
    """A built view. ratio: what --train-data-ratio must be, so that int(rows * ratio) is `train`."""

    data: Path
    index: Path
    train: int
    val: int
    train_tokens: int
    val_tokens: int
    truncated: int
    unsupervised: int

    @property
    def ratio(self) -> float:
        return (self.train + 0.5) / (self.train + self.val)


def split(
    samples: Sequence[Sample], val_ratio: float, seed: int, pinned: frozenset[int] = frozenset()
) -> tuple[list[Sample], list[Sample]]:
    """(train, val) by conversation: the same seed gives the same split; at least one conversation on each side.

    pinned: rows whose conversations are held out first (what fp8 is compared on must not be trained on).
    """
    conversations = sorted({sample.conversation for sample in samples})
    if len(conversations) < 2:
        raise GateError(
            f"{len(conversations)} conversation: a validation split needs two.",
            code="too-few-conversations",
            todo="Prepare more prompts.",
        )
    random.Random(seed).shuffle(conversations)
    count = min(max(1, round(len(conversations) * val_ratio)), len(conversations) - 1)
    first = {sample.conversation for sample in samples if sample.row in pinned}
    conversations.sort(key=lambda name: name not in first)  # stable: the seed's order within both parts
    held = set(conversations[: min(max(count, len(first)), len(conversations) - 1)])
    return (
        [sample for sample in samples if sample.conversation not in held],
        [sample for sample in samples if sample.conversation in held],
    )


def check_supervision(samples: Sequence[Sample], side: str) -> int:
    """How many rows have no supervised token; refuses when none has one."""
    supervised = sum(sample.supervised for sample in samples)
    if supervised == 0:
        total = sum(sample.length for sample in samples)
        raise GateError(
            f"supervised tokens: 0 of {total} on the {side} side.",
            code="nothing-supervised",
            why="All loss masks are zero: the chat template or the mask rule does not fit the target.",
            todo="Nothing was trained. Look at the tokens stage's mask figures.",
        )
    return sum(1 for sample in samples if sample.supervised == 0)


def build(
    tokens: Path,
    rows: dict[int, str],
    folder: Path,
    val_ratio: float,
    seed: int,
    seq_len: int,
    pinned: frozenset[int] = frozenset(),
) -> View:
    """Build the view of the rows that have states.

    tokens: output folder of the tokens stage. rows: {row of data/: absolute path of its states}. pinned: see `split`.
    """
    from datasets import load_from_disk

    samples = read_samples(tokens, rows)
    train, val = split(samples, val_ratio, seed, pinned)
    unsupervised = check_supervision(train, "training")
    check_supervision(val, "validation")
    order = [*train, *val]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    data = load_from_disk(str(tokens / "data")).select([sample.row for sample in order])
    data = data.select_columns(["input_ids", "loss_mask", "seq_len"]).flatten_indices().with_format("torch")
    _check_masks(data)
    data.save_to_disk(str(folder / "data"))
    paths = [os.path.relpath(rows[sample.row], folder) for sample in order]
    atomic.write_text(folder / "states.txt", "\n".join(paths) + "\n")
    return View(
        data=folder / "data",
        index=folder / "states.txt",
        train=len(train),
        val=len(val),
        train_tokens=sum(sample.length for sample in train),
        val_tokens=sum(sample.length for sample in val),
        truncated=sum(1 for sample in order if sample.length > seq_len),
        unsupervised=unsupervised,
    )


def read_samples(tokens: Path, rows: dict[int, str]) -> list[Sample]:
    """The samples of samples.parquet that have states, in row order."""
    import pyarrow.parquet as parquet

    table = parquet.read_table(tokens / "samples.parquet", columns=["id", "length", "supervised"]).to_pydict()
    count = len(table["id"])
    beyond = [row for row in rows if row >= count]
    if beyond:
        raise EyrieError(
            f"states belong to row {beyond[0]}, samples.parquet has {count} rows: they are of another data set.",
            code="rows-beyond-data",
            todo="Run hidden_states again.",
        )
    return [
        Sample(row, str(table["id"][row]), int(table["length"][row]), int(table["supervised"][row]))
        for row in range(count)
        if row in rows
    ]


def _check_masks(data: Any) -> None:
    """Each mask is as long as its ids."""
    plain = data.with_format("arrow")
    for start in range(0, len(plain), 1000):
        table = plain[start : start + 1000]
        ids, masks = table.column("input_ids").combine_chunks(), table.column("loss_mask").combine_chunks()
        for at, (a, b) in enumerate(
            zip(ids.value_lengths().to_pylist(), masks.value_lengths().to_pylist(), strict=True)
        ):
            if a != b:
                raise GateError(
                    f"mask length {b} != ids {a} in view row {start + at}.",
                    code="mask-length",
                    todo="Run tokens again.",
                )

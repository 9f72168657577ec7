"""Training samples as text, with what the loss sees marked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol


class Decoder(Protocol):
    def decode(self, ids: list[int]) -> str:
        """Text of token ids, special tokens included."""


def samples(tokens: Path, target: Path, trust_remote_code: bool, count: int, limit: int) -> list[dict[str, Any]]:
    """`count` rows spread over the training data: {source, length, supervised, shown, cut, parts: [{on, text}]}."""
    if not count:
        return []
    rows = spread(tokens, count)
    decoder = tokenizer(target, trust_remote_code) if rows else None
    return [sample(row, decoder, limit) for row in rows if decoder]


def spread(tokens: Path, count: int) -> list[dict[str, Any]]:
    """Rows of data/ at even distances, with their source; only these rows are read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted((tokens / "data").glob("data-*.arrow"))
    if not files or not (tokens / "samples.parquet").exists():
        return []
    sources = pq.read_table(tokens / "samples.parquet", columns=["source"]).column("source")
    places = [number * len(sources) // count for number in range(min(count, len(sources)))]
    found, start = [], 0
    for file in files:
        with pa.memory_map(str(file)) as stream:
            for batch in pa.ipc.open_stream(stream):
                for place in places:
                    if start <= place < start + batch.num_rows:
                        row = batch.slice(place - start, 1).to_pylist()[0]
                        found.append({**row, "source": sources[place].as_py()})
                start += batch.num_rows
    return found


def tokenizer(target: Path, trust_remote_code: bool) -> Decoder:
    """The target's tokenizer; its own file where there is one, which loads in a tenth of the time."""
    if (target / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        return _Fast(Tokenizer.from_file(str(target / "tokenizer.json")))
    from transformers import AutoTokenizer

    return _Slow(AutoTokenizer.from_pretrained(str(target), trust_remote_code=trust_remote_code))


class _Fast:
    def __init__(self, of_file: Any):
        self._of_file = of_file

    def decode(self, ids: list[int]) -> str:
        return str(self._of_file.decode(ids, skip_special_tokens=False))


class _Slow:
    def __init__(self, of_library: Any):
        self._of_library = of_library

    def decode(self, ids: list[int]) -> str:
        return str(self._of_library.decode(ids, skip_special_tokens=False))


def sample(row: dict[str, Any], decoder: Decoder, limit: int) -> dict[str, Any]:
    """One row's text in runs of equal mask."""
    ids, mask = list(row["input_ids"]), [bool(value) for value in row["loss_mask"]]
    shown = min(limit, len(ids))
    return {
        "source": row["source"],
        "length": len(ids),
        "supervised": sum(mask),
        "shown": shown,
        "cut": shown < len(ids),
        "parts": [{"on": on, "text": decoder.decode(run)} for on, run in runs(ids[:shown], mask[:shown])],
    }


def runs(ids: Sequence[int], mask: Sequence[bool]) -> list[tuple[bool, list[int]]]:
    """Neighbouring tokens of equal mask together."""
    pairs = groupby(zip(mask, ids, strict=True), key=lambda pair: pair[0])
    return [(on, [token for _, token in group]) for on, group in pairs]


def dumps(value: Any) -> str:
    """A setting as one short word of text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)

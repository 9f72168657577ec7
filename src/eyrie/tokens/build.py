"""Training rows from responses: ids as sampled, mask 1 on what the target itself said.

Memory stays flat: ids go to a scratch file, only lengths, borders and keys (some 100 bytes a row) stay.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyrie.core.accounting import Account
from eyrie.core.errors import EyrieError
from eyrie.tokens.scripts import SAMPLE, script
from eyrie.tokens.settings import Settings

if TYPE_CHECKING:
    import numpy as np

    from eyrie.tokens.template import Template
    from eyrie.tokens.tokenizer import Tokenizer

COLUMNS = ["id", "source", "turn", "text", "prompt_ids", "output_ids"]
BATCH = 512
PROBE_ROWS = 100


@dataclass(slots=True)
class Turn:
    """One row of responses.parquet. ids int32 [n]; supervised: [(start, end)) spans of what the target said."""

    id: str
    source: str
    turn: int
    ids: np.ndarray[Any, Any]
    spans: list[tuple[int, int]]
    merged: int = 1
    script: str = "other"
    refused: str = ""  # why it cannot be a row: a reason, and after ': ' what was said


@dataclass
class Rows:
    """The rows of the data set, before they are shuffled; all lists are parallel."""

    path: Path
    account: Account = field(default_factory=Account)
    keys: list[bytes] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    merged: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    spans: list[tuple[int, ...]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # source names, by number
    clipped: Counter[str] = field(default_factory=Counter)  # rows cut to seq_length, by source
    doubled: int = 0  # rows that begin with two beginning-of-sequence ids
    per_source: dict[str, Account] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lengths)

    def supervised(self, row: int) -> int:
        spans = self.spans[row]
        return sum(spans[1::2]) - sum(spans[::2])


def response_turns(path: Path) -> Iterator[Turn]:
    """The turns of responses.parquet that carry sampled ids, in order, without Python lists of ids."""
    import numpy as np
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as table:
        for batch in table.iter_batches(batch_size=BATCH, columns=COLUMNS):
            names, sources, turns = (batch.column(number).to_pylist() for number in range(3))
            texts = pc.utf8_slice_codeunits(batch.column(3), 0, SAMPLE).to_pylist()
            prompts, outputs = batch.column(4), batch.column(5)
            prompt_at, output_at = prompts.offsets.to_numpy(), outputs.offsets.to_numpy()
            prompt_ids, output_ids = prompts.values.to_numpy(), outputs.values.to_numpy()
            for row, name in enumerate(names):
                prompt = prompt_ids[prompt_at[row] : prompt_at[row + 1]]
                output = output_ids[output_at[row] : output_at[row + 1]]
                ids = np.concatenate((prompt, output)).astype(np.int32, copy=False)
                spans = [(len(prompt), len(ids))]
                yield Turn(name, sources[row], int(turns[row]), ids, spans, script=script(texts[row] or ""))


def rendered_turns(path: Path, template: Template, tokenizer: Tokenizer) -> Iterator[Turn]:
    """The turns of responses.parquet that carry no sampled ids: borders from the template (see template.py).

    Rows that cannot be rendered come as refused: leading_assistant, template_error, template_unstable.
    """
    import numpy as np
    import orjson
    import pyarrow.parquet as pq

    from eyrie.tokens.template import TemplateError, Unstable

    columns = ["id", "source", "turn", "messages", "tools", "text", "reasoning", "tool_calls"]
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as table, ThreadPoolExecutor(1) as encoding:
        earlier: tuple[list[Turn], Future[list[tuple[list[int], int]]]] | None = None
        for batch in table.iter_batches(batch_size=BATCH, columns=columns):
            turns: list[Turn] = []
            parts: list[tuple[str, str]] = []
            for row in batch.to_pylist():
                none = np.zeros(0, dtype=np.int32)
                turn = Turn(row["id"], row["source"], int(row["turn"]), none, [], script=script(row["text"] or ""))
                turns.append(turn)
                history, tools = orjson.loads(row["messages"]), row["tools"] and orjson.loads(row["tools"])
                answer: dict[str, Any] = {"role": "assistant", "content": row["text"] or ""}
                if row["reasoning"]:
                    answer["reasoning"] = row["reasoning"]
                if row["tool_calls"]:
                    answer["tool_calls"] = orjson.loads(row["tool_calls"])
                if not any(message["role"] == "user" for message in history):
                    turn.refused = "leading_assistant"
                    continue
                try:
                    span = template.span(history, answer, tools)
                    parts.append((span.prompt, span.answer))
                except Unstable as error:
                    turn.refused = f"template_unstable: {error}"
                except TemplateError as error:
                    turn.refused = f"template_error: {error}"
            now = turns, encoding.submit(tokenizer.encode_parts, parts)  # beside the rendering of the next batch
            if earlier:
                yield from _with_ids(*earlier)
            earlier = now
        if earlier:
            yield from _with_ids(*earlier)


def _with_ids(turns: list[Turn], encoded: Future[list[tuple[list[int], int]]]) -> Iterator[Turn]:
    import numpy as np

    parts = iter(encoded.result())
    for turn in turns:
        if not turn.refused:
            ids, border = next(parts)
            turn.ids, turn.spans = np.asarray(ids, dtype=np.int32), [(border, len(ids))]
        yield turn


def merge(turns: Iterator[Turn]) -> Iterator[Turn]:
    """Join neighbouring turns of one conversation where the later prompt repeats the earlier row token for token.

    A template that strips the reasoning from history, or text that is tokenised otherwise than it was sampled, leaves
    them apart: one row per turn, which is always right.
    """
    import numpy as np

    held: Turn | None = None
    for turn in turns:
        if (
            held is not None
            and turn.spans
            and held.spans
            and turn.id == held.id
            and turn.source == held.source
            and turn.turn > held.turn
        ):
            size = len(held.ids)
            if turn.spans[0][0] >= size and np.array_equal(turn.ids[:size], held.ids):
                turn.spans, turn.merged = held.spans + turn.spans, held.merged + turn.merged
                held = turn
                continue
        if held is not None:
            yield held
        held = turn
    if held is not None:
        yield held


def collect(
    turns: Iterator[Turn],
    settings: Settings,
    size: int,
    scratch: Path,
    bos: int | None = None,
    pause: Callable[[], None] = lambda: None,
) -> tuple[Rows, Counts]:
    """Clip, drop and count rows; their ids go to `scratch` (int32, one row after the other).

    size: V. bos: the id that opens a text. The account counts turns.
    Raises EyrieError: 'token-outside' for an id that is no token of the target, 'nothing-supervised' when the first
    rows teach nothing.
    """
    import numpy as np

    rows, counts = Rows(scratch), Counts(size)
    numbers: dict[str, int] = {}
    position = 0
    with open(scratch, "wb") as stream:
        for count, turn in enumerate(turns):
            if count % BATCH == 0:
                pause()
            if count == PROBE_ROWS and not len(rows):
                raise _nothing(rows.account, count)
            where = f"{turn.source} {turn.id[:12]} turn {turn.turn}"
            accounts = (rows.account, rows.per_source.setdefault(turn.source, Account()))
            if len(turn.ids) and (int(turn.ids.min()) < 0 or int(turn.ids.max()) >= size):
                bad = next(int(token) for token in turn.ids if not 0 <= token < size)
                raise EyrieError(
                    f"token id {bad} lies outside the vocabulary of {size}.", where=where, code="token-outside"
                )
            reason, clipped = _clip(turn, settings)
            if turn.refused:
                reason, _, said = turn.refused.partition(": ")
                where = f"{where}: {said}" if said else where
            if reason:
                for book in accounts:
                    book.drop(reason, where, count=turn.merged)
                continue
            for book in accounts:
                book.keep(turn.merged)
            rows.clipped[turn.source] += clipped
            rows.doubled += bos is not None and turn.ids[:2].tolist() == [bos, bos]
            data = np.ascontiguousarray(turn.ids, dtype="<i4").tobytes()
            stream.write(data)
            number = numbers.setdefault(turn.source, len(numbers))
            rows.keys.append(hashlib.sha256(data).digest())
            rows.ids.append(turn.id)
            rows.sources.append(number)
            rows.turns.append(turn.turn)
            rows.merged.append(turn.merged)
            rows.offsets.append(position)
            rows.lengths.append(len(turn.ids))
            rows.spans.append(tuple(edge for span in turn.spans for edge in span))
            position += len(turn.ids)
            counts.add(turn, number)
        stream.flush()
        os.fsync(stream.fileno())
    rows.names = list(numbers)
    return rows, counts


def _nothing(account: Account, count: int) -> EyrieError:
    reasons = ", ".join(f"{reason} {number}" for reason, number in account.dropped.most_common(3))
    return EyrieError(
        f"supervised tokens = 0 in the first {count} rows.",
        why=f"Commonest reasons: {reasons}." if reasons else "",
        todo="Check the chat template and eyrie_tokens_seq_length: training on this would learn nothing.",
        code="nothing-supervised",
    )


def _clip(turn: Turn, settings: Settings) -> tuple[str, bool]:
    """Fit a row into seq_length; (reason to drop it or '', whether it was cut)."""
    limit, clipped = settings.seq_length, False
    if not turn.spans or all(end <= start for start, end in turn.spans):
        return "nothing_supervised", False
    if len(turn.ids) > limit:
        if turn.spans[0][0] >= limit:
            return "prompt_fills_window", False
        if settings.overlong == "drop":
            return "overlong", False
        turn.ids = turn.ids[:limit]
        turn.spans = [(start, min(end, limit)) for start, end in turn.spans if start < limit]
        clipped = True
    if sum(end - start for start, end in turn.spans) < settings.min_supervised:
        return "too_few_supervised", False
    return "", clipped


class Counts:
    """Token frequencies, int64 [V] each: supervised ones by source and by writing system, and all other positions."""

    def __init__(self, size: int):
        import numpy as np

        self.size = size
        self.context = np.zeros(size, dtype=np.int64)
        self.by_source: list[np.ndarray[Any, Any]] = []
        self.by_script: dict[str, np.ndarray[Any, Any]] = {}

    def add(self, turn: Turn, source: int) -> None:
        import numpy as np

        while len(self.by_source) <= source:
            self.by_source.append(np.zeros(self.size, dtype=np.int64))
        if turn.script not in self.by_script:
            self.by_script[turn.script] = np.zeros(self.size, dtype=np.int64)
        at = 0
        for start, end in turn.spans:
            np.add.at(self.by_source[source], turn.ids[start:end], 1)
            np.add.at(self.by_script[turn.script], turn.ids[start:end], 1)
            np.add.at(self.context, turn.ids[at:start], 1)
            at = end
        np.add.at(self.context, turn.ids[at:], 1)

    @property
    def supervised(self) -> np.ndarray[Any, Any]:
        import numpy as np

        return np.sum(self.by_source, axis=0) if self.by_source else np.zeros(self.size, dtype=np.int64)


def order(rows: Rows, seed: int) -> np.ndarray[Any, Any]:
    """Row numbers, shuffled by conversation: the turns of one stay together, so that a split by position (speculators'
    train / validation split) parts at most one conversation. Depends on ids and the seed only."""
    import numpy as np

    ranks = [
        hashlib.sha256(f"{seed} {rows.names[source]} {name}".encode()).digest()[:8]
        for source, name in zip(rows.sources, rows.ids, strict=True)
    ]
    weights = np.frombuffer(b"".join(ranks), dtype=">u8") if ranks else np.zeros(0, dtype=np.uint64)
    return np.lexsort((np.arange(len(rows)), np.asarray(rows.turns), weights))


def mask_of(spans: tuple[int, ...], length: int) -> np.ndarray[Any, Any]:
    """int8 [length], 1 within the spans (start, end, start, end, ...)."""
    import numpy as np

    mask = np.zeros(length, dtype=np.int8)
    for start, end in zip(spans[::2], spans[1::2], strict=True):
        mask[start:end] = 1
    return mask

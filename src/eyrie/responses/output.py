"""responses.parquet: the store's answers in the dataset's order, with exact books."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyrie.core.accounting import Account
from eyrie.core.atomic import fsync_dir
from eyrie.core.errors import EyrieError
from eyrie.responses.chat import (
    CONTENT_FILTER,
    OK,
    REASONING_ONLY,
    TOOL_CALLS,
    TRUNCATED,
    Answer,
    Asker,
)
from eyrie.responses.rows import BATCH, Catalog, Job, dataset_rows, job_of, replay
from eyrie.responses.settings import Settings
from eyrie.responses.store import Index, Store

TABLE = "responses.parquet"
ROWS_PER_GROUP = 1024
BYTES_PER_GROUP = 8 << 20


def schema() -> Any:
    """Arrow schema of responses.parquet (docs/architecture.md), and `sampling`: JSON of how the answer was sampled."""
    import pyarrow as pa

    ids = pa.list_(pa.int32())
    text = ("source", "messages", "tools", "text", "reasoning", "tool_calls", "finish_reason", "sampling")
    columns: dict[str, Any] = {"id": pa.string(), "turn": pa.int32(), "prompt_ids": ids, "output_ids": ids}
    columns |= dict.fromkeys(text, pa.string())
    order = ["id", "source", "turn", "messages", "tools", "prompt_ids", "output_ids", *text[3:]]
    return pa.schema([(name, columns[name]) for name in order])


def kept_kinds(settings: Settings) -> set[str]:
    """Kinds of answers that become rows under the settings' policies."""
    kinds = {OK, TOOL_CALLS}
    for kind, policy in (
        (TRUNCATED, settings.truncated),
        (CONTENT_FILTER, settings.content_filter),
        (REASONING_ONLY, settings.reasoning_only),
    ):
        if policy == "keep":
            kinds.add(kind)
    return kinds


@dataclass
class Books:
    """conversations: the stage's account. turns: the same for single turns. ended: why conversations ended early."""

    conversations: Account = field(default_factory=Account)
    turns: Account = field(default_factory=Account)
    ended: Counter[str] = field(default_factory=Counter)
    output_tokens: int = 0
    prompt_tokens: int = 0
    sources: dict[str, Account] = field(default_factory=dict)

    def figures(self) -> dict[str, Any]:
        """The books for the report: turns, sources, tokens."""
        return {
            "turns": self.turns.as_dict(),
            "ended_early": dict(sorted(self.ended.items())),
            "sources": {name: account.as_dict() for name, account in sorted(self.sources.items())},
            "output_tokens": self.output_tokens,
            "prompt_tokens": self.prompt_tokens,
        }

    def of(self, source: str) -> Account:
        return self.sources.setdefault(source, Account())


class TableWriter:
    """Writes rows to <path>.tmp in row groups; `close` makes it durable and gives it its name."""

    def __init__(self, path: Path, arrow_schema: Any, group: int = ROWS_PER_GROUP):
        import pyarrow.parquet as pq

        self.path, self.temporary = path, path.with_name(f".{path.name}.tmp")
        self._schema, self._group = arrow_schema, group
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0
        self._writer = pq.ParquetWriter(self.temporary, arrow_schema, compression="zstd")

    def add(self, row: dict[str, Any], size: int = 0) -> None:
        """size: bytes of the row, roughly; a group ends where memory would grow."""
        self._rows.append(row)
        self._bytes += size
        if len(self._rows) >= self._group or self._bytes >= BYTES_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
            self._rows, self._bytes = [], 0

    def close(self) -> None:
        self._flush()
        self._writer.close()
        fd = os.open(self.temporary, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(self.temporary, self.path)
        fsync_dir(self.path.parent)

    def abandon(self) -> None:
        self._writer.close()
        self.temporary.unlink(missing_ok=True)


def write(
    dataset: Path,
    out: Path,
    asker: Asker,
    store: Store,
    index: Index,
    known: Catalog,
    unresolved: dict[int, tuple[bool, str, str]],
    pause: Callable[[], None] = lambda: None,
) -> Books:
    """Write out/responses.parquet. Every dataset row ends in exactly one book. Raises EyrieError 'answers-missing'."""
    books, kinds = Books(), kept_kinds(asker.settings)
    table = TableWriter(out / TABLE, schema())
    try:
        for ordinal, row in dataset_rows(dataset):
            if ordinal % BATCH == 0:
                pause()
            source, where = str(row["source"]), f"{row['source']}:{row['row']}"
            if ordinal in known.bad:
                _drop(books, source, "bad_row", f"{where}: {known.bad[ordinal]}")
            elif known.repeated[ordinal]:
                _drop(books, source, "duplicate", where)
            else:
                job = replay(job_of(ordinal, row, asker), asker, store, index, keep=True)
                _settle(books, job, kinds, unresolved.get(ordinal), table)
    except BaseException:
        table.abandon()
        raise
    table.close()
    return books


def _drop(books: Books, source: str, reason: str, where: str) -> None:
    for account in (books.conversations, books.of(source)):
        account.drop(reason, where)


def _settle(books: Books, job: Job, kinds: set[str], trouble: tuple[bool, str, str] | None, table: TableWriter) -> None:
    """Book one conversation and write its rows."""
    if job.failure:
        trouble = (False, *job.failure)
    if not job.script.done and trouble is None:
        raise EyrieError(
            "a conversation has neither an answer nor a reason for having none.",
            where=job.where,
            todo="This is a defect in Eyrie: keep the store and report it.",
            code="answers-missing",
        )
    rows, first = 0, ""
    for turn, (answer, history) in enumerate(zip(job.answers, job.histories, strict=True)):
        if answer.kind in kinds:
            rows += 1
            books.turns.keep()
            books.output_tokens += len(answer.output_ids)
            books.prompt_tokens += len(answer.prompt_ids)
            table.add(
                _row(job, turn, answer, history), len(history) + 4 * len(answer.prompt_ids) + 9 * len(answer.output_ids)
            )
        else:
            first = first or answer.kind
            books.turns.drop(answer.kind, f"{job.where} of {turn}")
    lost = max(0, job.script.asked - sum(answer.kind != TOOL_CALLS for answer in job.answers))
    accounts = (books.conversations, books.of(job.source))
    if trouble:
        dropped, reason, why = trouble
        (books.turns.drop if dropped else books.turns.fail)(reason, why)
        lost -= 1
        books.ended[reason] += 1
    elif job.script.ended:
        books.ended[job.script.ended] += 1
    if lost > 0:
        books.turns.drop("not_reached", job.where, count=lost)
    for account in accounts:
        if rows:
            account.keep()
        elif trouble and not trouble[0]:
            account.fail(trouble[1], trouble[2])
        else:
            account.drop(trouble[1] if trouble else first, trouble[2] if trouble else job.where)


def _row(job: Job, turn: int, answer: Answer, history: str) -> dict[str, Any]:
    import numpy as np
    import orjson

    def text(value: Any) -> str | None:
        return orjson.dumps(value).decode() if value else None

    return {
        "id": job.id,
        "source": job.source,
        "turn": turn,
        "messages": history,
        "tools": text(job.script.tools),
        "prompt_ids": np.array(answer.prompt_ids, dtype=np.int32),
        "output_ids": np.array(answer.output_ids, dtype=np.int32),
        "text": answer.text,
        "reasoning": answer.reasoning,
        "tool_calls": text(answer.tool_calls),
        "finish_reason": answer.finish_reason,
        "sampling": text(answer.sampling),
    }

"""What a worker does with one task: read, adapt, limit, key, write parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyrie.dataset import part as parts
from eyrie.dataset import tasks
from eyrie.dataset.adapters import Adapter
from eyrie.dataset.book import Book
from eyrie.dataset.formats import Shape
from eyrie.dataset.keys import content_id, prompt_key, turns_key
from eyrie.dataset.readers import NO_NOTES, Document, Lines, Reader, Record, Yaml
from eyrie.dataset.settings import Source
from eyrie.dataset.tables import Csv, Table
from eyrie.dataset.values import Reject

#: reasons of adapters that mean an unreadable row rather than one of another shape
UNREADABLE = frozenset({"not_object"})


@dataclass
class Job:
    """What is the same for all tasks of a source."""

    name: str
    source: Source
    folder: Path
    seed: int = 0
    dedup_turns: int = 1
    permutations: int = 0
    max_prompt_tokens: int = 0
    max_conversation_tokens: int = 0
    tokenizer: str = ""
    trust_remote_code: bool = False


class Generated(Reader):
    """The project's own prompts."""

    def __init__(self, seed: int, rows: int):
        super().__init__(Path(), Shape("", "generated", ""))
        self.seed, self.rows = seed, rows

    def __iter__(self) -> Iterator[Record]:
        from eyrie.dataset.prompts import generated

        for number, row in enumerate(generated(self.seed, self.rows), 1):
            self.lines = number
            yield number, row, "", NO_NOTES


def reader(job: Job, task: tasks.Task, adapter: Adapter) -> Reader:
    """The reader of a task's stretch."""
    if job.source.kind == "generated":
        return Generated(job.seed, job.source.rows)
    path, shape = Path(task.path), Shape(**task.shape)
    if shape.kind in ("jsonl", "text"):
        return Lines(path, shape, task.start, task.end)
    if shape.kind in ("parquet", "arrow"):
        return Table(path, shape, adapter.columns, task.start, task.end)
    if shape.kind == "csv":
        return Csv(path, shape)
    if shape.kind == "yaml":
        return Yaml(path, shape, job.source.field)
    return Document(path, shape, job.source.field)


def run(job: Job, task: tasks.Task, report: Callable[[parts.Part], None]) -> None:
    """Do a task; `report` is called with each part, those that an earlier run left included."""
    adapter = Adapter(job.source, table=task.shape.get("kind") in ("parquet", "arrow"))
    source = reader(job, task, adapter)
    records, number, seen = iter(source), 0, 0
    while (done := parts.read(job.folder, f"{task.name}-{number:05d}")) is not None and parts.intact(job.folder, done):
        report(done)
        if done.last:
            return
        number, seen = number + 1, seen + done.records
    if seen:  # what was done is read again, not done again
        for _ in itertools.islice(records, seen):
            pass
    limit = job.source.rows - seen if job.source.rows else None
    stretch = Stretch(job, task, adapter, source, records, limit)
    while True:
        finished = stretch.part(f"{task.name}-{number:05d}")
        report(finished)
        if finished.last:
            return
        number += 1


class Stretch:
    """The rest of a task's records, taken in parts."""

    def __init__(
        self, job: Job, task: tasks.Task, adapter: Adapter, source: Reader, records: Iterator[Record], limit: int | None
    ):
        from eyrie.dataset.limits import Limits

        self.job, self.task, self.adapter, self.source = job, task, adapter, source
        self.records = records if limit is None else itertools.islice(records, limit)
        self.limits = Limits(job, task.file)

    def part(self, name: str) -> parts.Part:
        """Process records up to a part's size and write the part."""
        job = self.job
        book = Book()
        line_base, position = self.source.lines, self.source.position
        rows, records, last = self._rows(book, line_base)
        rows = self.limits.apply(rows, book)
        signatures = None
        if job.permutations:
            from eyrie.dataset.near import signatures_of

            signatures = signatures_of(rows, job.permutations)
        finished = [self._finished(row) for row in rows]
        book.entered += len(finished)
        book.kept += len(finished)
        return parts.write(
            job.folder,
            name,
            finished,
            signatures,
            records=records,
            lines=self.source.lines - line_base,
            book=book,
            read=self.source.position - position,
            last=last,
        )

    def _rows(self, book: Book, line_base: int) -> tuple[list[Any], int, bool]:
        """(rows, records seen, whether the stretch is at its end)."""
        file, whole, adapter = self.task.file, self.task.whole, self.adapter
        rows: list[Any] = []
        records, start = 0, self.source.position
        for line, value, fault, notes in self.records:
            line -= line_base
            ordinal = records
            records += 1
            if fault:
                book.fail(fault, file, line)
                continue
            mine = list(notes)
            try:
                messages, tools = adapter(value, mine)
            except Reject as reject:
                if reject.reason in UNREADABLE:
                    book.fail(reject.reason, file, line)
                else:
                    book.drop(reject.reason, file, line)
            else:
                rows.append((messages, tools, ordinal, line))
                if mine:
                    book.note(mine, file, line)
            if not whole and (records >= tasks.PART_ROWS or self.source.position - start >= tasks.PART_BYTES):
                return rows, records, False
        return rows, records, True

    def _finished(self, row: Any) -> parts.Row:
        import orjson

        messages, tools, ordinal, line = row
        text = orjson.dumps(messages)
        first = prompt_key(next(message["content"] for message in messages if message["role"] == "user"))
        key = first if self.job.dedup_turns == 1 else turns_key(messages, self.job.dedup_turns)
        return content_id(text, tools), first, key, ordinal, line, self.task.file, text, tools

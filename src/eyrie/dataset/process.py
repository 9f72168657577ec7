"""What a worker does with one task: read, adapt, limit, key, write parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyrie.dataset import part as parts
from eyrie.dataset import quick, tasks
from eyrie.dataset.adapters import Adapter
from eyrie.dataset.book import Book
from eyrie.dataset.formats import Shape
from eyrie.dataset.keys import content_id, prompt_key, turns_key
from eyrie.dataset.limits import Limits
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
    if job.source.rows:
        records = itertools.islice(records, job.source.rows - seen)
    stretch = Stretch(job, task, adapter, source, records)
    while True:
        finished = stretch.part(f"{task.name}-{number:05d}")
        report(finished)
        if finished.last:
            return
        number += 1


class Stretch:
    """The rest of a task's records, taken in parts."""

    def __init__(self, job: Job, task: tasks.Task, adapter: Adapter, source: Reader, records: Iterator[Record]):
        self.job, self.task, self.adapter, self.source, self.records = job, task, adapter, source, records
        self.limits = Limits(job, task.file)
        self.short = quick.way(adapter)

    def part(self, name: str) -> parts.Part:
        """Process records up to a part's size and write the part."""
        book, rows = Book(), parts.Rows(self.task.file)
        line_base, position = self.source.lines, self.source.position
        signatures = None
        if self.limits.active or self.job.permutations:
            waiting: list[Any] = []
            records, last = self._read(book, line_base, lambda *row: waiting.append(row))
            waiting = self.limits.apply(waiting, book)
            if self.job.permutations:
                from eyrie.dataset.near import signatures_of

                signatures = signatures_of(waiting, self.job.permutations)
            add = self._adder(rows)
            for row in waiting:
                add(*row)
        else:
            records, last = self._read(book, line_base, self._adder(rows))
        book.entered += len(rows)
        book.kept += len(rows)
        figures = {"lines": self.source.lines - line_base, "read": self.source.position - position}
        return parts.write(self.job.folder, name, rows, signatures, records=records, book=book, last=last, **figures)

    def _read(self, book: Book, line_base: int, add: Callable[..., None]) -> tuple[int, bool]:
        """Adapt records and hand over (messages, tools, ordinal, line); (records seen, whether that was the end)."""
        file, adapter, short, source = self.task.file, self.adapter, self.short, self.source
        rows_limit = 0 if self.task.whole else tasks.PART_ROWS
        bytes_limit = source.position + tasks.PART_BYTES
        ordinal = -1
        for line, value, fault, notes in self.records:
            line -= line_base
            ordinal += 1
            if not (fault or notes) and (plain := short(value)) is not None:
                add(plain, None, ordinal, line)
            elif fault:
                book.fail(fault, file, line)
            else:
                mine = list(notes)
                try:
                    messages, tools = adapter(value, mine)
                except Reject as reject:
                    (book.fail if reject.reason in UNREADABLE else book.drop)(reject.reason, file, line)
                else:
                    add(messages, tools, ordinal, line)
                    if mine:
                        book.note(mine, file, line)
            if rows_limit and (ordinal + 1 >= rows_limit or source.position >= bytes_limit):
                return ordinal + 1, False
        return ordinal + 1, True

    def _adder(self, rows: parts.Rows) -> Callable[..., None]:
        """A function that keys a conversation and appends it to the rows."""
        import orjson

        turns = self.job.dedup_turns
        dumps = orjson.dumps
        ids, firsts, keys = rows.ids.append, rows.firsts.append, rows.keys.append
        ordinals, lines, texts, schemas = (
            rows.ordinals.append,
            rows.lines.append,
            rows.conversations.append,
            rows.tools.append,
        )

        def add(messages: list[dict[str, Any]], tools: str | None, ordinal: int, line: int) -> None:
            text = dumps(messages)
            for message in messages:
                if message["role"] == "user":
                    first = prompt_key(message["content"])
                    break
            ids(content_id(text, tools))
            firsts(first)
            keys(first if turns == 1 else turns_key(messages, turns))
            ordinals(ordinal)
            lines(line)
            texts(text)
            schemas(tools)

        return add

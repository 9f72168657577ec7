"""What a worker does with one task: read, adapt, limit, key, write parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyrie.dataset import part as parts
from eyrie.dataset import quick, tasks, verbatim
from eyrie.dataset.adapters import Adapter
from eyrie.dataset.block import Block
from eyrie.dataset.book import Book
from eyrie.dataset.formats import Shape
from eyrie.dataset.keys import prompt_key, text_keys, turns_key
from eyrie.dataset.limits import Limits
from eyrie.dataset.readers import NO_NOTES, Document, Lines, Reader, Record, Yaml, parse
from eyrie.dataset.settings import Source
from eyrie.dataset.tables import Csv, Table
from eyrie.dataset.values import Reject

#: reasons of adapters that mean an unreadable row rather than one of another shape
UNREADABLE = frozenset({"not_object"})
#: rows of a stretch that are tried by the shortest way before it is given up as not theirs
TRIED = 64


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
    number = seen = lines = 0
    while (done := parts.read(job.folder, f"{task.name}-{number:05d}")) is not None and parts.intact(job.folder, done):
        report(done)
        if done.last:
            return
        number, seen, lines = number + 1, seen + done.records, lines + done.lines
    stretch = Stretch(job, task, adapter, source, seen, lines)
    while True:
        finished = stretch.part(f"{task.name}-{number:05d}")
        report(finished)
        if finished.last:
            return
        number += 1


def _behind(source: Reader, lines: int) -> Iterator[bytes]:
    """The blocks of lines behind so many lines, which are read here."""
    assert isinstance(source, Lines)
    blocks = source.blocks()
    while source.lines < lines and (data := next(blocks, None)) is not None:
        held = data.split(b"\n")
        known = min(len(held), lines - source.lines)
        source.lines += known
        if known < len(held):
            return itertools.chain([b"\n".join(held[known:])], blocks)
    return blocks


class Stretch:
    """The rest of a task's records, taken in parts. What an earlier run did of them is read again, not done again.

    seen, lines: records and lines of the parts that are there.
    """

    def __init__(self, job: Job, task: tasks.Task, adapter: Adapter, source: Reader, seen: int, lines: int):
        self.job, self.task, self.adapter, self.source = job, task, adapter, source
        self.limits = Limits(job, task.file)
        self.short = quick.way(adapter)
        self.looks_inside = bool(self.limits.active or job.permutations or job.dedup_turns > 1)
        self.plain = None if self.looks_inside or job.source.rows else self._plain()
        if self.plain is not None:
            self.blocks = _behind(source, lines)
        else:
            self.records = iter(source)
            for _ in itertools.islice(self.records, seen):
                pass
            if job.source.rows:
                self.records = itertools.islice(self.records, job.source.rows - seen)

    def part(self, name: str) -> parts.Part:
        """Process records up to a part's size and write the part."""
        book, rows = Book(), parts.Rows(self.task.file)
        line_base, position = self.source.lines, self.source.position
        signatures = None
        if self.looks_inside:
            waiting: list[Any] = []
            records, last = self._read(book, line_base, lambda *row: waiting.append(row))
            waiting = self.limits.apply(waiting, book)
            if self.job.permutations:
                from eyrie.dataset.near import signatures_of

                signatures = signatures_of(waiting, self.job.permutations)
            add = self._adder(rows)
            for row in waiting:
                add(*row)
        elif self.plain is not None:
            records, last = self._read_lines(book, rows, self.plain)
        else:
            records, last = self._read(book, line_base, self._adder(rows))
        book.entered += len(rows)
        book.kept += len(rows)
        figures = {"lines": self.source.lines - line_base, "read": self.source.position - position}
        return parts.write(self.job.folder, name, rows, signatures, records=records, book=book, last=last, **figures)

    def _plain(self) -> verbatim.Way | None:
        """The shortest way, where the records are lines of JSON."""
        if isinstance(self.source, Lines) and self.source.shape.kind == "jsonl":
            return verbatim.way(self.adapter)
        return None

    def _read_lines(self, book: Book, rows: parts.Rows, plain: verbatim.Way) -> tuple[int, bool]:
        """Take JSON lines, each by the shortest way that it allows; (records seen, whether that was the end)."""
        import numpy as np

        source, add = self.source, self._adder(rows)
        base, bytes_limit = source.lines, source.position + tasks.PART_BYTES
        number = blank = misses = 0
        way: verbatim.Way | None = plain
        for data in self.blocks:
            block = Block(data)
            hits, rest = way.block(block) if way else ([], list(range(block.count)))
            lines = zip(rest, block.lines(rest), strict=True)
            others = {place: line for place, line in lines if line and not line.isspace()}
            blanks = [place for place in rest if place not in others]
            places = np.arange(block.count)
            ordinals = places + (number - blank) - np.searchsorted(blanks, places)
            mine = np.delete(places, rest)
            rows.conversations += [text for text, _ in hits]
            rows.firsts += text_keys([first for _, first in hits])
            rows.ordinals.frombytes(ordinals[mine].tobytes())
            rows.lines.frombytes((mine + number + 1).tobytes())
            for place, line in others.items():
                self._take(*parse(line), int(ordinals[place]), number + place + 1, book, add)
            number, blank, misses = number + block.count, blank + len(blanks), misses + len(others)
            source.lines = base + number
            if misses > TRIED and misses * 2 > number:
                way = None  # these rows are not of that kind: only time would be lost
            if not self.task.whole and (number >= tasks.PART_ROWS or source.position >= bytes_limit):
                return number - blank, False
        return number - blank, True

    def _read(self, book: Book, line_base: int, add: Callable[..., None]) -> tuple[int, bool]:
        """Adapt records and hand over (messages, tools, ordinal, line); (records seen, whether that was the end)."""
        source = self.source
        rows_limit = 0 if self.task.whole else tasks.PART_ROWS
        bytes_limit = source.position + tasks.PART_BYTES
        ordinal = -1
        for line, value, fault, notes in self.records:
            ordinal += 1
            self._take(value, fault, notes, ordinal, line - line_base, book, add)
            if rows_limit and (ordinal + 1 >= rows_limit or source.position >= bytes_limit):
                return ordinal + 1, False
        return ordinal + 1, True

    def _take(
        self, value: Any, fault: str, notes: list[str], ordinal: int, line: int, book: Book, add: Callable[..., None]
    ) -> None:
        """One record: by the short way, by the adapter, or into the books."""
        if not (fault or notes) and (plain := self.short(value)) is not None:
            add(plain, None, ordinal, line)
        elif fault:
            book.fail(fault, self.task.file, line)
        else:
            mine = list(notes)
            try:
                messages, tools = self.adapter(value, mine)
            except Reject as reject:
                (book.fail if reject.reason in UNREADABLE else book.drop)(reject.reason, self.task.file, line)
            else:
                add(messages, tools, ordinal, line)
                if mine:
                    book.note(mine, self.task.file, line)

    def _adder(self, rows: parts.Rows) -> Callable[..., None]:
        """A function that keys a conversation and appends it to the rows."""
        import orjson

        turns = self.job.dedup_turns
        dumps = orjson.dumps

        def add(messages: list[dict[str, Any]], tools: str | None, ordinal: int, line: int) -> None:
            text = dumps(messages)
            schemas = tools.encode() if tools else b""
            for message in messages:
                if message["role"] == "user":
                    rows.firsts += prompt_key(message["content"])
                    break
            if turns > 1:
                rows.keys += turns_key(messages, turns)
            if schemas:
                rows.tools[len(rows)] = schemas
            rows.ordinals.append(ordinal)
            rows.lines.append(line)
            rows.conversations.append(text)

        return add

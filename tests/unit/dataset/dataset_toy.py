"""Small sources for the tests: write rows, read them through the real readers, adapters and parts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyrie.core import spec
from eyrie.dataset import part as parts
from eyrie.dataset import process, tasks
from eyrie.dataset.book import Book
from eyrie.dataset.settings import Source
from eyrie.dataset.unit import Unit


@dataclass
class Read:
    """What a source gave: conversations by row, the books, the places of each reason."""

    rows: list[dict[str, Any]]
    book: Book
    examples: dict[str, list[str]] = field(default_factory=dict)

    def roles(self) -> list[list[str]]:
        return [[turn["role"] for turn in row["conversation"]] for row in self.rows]

    def texts(self) -> list[list[str]]:
        return [[turn["content"] for turn in row["conversation"]] for row in self.rows]

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.book.dropped)

    @property
    def failed(self) -> dict[str, int]:
        return dict(self.book.failed)

    @property
    def notes(self) -> dict[str, int]:
        return dict(self.book.notes)


def source(**entry: Any) -> Source:
    return spec.load(Source, {"kind": "local", "adapter": "messages", "path": "unused", **entry}, "registry.toy")


def read(paths: list[Path] | Path, folder: Path, job: dict[str, Any] | None = None, **entry: Any) -> Read:
    """Read files as one source, in this process."""
    files = [(path.name, path) for path in ([paths] if isinstance(paths, Path) else paths)]
    mine = source(**entry)
    folder.mkdir(parents=True, exist_ok=True)
    unit = Unit("toy", mine, folder, folder / "state.json", folder / "log")
    unit.files, unit.fingerprint = files, "f" * 64
    unit.folder.mkdir(parents=True, exist_ok=True)
    unit.tasks = tasks.cut("toy", mine, files)
    for task in unit.tasks:
        process.run(
            process.Job("toy", mine, unit.folder, **(job or {})), task, unit.done.setdefault(task.index, []).append
        )
    return Read(rows_of(unit), unit.book(), places(unit))


def places(unit: Unit) -> dict[str, list[str]]:
    """Places of every reason and note as file:line."""
    book = unit.book()
    return {reason: [f"{unit.files[file][0]}:{line}" for file, line in found] for reason, found in book.places.items()}


def rows_of(unit: Unit) -> list[dict[str, Any]]:
    """The rows of a unit's parts in the order of the source."""
    rows = []
    for part, records, lines in unit.bases():
        assert parts.intact(unit.folder, part)
        numbers = (parts.column(unit.folder, part, name).tolist() for name in ("id", "row", "line"))
        tools = parts.texts(unit.folder, part, "tools") if "tool_size" in part.columns else [b""] * part.rows
        for key, row, line, text, schemas in zip(*numbers, parts.texts(unit.folder, part), tools, strict=True):
            conversation = json.loads(text)
            assert isinstance(conversation, list)
            rows.append(
                {
                    "id": key,
                    "conversation": conversation,
                    "tools": schemas.decode() or None,
                    "row": row + records,
                    "line": line + lines,
                    "file": part.file,
                }
            )
    return sorted(rows, key=lambda row: row["row"])


def jsonl(path: Path, rows: list[Any]) -> Path:
    """Write rows as JSON lines; text and bytes are written as they are."""
    with open(path, "wb") as stream:
        for row in rows:
            line = row if isinstance(row, bytes) else row.encode() if isinstance(row, str) else json.dumps(row).encode()
            stream.write(line + b"\n")
    return path


def chat(*texts: str | None, first: str = "user", **extra: Any) -> dict[str, Any]:
    """A row whose turns alternate between user and assistant."""
    roles = ["user", "assistant"] if first == "user" else ["assistant", "user"]
    turns = [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]
    return {"messages": turns, **extra}

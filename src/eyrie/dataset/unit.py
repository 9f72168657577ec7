"""A source's unit: its own folder of parts, state, log and verdict. Sources never touch each other's."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyrie.core import atomic, spec
from eyrie.core.accounting import Account
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import fingerprint, short
from eyrie.dataset import part as parts
from eyrie.dataset.book import Book
from eyrie.dataset.settings import Settings, Source
from eyrie.dataset.tasks import Task

FORMAT = 4  # of parts; raise it when the same rows would become other bytes
PENDING, FETCHING, RUNNING, DONE, FAILED = "pending", "fetching", "running", "done", "failed"


@dataclass
class Unit:
    """One source in this run.

    files: [(name, path)] in order; digests: their SHA-256 by name; revision: the hub commit.
    """

    name: str
    source: Source
    store: Path
    state_path: Path
    log_path: Path
    status: str = PENDING
    files: list[tuple[str, Path]] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    revision: str = ""
    fingerprint: str = ""
    tasks: list[Task] = field(default_factory=list)
    done: dict[int, list[parts.Part]] = field(default_factory=dict)
    error: EyrieError | None = None
    started: float = 0.0
    reused: bool = False

    @property
    def folder(self) -> Path:
        return self.store / f"{self.name}-{short(self.fingerprint)}"

    @property
    def record_path(self) -> Path:
        return self.folder / "unit.json"

    def identify(self, settings: Settings, tokenizer: str) -> None:
        """The fingerprint of this source's parts: what it holds and how it is read, not what is mixed of it."""
        limits = (settings.max_prompt_tokens, settings.max_conversation_tokens)
        entry = spec.identity(self.source)
        for name in ("repository", "revision", "config", "split", "package", "files"):
            entry.pop(name)  # the files' contents stand for these
        self.fingerprint = fingerprint(
            {
                "format": FORMAT,
                "entry": entry,
                "files": [self.digests[name] for name, _ in self.files],
                "seed": settings.seed if self.source.kind == "generated" else None,
                "limits": [*limits, tokenizer if any(limits) else ""],
                "dedup_turns": settings.dedup_turns,
                "minhash": settings.minhash_permutations if settings.dedup == "minhash" else 0,
            }
        )

    def bases(self) -> list[tuple[parts.Part, int, int]]:
        """[(part, rows of the source before it, lines of its file before it)]."""
        out, records, lines, file = [], 0, 0, -1
        for index, task in enumerate(self.tasks):
            if task.file != file:
                lines, file = 0, task.file
            for part in self.done.get(index, []):
                out.append((part, records, lines))
                records += part.records
                lines += part.lines
        return out

    def book(self) -> Book:
        """The whole source's book, places in lines of the files."""
        whole = Book()
        for part, _, lines in self.bases():
            whole.merge(part.book, lines)
        return whole

    def account(self) -> Account:
        return self.book().account([name for name, _ in self.files] or ["generated"])

    def load(self) -> bool:
        """Take the parts of an earlier run of the same unit, if all are there and intact."""
        record = atomic.read_json(self.record_path)
        if not isinstance(record, dict) or record.get("fingerprint") != self.fingerprint:
            return False
        found: dict[int, list[parts.Part]] = {}
        for index, names in enumerate(record["parts"]):
            for name in names:
                part = parts.read(self.folder, name)
                if part is None or not parts.intact(self.folder, part):
                    return False
                found.setdefault(index, []).append(part)
        self.tasks = [Task(**task) for task in record["tasks"]]
        self.done, self.status, self.reused = found, DONE, True
        return True

    def finish(self) -> None:
        """Vouch for the unit. Its parts vouch for themselves, by their checksums."""
        atomic.write_json(
            self.record_path,
            {
                "fingerprint": self.fingerprint,
                "source": self.name,
                "revision": self.revision,
                "files": self.digests,
                "tasks": [task.__dict__ for task in self.tasks],
                "parts": [[part.name for part in self.done.get(index, [])] for index in range(len(self.tasks))],
                "finished": time.time(),
            },
        )

    def say(self, status: str, error: EyrieError | None = None, **figures: Any) -> None:
        """Write the unit's state and one line of its log."""
        now = time.time()
        self.status, self.error = status, error
        self.started = self.started or now
        state = {
            "source": self.name,
            "status": status,
            "fingerprint": self.fingerprint,
            "revision": self.revision,
            "seconds": round(now - self.started, 3),
            "error": error.as_dict() if error else None,
            "updated": now,
            **figures,
        }
        if status == DONE:
            state["account"] = self.account().as_dict()
            state["notes"] = dict(self.book().notes)
        self.state_path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.state_path.with_suffix(".tmp")  # for people: not worth waiting for the disk
        temporary.write_text(json.dumps(state, indent=2, sort_keys=True, ensure_ascii=False), "utf-8")
        os.replace(temporary, self.state_path)
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}Z {status}"
        line += "".join(f" {key}={value}" for key, value in figures.items())
        self.log(f"{line} {error}" if error else line)

    def log(self, line: str) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log_path, "a", encoding="utf-8") as stream:
            stream.write(line + "\n")

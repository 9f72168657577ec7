"""What the stage leaves for the trainer: one line per row, and links into the content store."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.core.stage import Work
from eyrie.hidden_states.corpus import Row
from eyrie.hidden_states.store import Store

NAME = "manifest.jsonl"
LINKS = "states"


def write(out: Path, store: Store, rows: list[Row], work: Work) -> int:
    """manifest.jsonl and states/hs_<row>.safetensors; returns the bytes of all states referred to."""
    work.progress.start("link", len(rows), "rows")
    staged = out / f".{LINKS}.new"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    entries = {entry.key: entry for entry in store.entries()}
    lines, size, counted = [], 0, set()
    for row in rows:
        entry = entries.get(row.key)
        if entry is None:
            raise EyrieError(
                f"row {row.row} has no states in the store.", where=row.key, code="states-missing", todo="Run again."
            )
        os.symlink(os.path.relpath(store.file(row.key), out / LINKS), staged / f"hs_{row.row}.safetensors")
        lines.append(
            json.dumps(
                {
                    "row": row.row,
                    "key": row.key,
                    "length": entry.tokens,
                    "bytes": entry.bytes,
                    "dtype": entry.dtype,
                    "layers": entry.layers,
                    "checksum": entry.checksum,
                }
            )
        )
        if row.key not in counted:
            counted.add(row.key)
            size += entry.bytes
    shutil.rmtree(out / LINKS, ignore_errors=True)
    os.replace(staged, out / LINKS)
    atomic.write_text(out / NAME, "\n".join(lines) + "\n")
    work.progress.update(len(rows))
    return size


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a manifest."""
    with open(path, encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)

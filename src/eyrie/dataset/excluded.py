"""Prompts that must not be in training: open evaluation prompts, files, and registry entries (benchmarks)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.dataset import formats, readers
from eyrie.dataset import part as parts
from eyrie.dataset.keys import prompt_key
from eyrie.dataset.turn import role_of
from eyrie.dataset.unit import Unit
from eyrie.dataset.values import Reject, is_null, text_of

COLUMNS = ("prompt", "turns", "question", "instruction", "query", "text", "messages", "conversations", "conversation")


def from_files(paths: list[Path]) -> list[str]:
    """First user turns of files with prompts: JSON, JSONL or text, one prompt a row."""
    out: list[str] = []
    for path in paths:
        shape = formats.shape(path)
        if shape.kind in ("jsonl", "text"):
            rows: Any = readers.Lines(path, shape, 0, path.stat().st_size)
        elif shape.kind == "json":
            rows = readers.Document(path, shape)
        else:
            raise EyrieError(
                f"{shape.kind} files are not read as excluded prompts.", where=str(path), code="exclude-kind"
            )
        for line, value, fault, _ in rows:
            text = None if fault else prompt_of(value)
            if text is None:
                raise EyrieError(
                    "this row holds no prompt, so what it stands for could not be kept out of training.",
                    where=f"{path}:{line}",
                    todo=f"Give it one of the columns {', '.join(COLUMNS)}, or remove the row.",
                    code="exclude-row",
                )
            out.append(text)
    return out


def prompt_of(value: Any) -> str | None:
    """The first user turn of a row in any of the usual benchmark layouts, else None."""
    try:
        if isinstance(value, str):
            return value.strip() or None
        if isinstance(value, list):
            return _first_turn(value)
        if isinstance(value, dict):
            for name in COLUMNS:
                if not is_null(value.get(name)):
                    found = value[name]
                    return _first_turn(found) if isinstance(found, list) else text_of(found)
    except Reject:
        return None
    return None


def _first_turn(turns: list[Any]) -> str | None:
    for turn in turns:
        if not isinstance(turn, dict):
            return text_of(turn)
        role = next((turn[key] for key in ("role", "from") if not is_null(turn.get(key))), "user")
        if role_of(role) == "user":
            return text_of(next(turn[key] for key in ("content", "value") if not is_null(turn.get(key))))
    return None


def from_units(units: list[Unit]) -> list[str]:
    """First user turns of sources that serve as benchmarks."""
    import orjson

    out: list[str] = []
    for unit in units:
        for part, _, _ in unit.bases():
            for text in parts.texts(unit.folder, part):
                out.append(next(turn["content"] for turn in orjson.loads(text) if turn["role"] == "user"))
    return out


def keys(texts: list[str], units: list[Unit]) -> Any:
    """Keys of all of them as uint64 [n, 2]."""
    import numpy as np

    from eyrie.dataset import mix

    mine = np.frombuffer(b"".join(map(prompt_key, texts)), dtype=">u8").reshape(-1, 2).astype(np.uint64)
    return np.concatenate([mine, mix.load(units).first.reshape(-1, 2)]) if units else mine

"""Prompt sets: what the dataset stage held back, and question files of the operator's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyrie.benchmark.settings import PromptFile, Settings
from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import fingerprint

#: names under which question files keep the question, beside `turns` and `messages`
ASKED = ("prompt", "question", "instruction")


@dataclass
class PromptSet:
    """Prompts of one set. rows: [{'messages', 'tools'}]; skipped: reason -> count."""

    name: str
    source: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def as_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "prompts": len(self.texts),
            "skipped": self.skipped,
            "mean_tokens": sum(self.tokens) / len(self.tokens) if self.tokens else 0.0,
            "digest": fingerprint(self.texts),
        }


def first_turn(messages: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The messages up to and with the first user's; None without one."""
    for place, message in enumerate(messages):
        if message.get("role") == "user":
            return [_plain(item) for item in messages[: place + 1]]
        if message.get("role") == "assistant":
            return None
    return None


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if value is not None and key in ("role", "content", "name")}


def from_table(path: Path, wanted: set[str]) -> dict[str, PromptSet]:
    """The sets of the dataset stage's eval.parquet."""
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=["set", "conversation", "tools"])
    sets = {name: PromptSet(name, "eval.parquet") for name in sorted(wanted)}
    columns = [table.column(name).to_pylist() for name in ("set", "conversation", "tools")]
    for name, conversation, tools in zip(*columns, strict=True):
        if name not in sets:
            continue
        messages = first_turn(json.loads(conversation))
        if messages is None:
            sets[name].skip("no user turn")
        else:
            sets[name].rows.append({"messages": messages, "tools": json.loads(tools) if tools else None})
    return sets


def from_file(entry: PromptFile, path: Path) -> PromptSet:
    """A question file; every line that cannot be used is counted by reason."""
    found = PromptSet(entry.name, path.name)
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise EyrieError(
            f"the prompt file {entry.name!r} cannot be read.",
            where=str(path),
            why=str(error),
            code="prompt-file-unreadable",
            todo="Name it in eyrie_benchmark_prompt_files (the benchmark role copies it there).",
        ) from None
    for row in _questions(lines, found):
        found.rows.append({"messages": row, "tools": None})
        if entry.limit and len(found.rows) >= entry.limit:
            break
    return found


def _questions(lines: list[str], found: PromptSet) -> Iterator[list[dict[str, Any]]]:
    for line in lines:
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError:
            found.skip("not JSON")
            continue
        messages = as_messages(value)
        if messages is None:
            found.skip("no question")
        else:
            yield messages


def as_messages(value: Any) -> list[dict[str, Any]] | None:
    """The first turn's messages of a line; None when it asks nothing.

    Forms: {'turns': [...]} (MT-bench, and other sets as EAGLE's repository ships them), {'messages': [...]},
    {'prompt': text} (HumanEval), {'question': text} (GSM8K), {'instruction': text, 'input': text} (Alpaca).
    """
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("messages"), list) and all(isinstance(item, dict) for item in value["messages"]):
        return first_turn(value["messages"])
    turns = value.get("turns")
    known = [turns[0] if isinstance(turns, list) and turns else None, *(value.get(name) for name in ASKED)]
    text = next((item for item in known if isinstance(item, str) and item.strip()), None)
    if text is None:
        return None
    more = value.get("input") if text is value.get("instruction") else None
    if isinstance(more, str) and more.strip():
        text = f"{text}\n\n{more}"
    return [{"role": "user", "content": text}]


def gather(settings: Settings, table: Path, needed: dict[str, int]) -> dict[str, PromptSet]:
    """All sets that cells need, before rendering."""
    files = {entry.name: entry for entry in settings.prompt_files}
    held_back = set(needed) - set(files)
    sets = from_table(table, held_back) if held_back else {}
    for name in needed:
        if name in files:
            sets[name] = from_file(files[name], settings.path(files[name]))
    for name, found in sets.items():
        if not found.rows:
            raise EyrieError(
                f"the prompt set {name!r} is empty.",
                where=found.source,
                why=", ".join(f"{reason} {count}" for reason, count in found.skipped.items()) or "it has no rows",
                code="prompt-set-empty",
                todo="Take it out of eyrie_benchmark_grid, or make the dataset stage hold prompts back.",
            )
    return sets


def take(found: PromptSet, rendered: list[dict[str, Any]], needed: int, room: int) -> None:
    """Keep the first `needed` rendered prompts of at most `room` tokens, in order; count what is too long."""
    for item in rendered:
        if len(found.texts) >= needed:
            break
        if item["tokens"] > room:
            found.skip("longer than the server's context")
            continue
        found.texts.append(item["text"])
        found.tokens.append(item["tokens"])
    if not found.texts:
        raise EyrieError(
            f"no prompt of the set {found.name!r} fits into {room} tokens.", where=found.source, code="prompt-set-empty"
        )


def write(found: PromptSet, count: int, path: Path) -> bool:
    """Write `count` prompts as vLLM's custom dataset; True when prompts had to be repeated to reach it."""
    rows = [found.texts[number % len(found.texts)] for number in range(count)]
    atomic.write_text(path, "".join(json.dumps({"prompt": text}) + "\n" for text in rows))
    return count > len(found.texts)

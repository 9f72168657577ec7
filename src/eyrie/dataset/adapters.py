"""Adapters: from a row of a stated schema to a canonical conversation. Explicit, no guessing.

| adapter       | the row holds                                                                    |
|---------------|----------------------------------------------------------------------------------|
| `messages`    | a list of turns {role, content, ...}                                             |
| `sharegpt`    | a list of turns {from, value}                                                    |
| `pair`        | a question (with an optional `input` column behind it) and its answer            |
| `prompt`      | a question alone; of a list the first one                                        |
| `alternating` | a list of texts, user and assistant by turns; the row itself or one column       |
| `hermes`      | `sharegpt` with calls in <tool_call>, results in <tool_response>, tools as text  |

Both turn schemas may stand in one row with nulls in the other's place; the first that is not null counts, and two
different values reject the row. An entry's `columns` names other columns, and `role` / `content` other keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eyrie.dataset import canonical
from eyrie.dataset.settings import Source
from eyrie.dataset.tools import canonical_tools, hermes_calls, hermes_results
from eyrie.dataset.turn import REASONING_KEYS, Style, role_of
from eyrie.dataset.values import Reject, is_null, parsed, text_of

Row = Any
Adapted = tuple[list[dict[str, Any]], str | None]

CONVERSATION = {
    "messages": ("messages", "conversations", "conversation"),
    "sharegpt": ("conversations", "conversation", "messages"),
    "hermes": ("conversations", "conversation", "messages"),
    "alternating": ("conversation", "conversations", "dialog", "turns"),
}
PROMPT = ("prompt", "instruction", "question", "query", "problem")
INPUT = ("input",)
RESPONSE = ("response", "output", "answer", "solution", "completion")
SYSTEM = ("system", "system_prompt")
TOOLS = ("tools",)


class Adapter:
    """A source's adapter, with its columns resolved once."""

    def __init__(self, source: Source, table: bool = False):
        columns = source.columns
        kind = source.adapter
        own = (columns["role"],) if "role" in columns else ()
        text = (columns["content"],) if "content" in columns else ()
        first = ("from", "role") if kind in ("sharegpt", "hermes") else ("role", "from")
        second = ("value", "content") if kind in ("sharegpt", "hermes") else ("content", "value")
        self.style = Style(
            own or first, text or second, tuple(source.think), tuple(source.answer), source.max_turns, table
        )
        self.conversation = self._names(columns, "conversation", CONVERSATION.get(kind, ()))
        self.prompt = self._names(columns, "prompt", PROMPT)
        self.input = self._names(columns, "input", INPUT)
        self.response = self._names(columns, "response", RESPONSE)
        self.system = self._names(columns, "system", SYSTEM)
        self.tools = self._names(columns, "tools", TOOLS)
        self.reasoning = self._names(columns, "reasoning", REASONING_KEYS)
        named = (self.conversation, self.prompt, self.input, self.response, self.system, self.tools, self.reasoning)
        #: columns that are looked at; a table's others are not read
        self.columns = {name for names in named for name in names} | {"metadata"}
        self.table = table
        self._turns: Callable[[Row, list[str]], list[Any]] = getattr(self, f"_{kind}")
        self.kind = kind

    @staticmethod
    def _names(columns: dict[str, str], role: str, default: tuple[str, ...]) -> tuple[str, ...]:
        if role not in columns:
            return default
        return (columns[role],) if columns[role] else ()

    def __call__(self, row: Row, notes: list[str]) -> Adapted:
        """(messages, tools as JSON text or None); raises Reject(reason)."""
        if not isinstance(row, dict):
            row = self._named(row)
        turns = self._turns(row, notes)
        meta = row.get("metadata")
        thoughts = [row.get(name) for name in self.reasoning]
        if isinstance(meta, dict):
            thoughts += [meta.get(name) for name in REASONING_KEYS]
        messages = canonical.build(turns, notes, self.style, self._first(row, self.system), thoughts)
        if self.kind == "prompt" and "ends_with_user" in notes:
            notes.remove("ends_with_user")  # which is what such a source is
        return messages, canonical_tools(self._first(row, self.tools), self.table)

    def _named(self, row: Row) -> dict[str, Any]:
        """A bare text (`prompt`) or a bare list of texts (`alternating`) under its column's name."""
        if self.kind == "prompt" and isinstance(row, str):
            return {self.prompt[0]: row}
        if self.kind == "alternating" and isinstance(row, list):
            return {self.conversation[0]: row}
        raise Reject("not_object")

    @staticmethod
    def _first(row: dict[str, Any], names: tuple[str, ...]) -> Any:
        """The first of these columns that is not null."""
        for name in names:
            value = row.get(name)
            if not is_null(value):
                return value
        return None

    def _list(self, row: dict[str, Any]) -> list[Any]:
        value = parsed(self._first(row, self.conversation), "bad_conversation")
        if isinstance(value, dict):
            value = _transposed(value)
        if value is None or value == []:
            raise Reject("empty")
        if not isinstance(value, list):
            raise Reject("bad_conversation")
        return value

    def _messages(self, row: dict[str, Any], notes: list[str]) -> list[Any]:
        return self._list(row)

    _sharegpt = _messages

    def _hermes(self, row: dict[str, Any], notes: list[str]) -> list[Any]:
        turns: list[Any] = []
        described = not is_null(self._first(row, self.tools))
        for turn in self._list(row):
            if not isinstance(turn, dict):
                raise Reject("bad_turn")
            role = role_of(self._first(turn, self.style.role))
            content = self._first(turn, self.style.content)
            text = "" if content is None else text_of(content)
            if role == "system" and described and "<tools>" in text:
                notes.append("tool_system_removed")  # the target's own template describes the tools
            elif role == "assistant" and "<tool_call>" in text:
                rest, calls = hermes_calls(text)
                turns.append({"role": "assistant", "content": rest, "tool_calls": calls})
            elif role == "tool":
                turns += [{"role": "tool", "content": result} for result in hermes_results(text)]
            else:
                turns.append({"role": role, "content": content})
        return turns

    def _pair(self, row: dict[str, Any], notes: list[str]) -> list[Any]:
        prompt = self._prompt_text(row)
        extra = self._first(row, self.input)
        if extra is not None and (text := text_of(extra)).strip():
            prompt = f"{prompt}\n\n{text}"
        response = self._first(row, self.response)
        return [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]

    def _prompt_text(self, row: dict[str, Any]) -> str:
        value = self._first(row, self.prompt)
        text = "" if value is None else text_of(value)
        if not text.strip():
            raise Reject("empty")
        return text

    def _prompt(self, row: dict[str, Any], notes: list[str]) -> list[Any]:
        value = self._first(row, self.prompt)
        if isinstance(value, list) and value and all(isinstance(item, dict) and "role" in item for item in value):
            return value
        if isinstance(value, list) and value:
            if len(value) > 1:
                notes.append("later_turns_left_out")
            value = value[0]
        if is_null(value) or not text_of(value).strip():
            raise Reject("empty")
        return [{"role": "user", "content": value}]

    def _alternating(self, row: dict[str, Any], notes: list[str]) -> list[Any]:
        roles = ("user", "assistant")
        return [{"role": roles[index % 2], "content": _spoken(text)} for index, text in enumerate(self._list(row))]


def _spoken(value: Any) -> Any:
    """YAML reads an unquoted answer such as 42 or yes as a number or a truth value."""
    return str(value) if isinstance(value, (bool, int, float)) else value


def _transposed(value: dict[str, Any]) -> list[Any]:
    """{from: [..], value: [..]} (a table's sequence of structs) as a list of turns."""
    columns = {key: item for key, item in value.items() if isinstance(item, list)}
    lengths = {len(item) for item in columns.values()}
    if len(lengths) != 1 or not columns:
        raise Reject("bad_conversation")
    return [dict(zip(columns, items, strict=True)) for items in zip(*columns.values(), strict=True)]

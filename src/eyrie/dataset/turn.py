"""One raw turn of a conversation: its role, its text, its reasoning, in whatever spelling a source writes them.

Nothing is guessed: a role that is not known rejects the row, it never becomes an assistant's.
"""

from __future__ import annotations

from typing import Any

from eyrie.dataset.values import Reject, is_null, text_of

Message = dict[str, Any]

#: spellings of roles after strip and casefold
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "tool_result": "tool",
    "observation": "tool",
    "ipython": "tool",
    "function_call": "call",
    "tool_call": "call",
}
REASONING_KEYS = ("reasoning", "reasoning_content", "thinking")
THINK = ("<think>", "</think>")


class Style:
    """How a source writes its turns.

    role, content: keys of a turn, in order of precedence; the first that is not null counts.
    think, answer: tags around reasoning and around the final answer inside an assistant's text, or ().
    """

    __slots__ = ("answer", "content", "max_turns", "role", "table", "think")

    def __init__(
        self,
        role: tuple[str, ...] = ("role", "from"),
        content: tuple[str, ...] = ("content", "value"),
        think: tuple[str, ...] = THINK,
        answer: tuple[str, ...] = (),
        max_turns: int = 0,
        table: bool = False,
    ):
        self.role, self.content, self.think, self.answer = role, content, think, answer
        self.max_turns, self.table = max_turns, table


DEFAULT = Style()


def role_of(value: Any) -> str:
    """The role behind any spelling; Reject('unknown_role') for anything else."""
    role = ROLES.get(value) if isinstance(value, str) else None
    if role is None:
        role = (
            ROLES.get(value.strip().casefold().replace(" ", "_").replace("-", "_")) if isinstance(value, str) else None
        )
        if role is None:
            raise Reject("unknown_role")
    return role


def role(turn: Message, style: Style) -> str:
    """The turn's role; two spellings that differ, or none, reject the row."""
    found = ""
    for key in style.role:
        value = turn.get(key)
        if is_null(value):
            continue
        one = role_of(value)
        if found and one != found:
            raise Reject("role_conflict")
        found = one
    if not found:
        raise Reject("unknown_role")
    return found


def content(turn: Message, style: Style) -> str | None:
    """The turn's text; None where every spelling of it is null."""
    found: str | None = None
    for key in style.content:
        value = turn.get(key)
        if is_null(value):
            continue
        text = text_of(value)
        if found is not None and text != found:
            raise Reject("content_conflict")
        found = text
    return found


def one_of(found: str, value: Any) -> str:
    """Add one spelling's value to what the others said; two different values are an error of the row."""
    if is_null(value):
        return found
    text = text_of(value)
    if not text.strip():
        return found
    if found and text.strip() != found.strip():
        raise Reject("reasoning_conflict")
    return found or text


def reasoning(turn: Message) -> str:
    """The turn's reasoning under any of its names; '' where it has none."""
    found = ""
    for key in REASONING_KEYS:
        found = one_of(found, turn.get(key))
    meta = turn.get("metadata")
    if isinstance(meta, dict):
        for key in REASONING_KEYS:
            found = one_of(found, meta.get(key))
    return found


def split_thought(text: str, style: Style) -> tuple[str, str]:
    """(reasoning, answer) of an assistant's text; the closing tag alone is enough, as templates open it themselves."""
    reasoning = ""
    if len(style.think) == 2:
        opening, closing = style.think
        head, tag, tail = text.partition(closing)
        if tag:
            start = head.find(opening)
            if start < 0 or not head[:start].strip():
                reasoning = (head if start < 0 else head[start + len(opening) :]).strip()
                text = tail.lstrip()
    if len(style.answer) == 2:
        opening, closing = style.answer
        head, tag, tail = text.partition(opening)
        if tag and not head.strip():
            text = tail.rpartition(closing)[0].strip() if closing in tail else tail.strip()
    return reasoning, text

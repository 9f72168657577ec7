"""The shortest way for rows of turns: see verbatim.py.

A row is read in one of a few forms, each a type of its own, so that what a form has no place for cannot slip through:
contents as text or as lists of one text part; answers alone, with reasoning beside them, or with tool calls.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Literal

from eyrie.dataset.adapters import Adapter
from eyrie.dataset.quick import flat
from eyrie.dataset.turn import REASONING_KEYS
from eyrie.dataset.verbatim import BRACKET, QUOTE, SOLID, Form, Hit, blank, decoder, special, tags_of

USER = ("user", "human")
ASSISTANT = ("assistant", "gpt")
SYSTEM = b'[{"role":"system","content":'

Pieces = list[bytes]
Say = Callable[[Any], "Hit | None"]


class States:
    """What may follow what: {role: (what comes before its text, state, role)} at each place of a conversation."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self.start: dict[str, Any] = {"system": (SYSTEM, self.told, "system")}
        self.answered: dict[str, Any] = {}
        asked: dict[str, Any] = {}
        resulted: dict[str, Any] = {}
        for name in USER:
            self.start[name] = (b'[{"role":"user","content":', asked, "user")
            self.told[name] = self.answered[name] = resulted[name] = (b'},{"role":"user","content":', asked, "user")
        for name in ASSISTANT:
            asked[name] = (b'},{"role":"assistant","content":', self.answered, "assistant")
            resulted[name] = asked[name]
        self.answered["tool"] = resulted["tool"] = (b'},{"role":"tool","content":', resulted, "tool")


def forms(adapter: Adapter) -> list[Form]:
    """The forms of an adapter whose rows are lists of turns."""
    import msgspec

    raw = msgspec.Raw
    column = adapter.conversation[0]
    systems = {name: (raw, None) for name in adapter.system}
    longer = special([*adapter.tools, *adapter.reasoning, "metadata"])
    thoughts = {name: (raw, None) for name in REASONING_KEYS}
    part, _ = decoder("Part", {"text": (raw,), "type": (Literal["text"],)}, strict=True)
    told = [f"f{number}" for number in range(1, 1 + len(systems))]
    states, tags = States(), tags_of(adapter)
    found: list[Form] = []
    for listed, more, say in (
        (False, {}, _spoken(told, states, tags, listed=False, thinks=False)),
        (False, thoughts, _spoken(told, states, tags, listed=False, thinks=True)),
        (True, {}, _spoken(told, states, tags, listed=True, thinks=False)),
        (True, thoughts, _spoken(told, states, tags, listed=True, thinks=True)),
        (False, _call_members(), _called(told, states, tags)),
    ):
        kind = types.GenericAlias(tuple, (part,)) if listed else raw
        for role, content in zip(adapter.style.role, adapter.style.content, strict=False):
            turn, _ = decoder("Turn", {role: (str,), content: (kind,), **more}, strict=True)
            turns = types.GenericAlias(list, (turn,))
            _, decode = decoder("Row", {column: (turns,), **systems, **longer})
            found.append(Form(decode, say, listed, _lists))
    return found


def _lists(row: Any) -> bool:
    """Whether contents that were taken for text are lists."""
    return any(type(turn.f1) is not tuple and bytes(turn.f1)[0] == BRACKET for turn in row.f0)


def _told(row: Any, names: list[str]) -> bytes | None:
    """The text of a row's system column, b"" where it has none; None for a row that is not plain."""
    found = b""
    for name in names:
        said = getattr(row, name)
        if said is not None and (text := bytes(said)) != b"null":
            if found or text[0] != QUOTE or (text[1] not in SOLID and blank(text)):
                return None
            found = text
    return found


def _begun(row: Any, names: list[str], states: States) -> tuple[Pieces, Any] | None:
    """What a row begins with (its system text, if any) and the state after it; None for a row that is not plain."""
    told = _told(row, names) if names else b""
    if told is None:
        return None
    return ([SYSTEM, told], states.told) if told else ([], states.start)


def _spoken(names: list[str], states: States, tags: list[tuple[int, bytes]], listed: bool, thinks: bool) -> Say:
    """Turns of questions and answers."""
    solid = SOLID

    def say(row: Any) -> Hit | None:
        begun = _begun(row, names, states)
        if begun is None:
            return None
        pieces, state = begun
        first, role = b"", ""
        for turn in row.f0:
            step = state.get(turn.f0)
            if step is None:
                return None
            before, state, role = step
            text = bytes(turn.f1[0].f0 if listed else turn.f1)
            if text[0] != QUOTE or (text[1] not in solid and blank(text)):
                return None
            pieces += (before, text)
            if role == "tool":
                return None
            if not first and role == "user":
                first = text
            if thinks and (turn.f2 or turn.f3 or turn.f4):
                thoughts = [bytes(thought) for thought in (turn.f2, turn.f3, turn.f4) if thought is not None]
                text = thoughts[0]
                if role != "assistant" or len(thoughts) > 1 or text[0] != QUOTE:
                    return None
                if text[1] not in solid and blank(text):
                    return None
                pieces += (b',"reasoning":', text)
        return _whole(pieces, first, role, tags)

    return say


def _whole(pieces: Pieces, first: bytes, role: str, tags: list[tuple[int, bytes]]) -> Hit | None:
    """The conversation of all pieces, if it ends with an answer and none of the tags is anywhere in it."""
    if role != "assistant":
        return None
    pieces.append(b"}]")
    whole = b"".join(pieces)
    for byte, tag in tags:
        if byte in whole and tag in whole:
            return None
    return whole, first


def _call_members() -> dict[str, tuple[Any, ...]]:
    """Members of a turn that calls a tool, or that a tool answers with."""
    import msgspec

    function, _ = decoder("Function", {"name": (msgspec.Raw,), "arguments": (str,)}, strict=True)
    members = {"id": (msgspec.Raw,), "type": (Literal["function"],), "function": (function,)}
    call, _ = decoder("Call", members, strict=True)
    calls = types.GenericAlias(list, (call,)) | None
    return {"tool_calls": (calls, None), "tool_call_id": (msgspec.Raw, None), **special(["name", "function_call"])}


def _called(names: list[str], states: States, tags: list[tuple[int, bytes]]) -> Say:
    """Turns among which there are calls in the wire form, each with an id of its own, and their results."""
    solid = SOLID

    def say(row: Any) -> Hit | None:
        begun = _begun(row, names, states)
        if begun is None:
            return None
        pieces, state = begun
        first, role = b"", ""
        waiting: list[bytes] = []
        for turn in row.f0:
            step = state.get(turn.f0)
            if step is None:
                return None
            before, state, role = step
            text = bytes(turn.f1)
            calls, answers = turn.f2, turn.f3
            if text[0] != QUOTE or (not calls and role != "tool" and text[1] not in solid and blank(text)):
                return None
            pieces += (before, text)
            if role == "tool":
                if calls is not None or answers is None or (identifier := bytes(answers)) not in waiting:
                    return None
                waiting.remove(identifier)
                pieces += (b',"tool_call_id":', identifier)
                continue
            if answers is not None or (calls is not None and role != "assistant"):
                return None
            if calls is not None:
                made = _calls(calls, waiting)
                if made is None:
                    return None
                pieces.append(made)
            elif not first and role == "user":
                first = text
        return _whole(pieces, first, role, tags)

    return say


def _calls(calls: list[Any], waiting: list[bytes]) -> bytes | None:
    """Calls as the canonical form has them; their ids begin to wait."""
    import orjson

    made = []
    for call in calls:
        identifier, name, arguments = bytes(call.f0), bytes(call.f2.f0), flat(call.f2.f1)
        plain = name[1:-1].replace(b"_", b"").replace(b"-", b"").isalnum() and name[0] == QUOTE
        if not plain or arguments is None or identifier[0] != QUOTE or identifier == b'""' or identifier in waiting:
            return None
        waiting.append(identifier)
        function = b'{"name":%b,"arguments":%b}' % (name, orjson.dumps(arguments))
        made.append(b'{"id":%b,"type":"function","function":%b}' % (identifier, function))
    return b',"tool_calls":[%b]' % b",".join(made) if made else None

"""The short way for plain rows, which are nearly all of them: same result as the adapters, several times faster.

Each function answers None as soon as a row is anything but plain; the adapters then take it the long way. That both
ways agree is a property that the tests check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eyrie.dataset.adapters import Adapter
from eyrie.dataset.turn import REASONING_KEYS

PLAIN = {"user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant", "system": "system"}

#: members of a turn that say something besides role, content and reasoning; others are not looked at
TURN_KEYS = ("tool_calls", "function_call", "tool_call_id", "name", "metadata")
FLAT = frozenset({str, int, bool, type(None)})

Messages = list[dict[str, Any]]
Way = Callable[[Any], "Messages | None"]


def way(adapter: Adapter) -> Way:
    """The short way of an adapter: a function from a row to its messages (no tools, no notes) or None."""
    if adapter.style.max_turns:
        return lambda row: None
    makers = {"messages": _turns, "sharegpt": _turns, "pair": _pair, "prompt": _prompt}
    maker = makers.get(adapter.kind)
    return maker(adapter) if maker else lambda row: None


def _turns(adapter: Adapter) -> Way:
    style = adapter.style
    special = frozenset({*adapter.tools, *adapter.reasoning, "metadata"})
    systems = adapter.system
    column = adapter.conversation[0]
    names = tuple(zip(style.role, style.content, strict=False))
    telling = frozenset({*style.role, *style.content, *REASONING_KEYS, *TURN_KEYS})
    tags = (*style.think[1:], *style.answer[:1])

    def quick(row: Any) -> Messages | None:
        if type(row) is not dict or _holds(row, special):
            return None
        turns = row.get(column)
        if type(turns) is not list or not turns:
            return None
        first = turns[0]
        if type(first) is not dict:
            return None
        for role_name, content_name in names:  # the spelling of the first turn is that of the row
            if role_name in first and content_name in first:
                break
        else:
            return None
        out: Messages = []
        before = ""
        for name in systems:
            system = row.get(name)
            if system is not None:
                if out or type(system) is not str or not system or system.isspace():
                    return None
                out.append({"role": "system", "content": system})
                before = "system"
        waiting: list[str] = []  # ids of calls whose results have yet to come
        for turn in turns:
            if type(turn) is not dict:
                return None
            role, content = turn.get(role_name), turn.get(content_name)
            if type(content) is list:
                content = _one_part(content)
            if type(role) is not str or type(content) is not str:
                return None
            extra: list[str] = []
            if len(turn) != 2:  # a table's struct has the members of all turns
                extra = [key for key in turn if key in telling and turn[key] is not None]
                extra = [key for key in extra if key not in (role_name, content_name)]
            if role == "tool":
                if extra != ["tool_call_id"] or not _result(turn, waiting):
                    return None
                out.append({"role": "tool", "content": content, "tool_call_id": turn["tool_call_id"]})
                before = "tool"
                continue
            plain = PLAIN.get(role)
            if plain is None or plain == before or (out and plain == "system"):
                return None
            message: dict[str, Any] = {"role": plain, "content": content}
            if plain == "assistant":
                if before not in ("user", "tool"):
                    return None
                for tag in tags:
                    if tag in content:
                        return None
            if extra:
                if plain != "assistant" or len(extra) > 1:
                    return None
                if extra[0] == "tool_calls":
                    calls = _calls(turn["tool_calls"], waiting)
                    if calls is None:
                        return None
                    message["tool_calls"] = calls
                elif not _thought(turn, message):
                    return None
            if (not content or content.isspace()) and "tool_calls" not in message:
                return None
            out.append(message)
            before = plain
        return out if before == "assistant" else None

    return quick


def _holds(row: dict[str, Any], special: frozenset[str]) -> bool:
    """Whether a row has more than null in a member that needs the longer way."""
    if special.isdisjoint(row):
        return False
    return any(row.get(name) is not None for name in special)


def _one_part(content: list[Any]) -> Any:
    """The text of a content that is one text part, else None."""
    if len(content) == 1 and type(content[0]) is dict and len(content[0]) == 2 and content[0].get("type") == "text":
        return content[0].get("text")
    return None


def _thought(turn: dict[str, Any], message: dict[str, Any]) -> bool:
    """Take over the reasoning of an assistant's turn that has nothing else besides role and content."""
    for name in REASONING_KEYS:
        thought = turn.get(name)
        if type(thought) is str and thought and not thought.isspace():
            message["reasoning"] = thought
            return True
    return False


def _calls(calls: Any, waiting: list[str]) -> list[dict[str, Any]] | None:
    """Tool calls in the wire form, with ids of their own and arguments that are flat; their ids begin to wait."""
    if type(calls) is not list or not calls:
        return None
    out = []
    for call in calls:
        if type(call) is not dict or len(call) != 3 or call.get("type") != "function":
            return None
        identifier, function = call.get("id"), call.get("function")
        if type(identifier) is not str or not identifier or type(function) is not dict or len(function) != 2:
            return None
        name, arguments = function.get("name"), function.get("arguments")
        if type(name) is not str or name != name.strip() or not name or type(arguments) is not str:
            return None
        arguments = flat(arguments)
        if arguments is None or identifier in waiting:
            return None
        waiting.append(identifier)
        out.append({"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}})
    return out


def flat(arguments: str) -> str | None:
    """Arguments as canonical JSON text, where they are an object of texts, whole numbers and truth values."""
    import orjson

    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None
    if type(value) is not dict or not FLAT.issuperset(map(type, value.values())):
        return None
    text: str = orjson.dumps(value).decode()
    return text


def _result(turn: dict[str, Any], waiting: list[str]) -> bool:
    """Whether a tool's turn answers a call that waits for it."""
    identifier = turn["tool_call_id"]
    if type(identifier) is not str or identifier not in waiting:
        return False
    waiting.remove(identifier)
    return True


def _pair(adapter: Adapter) -> Way:
    special = frozenset({*adapter.system, *adapter.tools, *adapter.reasoning, *adapter.input, "metadata"})
    prompt_name, response_name = adapter.prompt[0], adapter.response[0]
    tags = (*adapter.style.think[1:], *adapter.style.answer[:1])

    def quick(row: Any) -> Messages | None:
        if type(row) is not dict or _holds(row, special):
            return None
        prompt, response = row.get(prompt_name), row.get(response_name)
        if type(prompt) is not str or type(response) is not str or not prompt or not response:
            return None
        if prompt.isspace() or response.isspace():
            return None
        for tag in tags:
            if tag in response:
                return None
        return [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]

    return quick


def _prompt(adapter: Adapter) -> Way:
    special = frozenset({*adapter.system, *adapter.tools, *adapter.reasoning, "metadata"})
    prompt_name = adapter.prompt[0]

    def quick(row: Any) -> Messages | None:
        if type(row) is not dict or _holds(row, special):
            return None
        prompt = row.get(prompt_name)
        if type(prompt) is not str or not prompt or prompt.isspace():
            return None
        return [{"role": "user", "content": prompt}]

    return quick

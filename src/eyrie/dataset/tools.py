"""Tool schemas, tool calls and tool results in one form each."""

from __future__ import annotations

import json
from typing import Any

from eyrie.dataset.values import Reject, is_null, mended, parsed, text_of, without_nulls


def compact(value: Any) -> str:
    """JSON in one form: no blanks, the key order of its writer, no NaN."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        raise Reject("bad_tool_arguments") from None


def canonical_calls(value: Any, table: bool = False) -> list[dict[str, Any]]:
    """Tool calls as [{id, type, function: {name, arguments}}] with `arguments` as JSON text (the wire form).

    Takes OpenAI's form with or without its wrapper, one call or a list, as data or as JSON text. Missing ids are
    filled in later (link_results), when their place in the conversation is known.
    table: the data came from a table's struct, whose null members mean "not there".
    """
    value = parsed(value, "bad_tool_call")
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise Reject("bad_tool_call")
    return [_call(item, table) for item in value if item is not None]


def _call(item: Any, table: bool) -> dict[str, Any]:
    item = parsed(item, "bad_tool_call")
    if not isinstance(item, dict):
        raise Reject("bad_tool_call")
    function = item.get("function")
    if is_null(function):
        function = item
    elif isinstance(function, str):  # {"function": "name", "arguments": ...}
        function = {**item, "name": function}
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"].strip():
        raise Reject("bad_tool_call")
    arguments = function.get("arguments")
    if is_null(arguments):
        arguments = function.get("parameters")
    if isinstance(arguments, str):
        arguments = parsed(arguments, "bad_tool_arguments") if arguments.strip() else {}
        arguments = mended(arguments, [])
    elif table:
        arguments = without_nulls(arguments)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise Reject("bad_tool_arguments")
    identifier = item.get("id")
    return {
        "id": "" if is_null(identifier) else str(identifier),
        "type": "function",
        "function": {"name": function["name"].strip(), "arguments": compact(arguments)},
    }


def link_results(messages: list[dict[str, Any]], notes: list[str]) -> None:
    """Give every call an id and every result the id of the call that it answers.

    Missing ids are counted through the conversation (call_0, call_1, ...). A result without an id answers the first
    call that waits for one; one that answers no call is left as it is and noted.
    """
    count = 0
    waiting: list[tuple[str, str]] = []
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["id"] = call["id"] or f"call_{count}"
            count += 1
            waiting.append((call["id"], call["function"]["name"]))
        if message["role"] != "tool":
            continue
        identifier, name = message.get("tool_call_id"), message.get("name")
        match = next(
            (call for call in waiting if (call[0] == identifier if identifier else name in (None, call[1]))), None
        )
        if match is None:
            notes.append("result_without_call")
            continue
        waiting.remove(match)
        message["tool_call_id"] = match[0]


def canonical_tools(value: Any, table: bool = False) -> str | None:
    """Tool schemas as JSON text of [{type: function, function: {...}}]; None where there are none."""
    if is_null(value) or value in ("", [], {}):
        return None
    value = parsed(value, "bad_tools")
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise Reject("bad_tools")
    tools = [_tool(item, table) for item in value if item is not None]
    return compact(tools) if tools else None


def _tool(item: Any, table: bool) -> dict[str, Any]:
    item = parsed(item, "bad_tools")
    if not isinstance(item, dict):
        raise Reject("bad_tools")
    if table:
        item = without_nulls(item)
    function = item.get("function")
    if function is None and "name" in item:
        function = {key: value for key, value in item.items() if key != "type"}
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Reject("bad_tools")
    return {"type": "function", "function": function}


def hermes_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """(text without them, calls) of an answer that writes its calls as <tool_call>{json}</tool_call>."""
    calls: list[dict[str, Any]] = []
    rest: list[str] = []
    position = 0
    while (start := text.find("<tool_call>", position)) >= 0:
        end = text.find("</tool_call>", start)
        if end < 0:
            raise Reject("bad_tool_call")
        rest.append(text[position:start])
        calls.extend(canonical_calls(text[start + len("<tool_call>") : end].strip()))
        position = end + len("</tool_call>")
    rest.append(text[position:])
    return "".join(rest).strip(), calls


def hermes_results(text: str) -> list[str]:
    """The results in a turn that writes them as <tool_response>...</tool_response>, else the turn's text."""
    results: list[str] = []
    position = 0
    while (start := text.find("<tool_response>", position)) >= 0:
        end = text.find("</tool_response>", start)
        end = len(text) if end < 0 else end
        results.append(text_of(text[start + len("<tool_response>") : end]).strip())
        position = end
    return results or [text]

"""One conversation in its canonical form, or the reason why it has none.

A canonical conversation is a list of messages {role, content, reasoning?, tool_calls?, tool_call_id?, name?} with
role in system, user, assistant, tool and content always a string. How one turn is read: turn.py.

Pure functions over plain data; the repairs made are counted in `notes` (a list of names, one per repair).
"""

from __future__ import annotations

from typing import Any

from eyrie.dataset import turn as raw
from eyrie.dataset.tools import canonical_calls, link_results
from eyrie.dataset.turn import DEFAULT, Message, Style
from eyrie.dataset.values import Reject, is_null, text_of


def build(
    turns: list[Any],
    notes: list[str],
    style: Style = DEFAULT,
    system: Any = None,
    reasoning: Any = None,
) -> list[Message]:
    """The canonical conversation of raw turns (mappings with a role and a content under any known name).

    system: a column beside the conversation that becomes its first turn unless it has one.
    reasoning: a column beside it that belongs to the last assistant turn.
    Raises Reject(reason) where no conversation can be made of it.
    """
    out: list[Message] = []
    cut = ""
    for turn in turns:
        if not isinstance(turn, dict):
            raise Reject("bad_turn")
        if is_null(turn.get(style.role[0])) and all(map(is_null, turn.values())):
            notes.append("null_turn")
            continue
        role, content = raw.role(turn, style), raw.content(turn, style)
        message = _message(role, content, turn, style, notes)
        if message is None:
            if role == "system":
                continue
            cut = "null_content" if content is None else "blank_content"
            if role == "assistant":
                _unanswered(out)
            break
        out.append(message)
    if cut:
        notes.append(f"cut_at_{cut}")
    return _shaped(out, notes, style, system, reasoning, cut, bool(turns))


def _message(role: str, content: str | None, turn: Message, style: Style, notes: list[str]) -> Message | None:
    """One turn's message; None where it says nothing."""
    if role == "tool":
        message: Message = {"role": "tool", "content": content or ""}
        for key in ("tool_call_id", "name"):
            if not is_null(turn.get(key)):
                message[key] = text_of(turn[key])
        return message
    if role == "call":
        calls = canonical_calls(content, style.table)
        if not calls:
            raise Reject("bad_tool_call")
        return {"role": "assistant", "content": "", "tool_calls": calls}
    if role != "assistant":
        return {"role": role, "content": content} if content and not content.isspace() else None
    raw_calls = turn.get("tool_calls")
    if is_null(raw_calls):
        raw_calls = turn.get("function_call")
    calls = [] if is_null(raw_calls) else canonical_calls(raw_calls, style.table)
    if content is None and not calls:
        return None
    thought = raw.reasoning(turn)
    text = content or ""
    if (style.think and style.think[1] in text) or (style.answer and style.answer[0] in text):
        inner, text = raw.split_thought(text, style)
        thought = raw.one_of(thought, inner)
    if not calls and (not text or text.isspace()):
        return None
    message = {"role": "assistant", "content": text}
    if thought:
        message["reasoning"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def _unanswered(out: list[Message]) -> None:
    """Remove the question whose answer is missing: everything from the last user turns on."""
    while out and out[-1]["role"] != "user":
        if out[-1]["role"] == "system":
            return
        out.pop()
    while out and out[-1]["role"] == "user":
        out.pop()


def _shaped(
    out: list[Message], notes: list[str], style: Style, system: Any, reasoning: Any, cut: str, had_turns: bool
) -> list[Message]:
    """Leading turns, system column, merged neighbours, length in turns."""
    lead = 0
    while lead < len(out) and out[lead]["role"] == "system":
        lead += 1
    first = lead
    while first < len(out) and out[first]["role"] in ("assistant", "tool"):
        notes.append(f"leading_{out[first]['role']}")
        first += 1
    del out[lead:first]
    if not any(message["role"] == "user" for message in out):
        raise Reject(cut or ("no_user" if had_turns else "empty"))
    if not is_null(system):
        text = text_of(system)
        if text.strip():
            if lead == 0:
                out.insert(0, {"role": "system", "content": text})
            elif text.strip() != "\n\n".join(message["content"] for message in out[:lead]).strip():
                notes.append("system_conflict")
    _attach_reasoning(out, reasoning)
    merged = _merged(out, notes)
    if style.max_turns:
        merged = _clipped(merged, style.max_turns, notes)
    if any(message["role"] == "tool" or "tool_calls" in message for message in merged):
        link_results(merged, notes)
    if merged[-1]["role"] == "user":
        notes.append("ends_with_user")
    return merged


def _attach_reasoning(out: list[Message], reasoning: Any) -> None:
    found = ""
    for value in reasoning if isinstance(reasoning, (list, tuple)) else (reasoning,):
        found = raw.one_of(found, value)
    if not found:
        return
    for message in reversed(out):
        if message["role"] == "assistant":
            message["reasoning"] = raw.one_of(message.get("reasoning", ""), found)
            return


def _merged(out: list[Message], notes: list[str]) -> list[Message]:
    """Neighbours of the same role become one, joined by a blank line; calls and results stay apart."""
    merged: list[Message] = []
    for message in out:
        last = merged[-1] if merged else None
        if (
            last is None
            or last["role"] != message["role"]
            or message["role"] == "tool"
            or "tool_calls" in last
            or "tool_calls" in message
        ):
            merged.append(message)
            continue
        last["content"] = f"{last['content']}\n\n{message['content']}"
        if "reasoning" in message:
            last["reasoning"] = "\n\n".join(filter(None, (last.get("reasoning"), message["reasoning"])))
        notes.append("merged_turns")
    return merged


def _clipped(messages: list[Message], turns: int, notes: list[str]) -> list[Message]:
    """The first `turns` user turns with what answers them."""
    seen = 0
    for index, message in enumerate(messages):
        if message["role"] == "user":
            seen += 1
            if seen > turns:
                notes.append("clipped_turns")
                return messages[:index]
    return messages

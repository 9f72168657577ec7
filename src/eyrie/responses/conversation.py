"""One row of the dataset, turn by turn: each answer is generated on its own history."""

from __future__ import annotations

from typing import Any

from eyrie.responses.chat import OK, TOOL_CALLS, TRUNCATED, Answer

TOOL_MISMATCH = "tool_mismatch"


class BadRow(ValueError):
    """A dataset row that is no conversation; the text says why."""


class Script:
    """What a row asks for. The dataset's own assistant turns are left out, its tool results are kept for the calls.

    messages of the row: [{role, content, reasoning?, tool_calls?, tool_call_id?, name?}]. `history` is what the next
    request sends; `take` adds an answer and all that follows it up to the next question. `asked` is the number of
    questions (user turns, neighbours counted as one): the turns that a complete conversation has, tool calls aside.
    Raises BadRow.
    """

    def __init__(self, messages: Any, tools: Any = None, tool_match: str = "name", keep_cut: bool = False):
        self.tools = tools or None
        self.match = tool_match
        self._goes_on = (OK, TRUNCATED) if keep_cut else (OK,)
        self.history: list[dict[str, Any]] = []
        self.turn = 0
        self.done = False
        self.ended = ""  # why the conversation ended early
        self._segments, self._results = _split(messages, tool_match)
        self.asked = len(self._segments)
        if not self.asked:
            raise BadRow("no user turn")
        self._at = 0
        self._advance()

    @property
    def base(self) -> list[Any]:
        """What names the conversation: its questions and stored tool results, never an answer."""
        return [self._segments, self._results]

    def _advance(self) -> None:
        """Add the next question to the history."""
        if self._at < len(self._segments):
            self.history.extend(self._segments[self._at])
            self._at += 1
        else:
            self.done = True

    def take(self, answer: Answer) -> None:
        """Go on with an answer; one that is empty or filtered ends the conversation, one that is cut too unless
        cut answers are kept."""
        self.turn += 1
        if answer.kind == TOOL_CALLS:
            self.history.append(answer.message())
            results = [self._result(call) for call in answer.tool_calls or []]
            if any(result is None for result in results):
                self.done, self.ended = True, TOOL_MISMATCH
                return
            self.history.extend(result for result in results if result is not None)
        elif answer.kind in self._goes_on:
            self.history.append(answer.message())
            self._advance()
        else:
            self.done, self.ended = True, answer.kind

    def _result(self, call: dict[str, Any]) -> dict[str, Any] | None:
        """The tool message that answers a call, from the row's stored results; None when there is none."""
        wanted = _signature(call, self.match)
        for place, (signature, content) in enumerate(self._results):
            if signature == wanted:
                del self._results[place]
                message = {"role": "tool", "content": content}
                if call.get("id"):
                    message["tool_call_id"] = call["id"]
                return message
        return None


def _signature(call: dict[str, Any], match: str) -> str:
    function = call.get("function") or {}
    name = str(function.get("name") or "")
    return name if match == "name" else f"{name} {_plain(function.get('arguments'))}"


def _plain(arguments: Any) -> str:
    """Arguments as canonical JSON, whether they stand as text or as an object."""
    import orjson

    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return str(arguments)
    return str(orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS), "utf-8")


def _split(messages: Any, match: str) -> tuple[list[list[dict[str, Any]]], list[tuple[str, str]]]:
    """(questions: the system and user messages before each answer; [(call signature, tool result)])."""
    if not isinstance(messages, list) or not messages:
        raise BadRow("the conversation is no list of messages")
    segments: list[list[dict[str, Any]]] = [[]]
    results: list[tuple[str, str]] = []
    calls: dict[str, str] = {}
    order: list[str] = []
    answered = False
    for message in messages:
        if not isinstance(message, dict):
            raise BadRow("a message is no object")
        role, content = message.get("role"), message.get("content")
        if role in ("system", "developer", "user"):
            if not isinstance(content, str):
                raise BadRow(f"a {role} turn has no text")
            if answered and _asks(segments[-1]):
                segments.append([])
            answered = False
            segments[-1].append({"role": role, "content": content})
        elif role == "assistant":
            answered = True
            for call in message.get("tool_calls") or []:
                calls[str(call.get("id"))] = _signature(call, match)
                order.append(_signature(call, match))
        elif role == "tool":
            answered = True
            signature = calls.get(str(message.get("tool_call_id")))
            if signature is None:  # no id: results follow the calls' order
                signature = order[len(results)] if len(results) < len(order) else str(message.get("name") or "")
            results.append((signature, content if isinstance(content, str) else _plain(content)))
        else:
            raise BadRow(f"unknown role {role!r}")
    if not _asks(segments[-1]):
        segments.pop()  # nothing is asked after it
    return segments, results


def _asks(segment: list[dict[str, Any]]) -> bool:
    return any(message["role"] == "user" for message in segment)

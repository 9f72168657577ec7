"""One chat completion: what is asked, under which key it is kept, and what came back."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from eyrie.responses.settings import Mix, Settings

#: how a generation ended; only OK and TOOL_CALLS let a conversation go on
OK, TOOL_CALLS = "ok", "tool_calls"
TRUNCATED, REASONING_TRUNCATED, REASONING_ONLY = "truncated", "reasoning_truncated", "reasoning_only"
EMPTY, CONTENT_FILTER = "empty", "content_filter"

SERVER_DEFAULT = "server default"
#: finish reasons that are no end: the engine gave the request up (SGLang, vLLM)
BROKEN_OFF = ("abort", "error")
NO_IDS = "the server gives no token ids as sampled (return_token_ids)"
_PARAMETERS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class BadAnswer(Exception):
    """The server's 200 is no usable chat completion."""


@dataclass(slots=True)
class Answer:
    """One generation as the server gave it. prompt_ids, output_ids: token ids as sampled, end token included."""

    prompt_ids: list[int]
    output_ids: list[int]
    text: str
    finish_reason: str
    kind: str = OK
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    server: str = ""  # system_fingerprint

    def message(self) -> dict[str, Any]:
        """The assistant message for the history of the next turn."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        return message

    def record(self) -> dict[str, Any]:
        return {
            "prompt_ids": self.prompt_ids,
            "output_ids": self.output_ids,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "kind": self.kind,
            "reasoning": self.reasoning,
            "tool_calls": self.tool_calls,
            "sampling": self.sampling,
            "server": self.server,
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Answer:
        return cls(**{name: record[name] for name in cls.__slots__})


class Asker:
    """Builds requests for one run of the stage.

    generation: what, besides the messages and the sampling, decides an answer (target, template, tools' versions); it
    is part of every key.
    """

    def __init__(self, settings: Settings, model: str, generation: str):
        import orjson

        self.settings = settings
        self.model = model
        self.generation = generation
        self.kinds = settings.kinds()
        self._total = sum(kind.weight for kind in self.kinds)
        self._dumps = orjson.dumps
        self._sorted = orjson.OPT_SORT_KEYS
        self._fixed = [self._describe(kind) for kind in self.kinds]

    def _describe(self, kind: Mix) -> dict[str, Any]:
        """What is recorded of a sampling kind; parameters that are not sent say so."""
        said = {name: getattr(kind, name) for name in _PARAMETERS}
        recorded: dict[str, Any] = {k: SERVER_DEFAULT if v is None else v for k, v in said.items()}
        recorded["max_tokens"] = kind.max_tokens or self.settings.max_tokens
        recorded["chat_template_kwargs"] = {**self.settings.chat_template_kwargs, **kind.chat_template_kwargs}
        return recorded

    def kinds_shown(self) -> list[dict[str, Any]]:
        """The sampling kinds for the report."""
        return [
            {
                "model": self.model,
                "weight": kind.weight,
                **fixed,
                "seed": "none" if kind.temperature == 0 else "per prompt",
            }
            for kind, fixed in zip(self.kinds, self._fixed, strict=True)
        ]

    def conversation_key(self, messages: list[dict[str, Any]], tools: Any) -> str:
        """32 hex digits that name a prompt, whatever its place: choice within a mix, seeds and duplicates go by it."""
        return self._digest([self.settings.seed, messages, tools])

    def choose(self, conversation_key: str) -> int:
        """Number of the sampling kind of a prompt: by weight, reproducible, independent of order."""
        if len(self.kinds) == 1:
            return 0
        point = int(hashlib.sha256(f"mix {conversation_key}".encode()).hexdigest()[:13], 16) / 16**13 * self._total
        for number, kind in enumerate(self.kinds):
            point -= kind.weight
            if point < 0:
                return number
        return len(self.kinds) - 1

    def sampling(self, number: int, conversation_key: str, turn: int) -> dict[str, Any]:
        """The record of one request's sampling, seed included ('none' where greedy sampling needs none)."""
        seed: int | str = "none"
        if self.kinds[number].temperature != 0.0:
            text = f"seed {self.settings.seed} {conversation_key} {turn}"
            seed = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) >> 1
        return {"model": self.model, **self._fixed[number], "seed": seed}

    def turn_key(self, messages: list[dict[str, Any]], tools: Any, sampling: dict[str, Any]) -> str:
        """32 hex digits that name one generation: everything that decides it, and nothing else."""
        return self._digest([self.generation, messages, tools, sampling])

    def _digest(self, value: Any) -> str:
        return hashlib.sha256(self._dumps(value, option=self._sorted)).hexdigest()[:32]

    def body(
        self, messages: list[dict[str, Any]], tools: Any, sampling: dict[str, Any], max_tokens: int | None = None
    ) -> bytes:
        """The request's JSON. max_tokens: smaller than the sampling's where little context is left."""
        request: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "max_tokens": max_tokens or sampling["max_tokens"],
            "return_token_ids": True,
        }
        for name in _PARAMETERS:
            if sampling[name] != SERVER_DEFAULT:
                request[name] = sampling[name]
        if sampling["seed"] != "none":
            request["seed"] = sampling["seed"]
        if sampling["chat_template_kwargs"]:
            request["chat_template_kwargs"] = sampling["chat_template_kwargs"]
        if tools:
            request["tools"] = tools
            request["tool_choice"] = "auto"
        return bytes(self._dumps(request))


def parse(body: bytes, sampling: dict[str, Any], think_tags: list[str], opens_think: bool) -> Answer:
    """Read a chat completion. Raises BadAnswer.

    think_tags, opens_think: the marks of reasoning in the text, and whether the prompt itself ends inside one (a
    template that opens it in the generation prompt). Only where the server has no reasoning parser do they matter.
    """
    import orjson

    try:
        value = orjson.loads(body)
        choice = value["choices"][0]
        message = choice["message"]
        prompt_ids, output_ids = token_ids(value)
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise BadAnswer(f"no chat completion ({type(error).__name__}): {body[:200]!r}") from None
    if not prompt_ids:
        raise BadAnswer(f"no prompt_token_ids: {NO_IDS}")
    if choice.get("finish_reason") in BROKEN_OFF:
        raise BadAnswer(f"the server broke the answer off: {choice['finish_reason']}")
    content = message.get("content")
    answer = Answer(
        prompt_ids=prompt_ids,
        output_ids=output_ids or [],
        text=content or "",
        finish_reason=str(choice.get("finish_reason") or "unknown"),
        reasoning=message.get("reasoning") or message.get("reasoning_content") or None,
        tool_calls=message.get("tool_calls") or None,
        sampling=sampling,
        server=str(value.get("system_fingerprint") or ""),
    )
    unfinished = _split_reasoning(answer, think_tags, opens_think)
    answer.kind = classify(answer, unfinished)
    if answer.kind in (OK, TOOL_CALLS) and not answer.output_ids:
        raise BadAnswer(f"no token_ids: {NO_IDS}")
    return answer


def token_ids(completion: dict[str, Any]) -> tuple[list[int] | None, list[int] | None]:
    """(prompt ids, sampled ids) of a chat completion that was asked for with return_token_ids; None where it has none.

    vLLM gives the prompt's ids beside the choices, SGLang within each.
    """
    choice = completion["choices"][0]
    return completion.get("prompt_token_ids") or choice.get("prompt_token_ids"), choice.get("token_ids")


def _split_reasoning(answer: Answer, tags: list[str], opens_think: bool) -> bool:
    """Move reasoning that stands in the text to its own field; True when it was never closed."""
    if not tags or answer.reasoning is not None:
        return False
    opening, closing = tags
    if closing in answer.text:
        reasoning, _, rest = answer.text.partition(closing)
        head = reasoning.lstrip()
        if head.startswith(opening) or opening not in head:  # else the answer only speaks about the marks
            answer.reasoning = head.removeprefix(opening).strip() or None
            answer.text = rest.lstrip()
        return False
    if answer.text.lstrip().startswith(opening) or (opens_think and answer.finish_reason == "length"):
        answer.reasoning, answer.text = answer.text.lstrip().removeprefix(opening).strip() or None, ""
        return True
    return False


def classify(answer: Answer, unfinished: bool = False) -> str:
    """One of the kinds above. unfinished: the reasoning was never closed."""
    said = bool(answer.text.strip())
    if answer.finish_reason == "content_filter":
        return CONTENT_FILTER
    if answer.finish_reason == "length":
        return REASONING_TRUNCATED if unfinished or (answer.reasoning and not said) else TRUNCATED
    if answer.tool_calls:
        return TOOL_CALLS
    if said:
        return OK
    return REASONING_ONLY if answer.reasoning else EMPTY

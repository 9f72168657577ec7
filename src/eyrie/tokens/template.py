"""Chat templates: rendered as transformers renders them, and the borders of what the target itself says.

Borders come from differences of renders, never from patterns: what the template writes for the generation prompt is
context, what follows it is the answer. Text is compared, not ids, and each side is tokenised on its own, as it is
when the target answers: the prompt is encoded, then tokens are generated after it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.tokens.special import added_tokens, template_text


class TemplateError(Exception):
    """The template refuses or cannot render a conversation; the text is its own message."""


class Unstable(TemplateError):
    """The renders differ within the history: no border can be derived."""


def compile_template(text: str) -> Any:
    """A Jinja template in the sandbox and with the extensions that transformers gives chat templates."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks what the assistant says; here it is plain text."""

        tags = {"generation"}  # noqa: RUF012 - jinja's own interface

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(text)


@dataclass
class Span:
    """One answer within a rendered conversation: prompt, then what the target says up to its end mark."""

    prompt: str
    answer: str


class Template:
    """A target's chat template with its special tokens; `kwargs` go to every render."""

    def __init__(self, text: str, names: dict[str, str], marks: list[str], kwargs: dict[str, Any] | None = None):
        self.text = text
        self.names = names
        self.marks = sorted(set(marks), key=len, reverse=True)
        self.kwargs = kwargs or {}
        self.thinks = "</think>" in text or "reasoning" in text  # else marks in the content are plain text
        self._template = compile_template(text)

    @classmethod
    def load(cls, model: Path, declared: str = "", kwargs: dict[str, Any] | None = None) -> Template:
        """The template in force. Raises EyrieError when there is none, or it does not compile."""
        import jinja2

        text = template_text(model, declared)
        if not text:
            raise EyrieError(
                "the target has no chat template.",
                where=str(model),
                why="A server without one is healthy and answers 400 to every chat.",
                todo="Set eyrie_target_chat_template.",
                code="template-missing",
            )
        config = atomic.read_json(model / "tokenizer_config.json", {}) or {}
        more = atomic.read_json(model / "special_tokens_map.json", {}) or {}
        names = {
            name: value["content"] if isinstance(value, dict) else value
            for name, value in {**more, **config}.items()
            if name.endswith("_token") and isinstance(value, (str, dict))
        }
        try:
            return cls(text, names, [*names.values(), *added_tokens(model).values()], kwargs)
        except jinja2.TemplateSyntaxError as error:
            raise EyrieError(
                f"the chat template does not compile: {error.message}",
                where=f"line {error.lineno}",
                code="template-syntax",
            ) from None

    def render(self, messages: list[dict[str, Any]], tools: Any = None, prompt: bool = False) -> str:
        """The text of a conversation; prompt: with the generation prompt. Raises TemplateError."""
        import jinja2

        try:
            return str(
                self._template.render(
                    messages=messages,
                    tools=tools or None,
                    documents=None,
                    add_generation_prompt=prompt,
                    **self.names,
                    **self.kwargs,
                )
            )
        except TemplateError:
            raise
        except (jinja2.TemplateError, TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
            raise TemplateError(f"{type(error).__name__}: {error}") from None

    def opens(self, opening: str, closing: str) -> bool:
        """Whether the generation prompt ends inside an open mark (e.g. it writes '<think>' itself)."""
        try:
            text = self.render([{"role": "user", "content": "x"}], prompt=True)
        except TemplateError:
            return False
        return text.rfind(opening) > text.rfind(closing)

    def span(self, history: list[dict[str, Any]], answer: dict[str, Any], tools: Any = None) -> Span:
        """Prompt and answer of one assistant turn on its history. Raises TemplateError, Unstable.

        The answer starts where the generation prompt ends; where the template writes a scaffold of its own before the
        content (an empty thinking block for an answer without reasoning), it starts after that. It ends with the last
        special token that follows it (the template's own end mark, whatever eos_token is).
        """
        if self.thinks:
            answer = with_reasoning(answer)
            history = [with_reasoning(item) if item.get("role") == "assistant" else item for item in history]
        prompt = self.render(history, tools, prompt=True)
        full = self.render([*history, answer], tools)
        border = len(prompt)
        if not full.startswith(prompt):
            past = self.render(history, tools)
            border = common(prompt, full)
            if not full.startswith(past) or border < len(past):
                raise Unstable("the renders of prompt and answer differ within the history")
        if not answer.get("reasoning_content") and answer.get("content"):
            border = max(border, common(full, self.render([*history, varied(answer)], tools)))
        return Span(full[:border], self._until_end(full[border:]))

    def _until_end(self, text: str) -> str:
        """Without what the template writes after the end mark (a line break before the next turn)."""
        end = max((text.rfind(mark) + len(mark) for mark in self.marks if mark and mark in text), default=0)
        return text[:end] if end and not text[end:].strip() else text.rstrip()


def common(first: str, second: str) -> int:
    """Length of the common beginning."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # prefixes nest, so the longest common one is found by halving
        middle = (low + high + 1) // 2
        if first[:middle] == second[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def varied(answer: dict[str, Any]) -> dict[str, Any]:
    """The same turn with other content from its first visible character on."""
    start = str(answer["content"]).lstrip()[:1]
    return {**answer, "content": ("b" if start == "a" else "a") + "0"}


def with_reasoning(answer: dict[str, Any], opening: str = "<think>", closing: str = "</think>") -> dict[str, Any]:
    """An assistant message with its reasoning under every name that templates read, taken out of the text.

    Text is split at the closing mark alone: the opening one may belong to the generation prompt.
    """
    content = str(answer.get("content") or "")
    reasoning = answer.get("reasoning") or answer.get("reasoning_content") or answer.get("thinking") or ""
    if not reasoning and closing in content:
        reasoning, _, content = content.partition(closing)
        reasoning = reasoning.rpartition(opening)[2].strip()
        content = content.lstrip("\n")
    message = {**answer, "content": content}
    for name in ("reasoning", "reasoning_content", "thinking"):
        message.pop(name, None)
        if reasoning:
            message[name] = reasoning
    return message

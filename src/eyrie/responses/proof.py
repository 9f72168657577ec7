"""Proof that an endpoint is the baseline: who serves, without speculation, with the chat template that is declared.

The own host's server is proven by `eyrie.serve.identity` (process, port, model, method, a real answer). What a server
can be asked from anywhere is asked of every endpoint: the model's name, its folder (which carries the target's
fingerprint, hence its revision), no speculation, and one short answer: it must come with the ids that were sampled, and
with the prompt's ids as the template and tokenizer of this host give them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from eyrie.core.errors import EyrieError, GateError
from eyrie.core.pipeline import Context

log = logging.getLogger(__name__)

PROBE = [
    {"role": "user", "content": "Name three colours."},
    {"role": "assistant", "content": "Red, green and blue."},
    {"role": "user", "content": "And one more?"},
]


def prover(ctx: Context, own: str, prove_own: Callable[[], Any]) -> Callable[[str], None]:
    """prove(url), blocking. Raises GateError when it is not the baseline, EyrieError when that cannot be told."""
    expected = expected_ids(ctx)

    def prove(url: str) -> None:
        if url == own:
            prove_own()
        prove_remotely(ctx, url, expected)

    return prove


def expected_ids(ctx: Context) -> list[int] | None:
    """The probe as this host's template and tokenizer render it; None when the template cannot render it."""
    from eyrie.tokens.template import Template, TemplateError
    from eyrie.tokens.tokenizer import Tokenizer

    model = ctx.input("target").out
    template = Template.load(model, ctx.target.chat_template, ctx.settings.chat_template_kwargs)
    try:
        text = template.render(PROBE, prompt=True)
    except TemplateError as error:
        log.info("the probe conversation is not for this template: %s", error)
        return None
    return Tokenizer.load(model, ctx.target.trust_remote_code).encode(text)


def prove_remotely(ctx: Context, url: str, expected: list[int] | None) -> None:
    from eyrie.serve import http, metrics, settings

    answer = http.get(url, "/v1/models")
    if answer.status != 200:
        raise EyrieError(f"/v1/models answers {answer.status}.", where=url, code="server-unwell")
    models = answer.json.get("data") or []
    entry = next((item for item in models if item.get("id") == ctx.target.name), None)
    if entry is None:
        names = ", ".join(str(item.get("id")) for item in models) or "no model"
        raise GateError(f"it serves {names}, not {ctx.target.name}.", where=url, code="wrong-model")
    folder, root = ctx.input("target").out.name, str(entry.get("root") or "").rstrip("/")
    if root and root.rpartition("/")[2] != folder and "/" in root:
        raise _other_folder(url, root, folder)
    if settings.load(ctx.pipeline).engine == "sglang":
        drafts = _sglang(ctx, url)
    else:
        drafts = "it counts drafted tokens" if metrics.speculates(metrics.scrape(url)) else ""
    if drafts:
        raise GateError(
            f"{drafts}: responses must not come through a draft.",
            where=url,
            todo="Start the baseline profile there (playbooks/serve.yml).",
            code="wrong-method",
        )
    _prove_answer(ctx, url, expected)


def _sglang(ctx: Context, url: str) -> str:
    """What SGLang says of its speculation ('' = none); its counters do not tell. It names its model's folder here."""
    from eyrie.serve.engines import sglang

    info, method = sglang.server_info(url), sglang.SGLang().in_force(url, []).method
    folder, path = ctx.input("target").out.name, str(info.get("model_path") or "").rstrip("/")
    if "/" in path and path.rpartition("/")[2] != folder:
        raise _other_folder(url, path, folder)
    if method is None:
        raise GateError(
            "it does not say whether it speculates.",
            where=url,
            why="Its /server_info names no speculative_algorithm.",
            code="method-unknown",
        )
    return f"it drafts with {method}" if method else ""


def _other_folder(url: str, path: str, folder: str) -> GateError:
    return GateError(
        f"it serves {path}, not {folder}.",
        where=url,
        why="The folder's name carries the fingerprint of the model's files.",
        todo="Bring the same target to that host (playbooks/serve.yml).",
        code="wrong-revision",
    )


def _prove_answer(ctx: Context, url: str, expected: list[int] | None) -> None:
    """One token of an answer to the probe. Raises GateError: no ids as sampled, or the probe rendered to other ids.

    expected: None where this host's template cannot render the probe; then a plain question is asked.
    """
    from eyrie.responses import chat
    from eyrie.serve import http

    messages = PROBE if expected is not None else PROBE[:1]
    body: dict[str, Any] = {"model": ctx.target.name, "messages": messages, "max_tokens": 1, "temperature": 0}
    body["return_token_ids"] = True
    if ctx.settings.chat_template_kwargs:
        body["chat_template_kwargs"] = ctx.settings.chat_template_kwargs
    answer = http.post(url, "/v1/chat/completions", body)
    if answer.status >= 500:
        raise EyrieError(f"a short question is answered with {answer.status}.", where=url, code="server-unwell")
    if answer.status != 200:
        raise GateError(
            f"it cannot render a conversation (status {answer.status}): {answer.text[:200]}",
            where=url,
            todo="Has the model a chat template? Declare one with eyrie_target_chat_template.",
            code="template-refused",
        )
    try:
        prompt, sampled = chat.token_ids(answer.json)
    except (KeyError, IndexError, TypeError, AttributeError):
        raise EyrieError(f"no chat completion: {answer.text[:200]}", where=url, code="server-unwell") from None
    if not prompt or not sampled:
        raise GateError(
            f"{chat.NO_IDS}.",
            where=url,
            why="What is trained on are the sampled ids; a re-tokenised text may be others.",
            todo="Serve with a version that knows return_token_ids (SGLang: of July 2026 or later), or keep the "
            "dataset's own answers: eyrie_responses_regenerate: false.",
            code="no-token-ids",
        )
    if expected is not None and [int(token) for token in prompt] != expected:
        raise GateError(
            f"it renders a conversation otherwise than the declared chat template: "
            f"{_difference([int(token) for token in prompt], expected)}.",
            where=url,
            todo="Restart it with the declared template (playbooks/serve.yml).",
            code="template-differs",
        )


def _difference(found: list[int], expected: list[int]) -> str:
    """Where two renders part."""
    if found == [*expected[:1], *expected]:
        return "it begins with two begin-of-text tokens, its template's and one that it adds"
    shorter = min(len(found), len(expected))
    at = next((n for n, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), shorter)
    return f"token {at} is {found[at : at + 1] or 'absent'}, expected {expected[at : at + 1] or 'the end'}"

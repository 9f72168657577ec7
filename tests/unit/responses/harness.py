"""Runs the asking and the writing of the stage against fake servers, without the rest of a pipeline."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyrie.responses import asking, chat, output, rows
from eyrie.responses.engine import Engine, Hooks
from eyrie.responses.settings import Settings
from eyrie.responses.store import Store
from eyrie.responses.turn import Rules


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def questions(count: int) -> list[list[dict[str, Any]]]:
    """Conversations of one question each: 'Q number 0?' ..."""
    return [[user(f"Q number {number}?"), said("old")] for number in range(count)]


def write_dataset(
    path: Path, conversations: list[Any], ids: list[str] | None = None, tools: list[Any] | None = None
) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = len(conversations)
    columns = {
        "id": ids or [f"q{number}" for number in range(count)],
        "source": ["src"] * count,
        "row": list(range(count)),
        "conversation": [c if isinstance(c, str) else json.dumps(c) for c in conversations],
        "tools": pa.array([json.dumps(t) if t else None for t in (tools or [None] * count)], pa.string()),
    }
    pq.write_table(pa.table(columns), path)
    return path


@dataclass
class Result:
    books: output.Books
    engine: Engine
    feed: asking.Feed
    out: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        import pyarrow.parquet as pq

        return pq.read_table(self.out / output.TABLE).to_pylist()

    @property
    def account(self) -> dict[str, Any]:
        return self.books.conversations.as_dict()

    @property
    def turns(self) -> dict[str, Any]:
        return self.books.turns.as_dict()


def settings_of(**values: Any) -> Settings:
    """Settings for short tests: few in flight, quick limits."""
    return Settings(**{"concurrency": 8, "max_tokens": 64, "outage_limit_s": 10.0, "request_timeout_s": 5.0, **values})


def run(
    base: Path,
    servers: list[Any],
    settings: Settings | None = None,
    *,
    hooks: Hooks | None = None,
    context: int = 4096,
    opens_think: bool = False,
    generation: str = "gen",
    with_engine: Any = None,
) -> Result:
    """Ask and write; dataset: base/train.parquet, store: base/store. Raises what the engine raises."""
    settings = settings or settings_of()
    asker = chat.Asker(settings, "toy", generation)
    rules = Rules(
        settings.think_tags,
        opens_think,
        settings.min_answer,
        settings.reasoning_retry,
        settings.request_timeout_s,
        context,
    )
    dataset = base / "train.parquet"
    known = rows.catalog(dataset, asker)
    with Store(base / "store") as store:
        feed = asking.Feed(dataset, asker, known, store, store.index())

        async def go() -> Engine:
            urls = [server if isinstance(server, str) else server.url for server in servers]
            engine = Engine(settings, asker, rules, store, urls, iter(feed), hooks or Hooks(prove=lambda url: None))
            if with_engine:
                with_engine(engine)
            await engine.run()
            return engine

        with asyncio.Runner(loop_factory=asking.loop_factory()) as runner:
            engine = runner.run(go())
        books = output.write(
            dataset, base, asker, store, store.index(), known, {**feed.unresolved, **engine.unresolved}
        )
    return Result(books, engine, feed, base)

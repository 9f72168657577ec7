"""Eyrie's asking as the stage does it, for the bench.

Arguments: URL FOLDER CONCURRENCY MAX_TOKENS MODEL [ORDER].
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from eyrie.responses import asking, chat, rows
from eyrie.responses.engine import Engine, Hooks
from eyrie.responses.settings import Settings
from eyrie.responses.store import Store
from eyrie.responses.turn import Rules


def main() -> None:
    url, folder, concurrency, max_tokens, model, *order = sys.argv[1:]
    base = Path(folder)
    numbers = {"concurrency": int(concurrency), "max_tokens": int(max_tokens)}
    settings = Settings(**numbers, truncated="keep", order=order[0] if order else "dataset")
    asker = chat.Asker(settings, model, "bench")
    known = rows.catalog(base / "train.parquet", asker)
    rules = Rules(settings.think_tags, False, settings.min_answer, 1.0, 600.0, 1 << 20)
    with Store(base / "store") as store:
        feed = asking.Feed(base / "train.parquet", asker, known, store, store.index())

        async def go() -> None:
            await Engine(settings, asker, rules, store, [url], iter(feed), Hooks(prove=lambda where: None)).run()

        with asyncio.Runner(loop_factory=asking.loop_factory()) as runner:
            runner.run(go())


if __name__ == "__main__":
    main()

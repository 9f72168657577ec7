"""A responses stage whose answers are all there, for the bench.

python resume_eyrie.py FOLDER COUNT    write COUNT conversations and their answers
python resume_eyrie.py FOLDER          resume: index, catalog, a walk over all prompts; memory and seconds as JSON
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from eyrie.responses import asking, chat, rows
from eyrie.responses.settings import Settings
from eyrie.responses.store import Store

BATCH = 10_000
ANSWER = 64  # tokens


def row(number: int) -> dict[str, Any]:
    text = f"Question {number}: please explain this to me in some detail."
    messages = [{"role": "user", "content": text}]
    return {"id": f"p{number}", "source": "bench", "row": number, "conversation": json.dumps(messages), "tools": None}


def write(base: Path, asker: chat.Asker, count: int) -> None:
    import orjson
    import pyarrow as pa
    import pyarrow.parquet as pq

    strings = ("id", "source", "conversation", "tools")
    schema = pa.schema([*((name, pa.string()) for name in strings), ("row", pa.int64())])
    ids = list(range(1000, 1000 + ANSWER))
    with pq.ParquetWriter(base / "train.parquet", schema) as table, Store(base / "store") as store:
        for start in range(0, count, BATCH):
            made = [row(number) for number in range(start, min(start + BATCH, count))]
            table.write_table(pa.Table.from_pylist(made, schema=schema))
            for value in made:
                job = rows.job_of(int(value["row"]), value, asker)
                sampling = asker.sampling(job.kind, job.key, 0)
                answer = chat.Answer(ids[:16], ids, "word " * ANSWER, "stop", sampling=sampling)
                key = asker.turn_key(job.script.history, None, sampling)
                store.append(key, orjson.dumps({"id": job.id, "source": "bench", "turn": 0, **answer.record()}))
            store.flush()


def resume(base: Path, asker: chat.Asker) -> dict[str, Any]:
    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    import numpy  # noqa: F401 - imports are what any run costs
    import orjson  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    found: dict[str, Any] = {"imports_peak_bytes": peak()}
    begin = time.monotonic()
    with Store(base / "store") as store:
        index = store.index()
        found |= {"index_s": round(time.monotonic() - begin, 1), "index_peak_bytes": peak(), "answers": len(index)}
        known = rows.catalog(base / "train.parquet", asker)
        found |= {"catalog_s": round(time.monotonic() - begin, 1), "catalog_peak_bytes": peak()}
        feed = asking.Feed(base / "train.parquet", asker, known, store, index)
        found["missing"] = sum(1 for _ in feed)
        found |= {"walk_s": round(time.monotonic() - begin, 1), "peak_bytes": peak(), "resumed": feed.resumed}
    return found


def main() -> None:
    base = Path(sys.argv[1])
    asker = chat.Asker(Settings(max_tokens=ANSWER), "bench", "bench")
    if len(sys.argv) > 2:
        write(base, asker, int(sys.argv[2]))
    else:
        print(json.dumps(resume(base, asker)))


if __name__ == "__main__":
    main()

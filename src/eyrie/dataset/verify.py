"""verify: read the outputs again and compare them with what was written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from eyrie.core import atomic
from eyrie.core.fingerprint import file_sha256
from eyrie.core.stage import Fault

if TYPE_CHECKING:
    from eyrie.core.pipeline import Context

AGAIN = "Run the dataset stage again: the sources' parts are kept, only the mix is made anew."


def verify(ctx: Context) -> list[Fault]:
    """Checksums and row counts of both tables against sources.json, the books, and that evaluation never trains."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    faults: list[Fault] = []
    summary = atomic.read_json(ctx.out / "sources.json")
    if not isinstance(summary, dict):
        return [Fault(str(ctx.out / "sources.json"), "it is no JSON object", AGAIN, "sources-unreadable")]
    ids: dict[str, set[str]] = {}
    for name, written in summary["files"].items():
        path = ctx.out / name
        digest = file_sha256(path)
        if digest != written["sha256"]:
            faults.append(
                Fault(str(path), f"checksum {digest[:12]} is not {written['sha256'][:12]}", AGAIN, "checksum")
            )
        try:
            table = pq.read_table(path, columns=["id"])
        except (pa.ArrowException, OSError) as error:
            faults.append(Fault(str(path), f"it cannot be read: {error}", AGAIN, "unreadable"))
            continue
        if table.num_rows != written["rows"]:
            faults.append(
                Fault(str(path), f"{table.num_rows} rows, {written['rows']} were written", AGAIN, "row-count")
            )
        ids[name] = set(table.column("id").to_pylist())
    account = (ctx.record().get("account") or {}).get("kept")
    if account != summary["files"]["train.parquet"]["rows"]:
        faults.append(
            Fault(
                "state",
                f"the record kept {account}, train.parquet was written with "
                f"{summary['files']['train.parquet']['rows']}",
                AGAIN,
                "books",
            )
        )
    for name, source in summary["sources"].items():
        if source["status"] != "done":  # the mix went without it
            continue
        entered = source["kept"] + sum(source["dropped"].values()) + sum(source["failed"].values())
        if source["in"] != entered:
            faults.append(
                Fault(f"source {name}", f"in {source['in']} is not kept + dropped + failed {entered}", AGAIN, "books")
            )
    both = ids.get("train.parquet", set()) & ids.get("eval.parquet", set())
    if both:
        faults.append(
            Fault(str(ctx.out), f"{len(both)} evaluation rows are in training, first {min(both)}", AGAIN, "leak")
        )
    faults += _rows(ctx)
    return faults


def _rows(ctx: Context) -> list[Fault]:
    """Every row's conversation parses and has a user turn; the first that does not is named."""
    import pyarrow as pa

    faults = []
    for name in ("train.parquet", "eval.parquet"):
        path = ctx.out / name
        try:
            number = _first_bad(path)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            faults.append(Fault(str(path), f"its rows cannot be read: {error}", AGAIN, "unreadable"))
            continue
        if number is not None:
            faults.append(Fault(f"{path}:{number}", "the row holds no conversation", AGAIN, "row"))
    return faults


def _first_bad(path: Path) -> int | None:
    """The first row that holds no conversation."""
    import pyarrow.parquet as pq

    number = 0
    for batch in pq.ParquetFile(path).iter_batches(4096, columns=["conversation", "tools"]):
        for row in batch.to_pylist():
            try:
                ok = any(turn["role"] == "user" for turn in json.loads(row["conversation"]))
                ok = ok and (row["tools"] is None or isinstance(json.loads(row["tools"]), list))
            except (ValueError, KeyError, TypeError):
                ok = False
            if not ok:
                return number
            number += 1
    return None

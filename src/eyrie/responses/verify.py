"""verify: re-read responses.parquet and name every fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyrie.core.stage import Fault

MAX_FAULTS = 20


def verify(path: Path, record: dict[str, Any]) -> list[Fault]:
    """Schema, counts against the record, ids present, no (id, turn) twice."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from eyrie.responses.output import schema

    faults: list[Fault] = []
    try:
        table = pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        return [Fault(str(path), f"cannot be read: {error}", "Run the stage again.", "table-unreadable")]
    with table:
        if table.schema_arrow.remove_metadata() != schema():
            return [Fault(str(path), "its columns are not those of responses", "Run the stage again.", "table-schema")]
        rows = ids_without = 0
        seen: set[tuple[str, int]] = set()
        try:
            for batch in table.iter_batches(batch_size=1024, columns=["id", "turn", "prompt_ids", "output_ids"]):
                for row in batch.to_pylist():
                    rows += 1
                    place = (row["id"], row["turn"])
                    if place in seen and len(faults) < MAX_FAULTS:
                        faults.append(Fault(f"{path} {place}", "stands there twice", "", "row-doubled"))
                    seen.add(place)
                    ids_without += not row["output_ids"]
        except (OSError, pa.ArrowInvalid) as error:
            return [Fault(str(path), f"damaged: {error}", "Run the stage again.", "table-damaged")]
    figures = record.get("figures") or {}
    kept = (figures.get("turns") or {}).get("kept")
    if kept is not None and kept != rows:
        faults.append(Fault(str(path), f"holds {rows} turns, the record says {kept}", "Run the stage again.", "count"))
    if ids_without and figures.get("asked") is not None:
        faults.append(Fault(str(path), f"{ids_without} turns have no sampled ids", "", "ids-missing"))
    return faults

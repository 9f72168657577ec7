"""The dataset's rows, streamed, and what the store already knows of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyrie.core.errors import EyrieError
from eyrie.responses.chat import Answer, Asker
from eyrie.responses.conversation import BadRow, Script
from eyrie.responses.store import Index, Store

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ["id", "source", "row", "conversation", "tools"]
BATCH = 256


@dataclass(slots=True)
class Job:
    """One conversation on its way.

    ordinal: row number in the dataset's table. failure: (reason, text) once it has failed for good.
    crashes: times the server died while this was in flight. keys, answers: the turns so far.
    """

    ordinal: int
    id: str
    source: str
    row: int
    script: Script
    key: str
    kind: int
    tries: int = 0
    crashes: int = 0
    enlarged: bool = False
    failure: tuple[str, str] | None = None
    answers: list[Answer] = field(default_factory=list)
    histories: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        return f"{self.source}:{self.row} ({self.id[:12]}) turn {self.script.turn}"


def dataset_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(ordinal, {id, source, row, conversation, tools}) of every row, in batches of constant memory."""
    import pyarrow.parquet as pq

    ordinal = 0
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as table:
        missing = set(COLUMNS) - set(table.schema_arrow.names)
        if missing:
            raise EyrieError(
                f"the dataset's table lacks {', '.join(sorted(missing))}.", where=str(path), code="dataset-schema"
            )
        for batch in table.iter_batches(batch_size=BATCH, columns=COLUMNS):
            for row in batch.to_pylist():
                yield ordinal, row
                ordinal += 1


def job_of(ordinal: int, row: dict[str, Any], asker: Asker) -> Job:
    """A row as a job. Raises BadRow."""
    import orjson

    try:
        messages = orjson.loads(row["conversation"] or "null")
        tools = orjson.loads(row["tools"]) if row["tools"] else None
    except (orjson.JSONDecodeError, TypeError) as error:
        raise BadRow(f"not JSON: {error}") from None
    if tools is not None and not isinstance(tools, list):
        raise BadRow("tools is no list")
    settings = asker.settings
    script = Script(messages, tools, settings.tool_match, settings.truncated == "keep")
    key = asker.conversation_key(script.base, script.tools)
    return Job(
        ordinal=ordinal,
        id=str(row["id"]),
        source=str(row["source"]),
        row=int(row["row"] or 0),
        script=script,
        key=key,
        kind=asker.choose(key),
    )


@dataclass
class Catalog:
    """What one pass over the whole dataset found, before the first request. Memory: 21 bytes a row.

    repeated [rows] bool: the same prompt stands earlier in the table. lengths [rows] int32: characters of the
    conversation. bad: ordinal -> why a row is no conversation.
    """

    repeated: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]
    bad: dict[int, str]
    turns: int

    def __len__(self) -> int:
        return len(self.repeated)


def catalog(path: Path, asker: Asker, pause: Callable[[], None] = lambda: None) -> Catalog:
    """Validate every row and find repeated prompts. pause: called between batches (a stop request raises there)."""
    from array import array

    import numpy as np

    high, low, lengths = array("Q"), array("Q"), array("i")
    bad: dict[int, str] = {}
    turns = 0
    for ordinal, row in dataset_rows(path):
        if ordinal % BATCH == 0:
            pause()
        lengths.append(min(len(row["conversation"] or ""), 2**31 - 1))
        try:
            job = job_of(ordinal, row, asker)
        except BadRow as error:
            bad[ordinal] = str(error)
            high.append(ordinal)
            low.append(0)  # never equal to a digest's lower half by anything but chance of 2**-64
            continue
        turns += job.script.asked
        high.append(int(job.key[:16], 16))
        low.append(int(job.key[16:], 16))
    a, b = np.array(high, dtype=np.uint64), np.array(low, dtype=np.uint64)
    order = np.lexsort((np.arange(len(a)), b, a))
    repeated = np.zeros(len(a), dtype=bool)
    if len(a):
        same = (a[order][1:] == a[order][:-1]) & (b[order][1:] == b[order][:-1])
        repeated[order[1:][same]] = True
    return Catalog(repeated, np.array(lengths, dtype=np.int32), bad, turns)


def replay(job: Job, asker: Asker, store: Store, index: Index, keep: bool = False, retry_poison: bool = False) -> Job:
    """Bring a job to the first turn that the store does not hold.

    keep: collect answers and histories (for the output); else only the script moves on.
    """
    import orjson

    if not len(index):
        return job
    script = job.script
    while not script.done:
        sampling = asker.sampling(job.kind, job.key, script.turn)
        place = index.find(asker.turn_key(script.history, script.tools, sampling))
        if place is None:
            break
        record = orjson.loads(store.read(place))
        if record.get("failed"):
            if not retry_poison:
                job.failure = (record["failed"], record.get("why", ""))
            break
        if keep:
            job.histories.append(orjson.dumps(script.history).decode())
        answer = Answer.from_record(record)
        if keep:
            job.answers.append(answer)
        script.take(answer)
    return job

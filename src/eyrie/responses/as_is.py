"""Without regeneration: the dataset's own answers, one row per assistant turn, without sampled ids.

They are other models' words: a draft trained on them agrees less with its target. The stage `tokens` derives their
masks from the chat template.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyrie.core.stage import Outcome, Work, tree_bytes
from eyrie.responses.output import TABLE, Books, TableWriter, schema
from eyrie.responses.rows import BATCH, dataset_rows

FINISH = "dataset"  # finish_reason of an answer that no server gave


def run(dataset: Path, out: Path, work: Work) -> Outcome:
    """Write out/responses.parquet from the conversations as they are."""
    books = Books()
    table = TableWriter(out / TABLE, schema())
    try:
        for ordinal, row in dataset_rows(dataset):
            if ordinal % BATCH == 0:
                work.check_stop()
                work.progress.update(ordinal)
            _settle(books, row, table)
    except BaseException:
        table.abandon()
        raise
    table.close()
    figures: dict[str, Any] = {"on_policy": False, **books.figures()}
    return Outcome(books.conversations, [TABLE], figures, tree_bytes(out))


def _settle(books: Books, row: dict[str, Any], table: TableWriter) -> None:
    import orjson

    source, where = str(row["source"]), f"{row['source']}:{row['row']}"
    accounts = (books.conversations, books.of(source))
    try:
        messages = orjson.loads(row["conversation"] or "null")
        turns = list(_turns(messages))
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        for account in accounts:
            account.drop("bad_row", f"{where}: {error}")
        return
    for number, (history, answer) in enumerate(turns):
        books.turns.keep()
        calls = answer.get("tool_calls")
        table.add(
            {
                "id": str(row["id"]),
                "source": source,
                "turn": number,
                "messages": orjson.dumps(history).decode(),
                "tools": row["tools"],
                "prompt_ids": [],
                "output_ids": [],
                "text": answer.get("content") or "",
                "reasoning": answer.get("reasoning"),
                "tool_calls": orjson.dumps(calls).decode() if calls else None,
                "finish_reason": FINISH,
                "sampling": None,
            }
        )
    for account in accounts:
        if turns:
            account.keep()
        else:
            account.drop("no_answer", where)


def _turns(messages: Any) -> Any:
    """(history, answer) of every assistant turn that answers a user."""
    if not isinstance(messages, list):
        raise TypeError("the conversation is no list of messages")
    asked = False
    for at, message in enumerate(messages):
        asked = asked or message["role"] == "user"
        if message["role"] == "assistant" and asked:
            yield messages[:at], message

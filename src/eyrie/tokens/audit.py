"""The loss-mask audit: what is supervised, per source and shown in a few samples, and what looks wrong."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.tokens.special import text_config
from eyrie.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from eyrie.tokens.build import Rows
    from eyrie.tokens.settings import Settings

log = logging.getLogger(__name__)

SHOWN_CHARS = 600  # of one segment; its middle is left out


def bos_id(model: Path) -> int | None:
    """The id that opens a text, from config.json; None where the model has none."""
    value = text_config(atomic.read_json(model / "config.json", {}) or {}).get("bos_token_id")
    return value if isinstance(value, int) else None


def audit(rows: Rows, model: Path, trust_remote_code: bool, settings: Settings) -> dict[str, Any]:
    """{rows, supervised_share (by source), clipped, dropped (by reason), double_bos, sources, warnings, samples}.

    sources: name -> {rows, tokens, supervised, clipped, dropped}. samples: [{source, id, turn, length, supervised,
    segments: [{text, supervised}]}], their texts decoded from the very ids that are trained on.
    """
    sources = by_source(rows)
    value: dict[str, Any] = {
        "rows": len(rows),
        "supervised_share": {
            name: round(found["supervised"] / found["tokens"], 4) for name, found in sources.items() if found["tokens"]
        },
        "clipped": rows.clipped.total(),
        "dropped": dict(sorted(rows.account.dropped.items())),
        "double_bos": rows.doubled,
        "sources": sources,
    }
    value["warnings"] = warnings(rows, settings)
    for text in value["warnings"]:
        log.warning("%s", text)
    try:
        tokenizer = Tokenizer.load(model, trust_remote_code)
    except EyrieError as error:
        value["samples"], value["samples_note"] = [], str(error)
    else:
        value["samples"] = [shown(rows, row, tokenizer) for row in chosen(rows, settings.audit_samples)]
    return value


def by_source(rows: Rows) -> dict[str, dict[str, Any]]:
    """What became of each source's turns, those sources included of which nothing was kept."""
    found: dict[str, dict[str, Any]] = {
        name: {
            "rows": 0,
            "tokens": 0,
            "supervised": 0,
            "clipped": rows.clipped[name],
            "dropped": dict(sorted(account.dropped.items())),
        }
        for name, account in sorted(rows.per_source.items())
    }
    for row, source in enumerate(rows.sources):
        entry = found[rows.names[source]]
        entry["rows"] += 1
        entry["tokens"] += rows.lengths[row]
        entry["supervised"] += rows.supervised(row)
    return found


def warnings(rows: Rows, settings: Settings) -> list[str]:
    """Sentences on what an operator should look at."""
    found = []
    account = rows.account
    clipped = rows.clipped.total()
    cut = clipped + account.dropped["overlong"] + account.dropped["prompt_fills_window"]
    if cut > settings.max_clipped_share * account.entered:
        found.append(
            f"{cut} of {account.entered} turns do not fit seq_length {settings.seq_length} "
            f"({clipped} clipped, the rest dropped): raise eyrie_tokens_seq_length."
        )
    if rows.doubled:
        found.append(
            f"{rows.doubled} rows begin with two beginning-of-sequence tokens: template and tokenizer both add one."
        )
    empty = account.dropped["nothing_supervised"]
    if empty:
        found.append(f"{empty} turns had no supervised token.")
    return found


def chosen(rows: Rows, count: int) -> list[int]:
    """Row numbers to show: the first `count` of each source, source by source."""
    places: dict[int, list[int]] = {}
    for row, source in enumerate(rows.sources):
        known = places.setdefault(source, [])
        if len(known) < count:
            known.append(row)
    return [row for source in sorted(places, key=lambda number: rows.names[number]) for row in places[source]]


def shown(rows: Rows, row: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """One sample as segments of text."""
    import numpy as np

    ids = np.fromfile(rows.path, dtype="<i4", count=rows.lengths[row], offset=4 * rows.offsets[row]).tolist()
    edges = rows.spans[row]
    segments, at = [], 0
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if start > at:
            segments.append({"text": shorten(tokenizer.decode(ids[at:start])), "supervised": False})
        segments.append({"text": shorten(tokenizer.decode(ids[start:end])), "supervised": True})
        at = end
    if at < len(ids):
        segments.append({"text": shorten(tokenizer.decode(ids[at:])), "supervised": False})
    return {
        "source": rows.names[rows.sources[row]],
        "id": rows.ids[row],
        "turn": rows.turns[row],
        "length": rows.lengths[row],
        "supervised": rows.supervised(row),
        "segments": segments,
    }


def shorten(text: str) -> str:
    if len(text) <= SHOWN_CHARS:
        return text
    half = SHOWN_CHARS // 2
    return f"{text[:half]} [... {len(text) - SHOWN_CHARS} characters ...] {text[-half:]}"

"""The tokens stage's loss-mask audit: what is supervised per source, what was cut or left out, samples as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyrie.core import atomic

#: reasons for which a turn has nothing that a loss could see
ZERO_MASK = ("nothing_supervised", "prompt_fills_window", "too_few_supervised")


def read(tokens: Path) -> dict[str, Any]:
    """audit.json of the tokens stage's folder; {} where there is none."""
    value = atomic.read_json(tokens / "audit.json", {})
    return value if isinstance(value, dict) else {}


def figures(audit: dict[str, Any]) -> dict[str, Any] | None:
    """The audit without its texts: {rows, clipped, zero_mask, dropped, double_bos, warnings, sources}; None without."""
    if not audit:
        return None
    dropped = dict(audit.get("dropped") or {})
    return {
        "rows": audit.get("rows", 0),
        "clipped": audit.get("clipped", 0),
        "zero_mask": zero_mask(dropped),
        "dropped": dropped,
        "double_bos": audit.get("double_bos", 0),
        "warnings": list(audit.get("warnings") or []),
        "sources": dict(audit.get("sources") or {}),
    }


def zero_mask(dropped: dict[str, int]) -> int:
    """Turns that were left out because their mask was, or would have been, zero all over."""
    return sum(dropped.get(reason, 0) for reason in ZERO_MASK)


def samples(audit: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Up to `count` samples of each source, by source: {source, id, turn, length, supervised, parts: [{on, text}]}."""
    found: dict[str, list[dict[str, Any]]] = {}
    for item in audit.get("samples") or []:
        known = found.setdefault(str(item["source"]), [])
        if len(known) < count:
            known.append(_shown(item))
    return [item for name in sorted(found) for item in found[name]]


def _shown(item: dict[str, Any]) -> dict[str, Any]:
    parts = item.get("segments") or []
    return {
        "source": str(item["source"]),
        "id": str(item.get("id") or "")[:12],
        "turn": item.get("turn", 0),
        "length": item.get("length"),
        "supervised": item.get("supervised"),
        "parts": [{"on": bool(part["supervised"]), "text": str(part["text"])} for part in parts],
    }


def table(audit: dict[str, Any]) -> list[list[str]]:
    """Per source and in all: turns that became rows, supervised share, cut rows, turns without a mask, other drops."""
    rows = [
        _row(name, entry["rows"], entry["tokens"], entry["supervised"], entry["clipped"], entry["dropped"])
        for name, entry in sorted(audit["sources"].items())
    ]
    if len(rows) != 1:
        entries = list(audit["sources"].values())
        count, tokens, supervised = (sum(entry[key] for entry in entries) for key in ("rows", "tokens", "supervised"))
        rows.append(_row("all", count, tokens, supervised, audit["clipped"], audit["dropped"]))
    return rows


def _row(name: str, rows: int, tokens: int, supervised: int, clipped: int, dropped: dict[str, int]) -> list[str]:
    others = {reason.replace("_", " "): count for reason, count in dropped.items() if reason not in ZERO_MASK}
    listed = ", ".join(f"{reason} {count:,}" for reason, count in sorted(others.items(), key=lambda item: -item[1]))
    share = f"{100 * supervised / tokens:.1f} %" if tokens else "-"
    return [name, f"{rows:,}", f"{tokens:,}", share, f"{clipped:,}", f"{zero_mask(dropped):,}", listed or "-"]

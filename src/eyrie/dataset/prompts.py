"""Prompts that the project makes itself: templates times fillers, chosen by seed. Standard library only."""

from __future__ import annotations

import hashlib
import json
import re
from importlib import resources
from pathlib import Path

SLOT = re.compile(r"\{(\w+)\}")
#: prompts of one template at most, so that a template with large numbers does not fill the set
PER_TEMPLATE = 120


def data_file(name: str) -> Path:
    """A data file of this package (an installed wheel is unpacked, so it is a real path)."""
    return Path(str(resources.files("eyrie.dataset") / "data" / name))


def generated(seed: int, limit: int = 0) -> list[dict[str, str]]:
    """Distinct prompts [{prompt, family}], templates in turn, the same for the same seed on every machine.

    limit: prompts at most; 0 = all that PER_TEMPLATE allows.
    """
    data = json.loads(data_file("prompts.json").read_text("utf-8"))
    fillers: dict[str, list[str]] = data["fillers"]
    columns = [_filled(item["text"], fillers, f"{seed}:{index}") for index, item in enumerate(data["templates"])]
    seen: set[str] = set()
    rows: list[dict[str, str]] = []
    for turn in range(PER_TEMPLATE):
        for item, texts in zip(data["templates"], columns, strict=True):
            if turn >= len(texts) or texts[turn] in seen:
                continue
            seen.add(texts[turn])
            rows.append({"prompt": texts[turn], "family": item["family"]})
            if len(rows) == limit:
                return rows
    return rows


def _filled(template: str, fillers: dict[str, list[str]], key: str) -> list[str]:
    """Up to PER_TEMPLATE fillings of one template, in an order drawn from the key."""
    slots = list(dict.fromkeys(SLOT.findall(template)))
    total = 1
    for slot in slots:
        total *= len(fillers[slot])
    chosen: dict[int, None] = {}
    draw = 0
    while len(chosen) < min(total, PER_TEMPLATE):
        digest = hashlib.sha256(f"{key}:{draw}".encode()).digest()
        chosen[int.from_bytes(digest[:8], "big") % total] = None
        draw += 1
    return [_at(template, slots, fillers, number) for number in chosen]


def _at(template: str, slots: list[str], fillers: dict[str, list[str]], number: int) -> str:
    values = {}
    for slot in slots:
        number, index = divmod(number, len(fillers[slot]))
        values[slot] = fillers[slot][index]
    text = SLOT.sub(lambda match: values[match.group(1)], template)
    return text[:1].upper() + text[1:]


def open_prompts(path: Path | None = None) -> list[str]:
    """Open-ended prompts of another kind, whose templates never occur in training: one a line."""
    text = (path or data_file("open.txt")).read_text("utf-8-sig")
    return [line.strip() for line in text.splitlines() if line.strip()]

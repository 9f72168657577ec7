"""Head and embeddings of a draft: there, finite, and not fresh random numbers. Reads a few rows only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from eyrie.gates.tensors import Entry, rows

SAMPLE = 64
#: cosine between a draft's row and the target's row of the same token; unrelated rows give about 0
RELATED = 0.1


def head(draft: Mapping[str, Entry], target: Mapping[str, Entry], targets: Sequence[int]) -> str | None:
    """lm_head [draft_vocab, hidden]; `targets`: the target id of each draft id."""
    own = _find(draft, "lm_head.weight")
    if own is None:
        return "the checkpoint holds no lm_head.weight: an engine would draft with a random head."
    if own.shape[0] != len(targets):
        return f"lm_head.weight has {own.shape[0]} rows, draft_vocab_size is {len(targets)}."
    source = _find(target, "lm_head.weight") or _find(target, "embed_tokens.weight")
    return _compare("lm_head.weight", own, source, targets)


def embeddings(draft: Mapping[str, Entry], target: Mapping[str, Entry], vocab: int) -> str | None:
    """embed_tokens [vocab, hidden], when the draft brings its own; without them it shares the target's."""
    own = _find(draft, "embed_tokens.weight")
    if own is None:
        return None
    if own.shape[0] != vocab:
        return f"embed_tokens.weight has {own.shape[0]} rows, vocab_size is {vocab}."
    return _compare("embed_tokens.weight", own, _find(target, "embed_tokens.weight"), range(vocab))


def _find(tensors: Mapping[str, Entry], name: str) -> Entry | None:
    """By its plain name, or below the prefixes that models keep their text part under."""
    for prefix in ("", "model.", "language_model.", "language_model.model.", "model.language_model."):
        if prefix + name in tensors:
            return tensors[prefix + name]
    return None


def _compare(name: str, own: Entry, source: Entry | None, tokens: Sequence[int]) -> str | None:
    picked = (
        [index * len(tokens) // SAMPLE for index in range(SAMPLE)] if len(tokens) > SAMPLE else list(range(len(tokens)))
    )
    mine = rows(own, picked)
    if any(not math.isfinite(value) for row in mine for value in row):
        return f"{name} holds values that are no numbers: it was never loaded."
    norms = [math.sqrt(sum(value * value for value in row)) for row in mine]
    if not any(norms):
        return f"{name} is all zeros."
    if source is not None and source.shape[1] == own.shape[1]:
        theirs = rows(source, [tokens[index] for index in picked])
        related = [value for value in map(_cosine, mine, theirs) if value is not None]
        if related and sum(related) / len(related) >= RELATED:
            return None
    if _looks_fresh(mine, norms, own.shape[1]):
        return f"{name} looks like fresh random numbers: it was neither trained nor taken from the target."
    return None


def _cosine(first: Sequence[float], second: Sequence[float]) -> float | None:
    product = math.sqrt(sum(a * a for a in first) * sum(b * b for b in second))
    return sum(a * b for a, b in zip(first, second, strict=True)) / product if product else None


def _looks_fresh(mine: Sequence[Sequence[float]], norms: Sequence[float], width: int) -> bool:
    """Independent draws give rows of nearly one length (spread 1/sqrt(2 x width)); training spreads them."""
    mean = sum(norms) / len(norms)
    spread = math.sqrt(sum((norm - mean) ** 2 for norm in norms) / len(norms)) / mean
    return spread < 2 / math.sqrt(2 * width)

"""The draft's vocabulary: d2t [draft_vocab] int64 offsets (target = draft + d2t[draft]), t2d [vocab] bool mask."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any


def size(draft_vocab_size: Any, vocab_size: int) -> str | None:
    """draft_vocab_size is a number in 1..vocab_size, or absent (then the whole vocabulary)."""
    if draft_vocab_size is None:
        return None
    if isinstance(draft_vocab_size, bool) or not isinstance(draft_vocab_size, int):
        return f"draft_vocab_size must be a number, got {draft_vocab_size!r} (vocab_size {vocab_size})."
    if not 1 <= draft_vocab_size <= vocab_size:
        return f"draft_vocab_size {draft_vocab_size} must lie in 1..{vocab_size} (vocab_size)."
    return None


def mapping(d2t: Sequence[int] | None, t2d: Sequence[bool] | None, draft_vocab: int, vocab: int) -> str | None:
    """The two tables say the same, within range, and do not cut the vocabulary to its first ids."""
    if d2t is None and t2d is None:
        if draft_vocab == vocab:
            return None
        return (
            f"d2t and t2d are missing: the draft's {draft_vocab} ids would be read as target ids 0..{draft_vocab - 1}."
        )
    if d2t is None or t2d is None:
        return f"{'d2t' if d2t is None else 't2d'} is missing beside the other."
    if len(d2t) != draft_vocab:
        return f"d2t has {len(d2t)} entries, draft_vocab_size is {draft_vocab}."
    if len(t2d) != vocab:
        return f"t2d has {len(t2d)} entries, vocab_size is {vocab}."
    targets = [index + offset for index, offset in enumerate(d2t)]
    allowed = {token for token, used in enumerate(t2d) if used}
    return (
        _absolute(d2t, targets, allowed, vocab)
        or _in_range(targets, vocab)
        or _rising(targets)
        or _agree(targets, allowed, draft_vocab)
        or _identity(d2t, draft_vocab, vocab)
    )


def _absolute(d2t: Sequence[int], targets: Sequence[int], allowed: set[int], vocab: int) -> str | None:
    """A table of absolute ids, read as offsets, points elsewhere (and mostly beyond the vocabulary)."""
    rising = all(a < b for a, b in pairwise(d2t))
    if any(d2t) and rising and set(targets) != allowed and (set(d2t) == allowed or max(targets) >= vocab):
        return (
            f"d2t looks like absolute ids, not offsets: draft id {len(d2t) - 1} would mean target id {targets[-1]} "
            f"of {vocab}. Subtract the index from each entry."
        )
    return None


def _in_range(targets: Sequence[int], vocab: int) -> str | None:
    for index, token in enumerate(targets):
        if not 0 <= token < vocab:
            return f"d2t[{index}] points to target id {token}, allowed are 0..{vocab - 1}."
    return None


def _rising(targets: Sequence[int]) -> str | None:
    for index, (token, following) in enumerate(pairwise(targets)):
        if following <= token:
            return (
                f"d2t[{index + 1}] points to target id {following}, not above {token} of d2t[{index}]: "
                "ids must rise and occur once."
            )
    return None


def _agree(targets: Sequence[int], allowed: set[int], draft_vocab: int) -> str | None:
    if len(allowed) != draft_vocab:
        return f"t2d marks {len(allowed)} target ids, draft_vocab_size is {draft_vocab}."
    differing = sorted(set(targets) ^ allowed)
    if differing:
        token = differing[0]
        says = "t2d does not mark it" if token in targets else "only t2d marks it"
        return f"d2t and t2d contradict each other, first at target id {token}: {says}."
    return None


def _identity(d2t: Sequence[int], draft_vocab: int, vocab: int) -> str | None:
    if draft_vocab < vocab and not any(d2t):
        return f"the draft can only say target ids 0..{draft_vocab - 1} of {vocab}: its mapping was never made."
    return None

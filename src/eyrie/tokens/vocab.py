"""The draft vocabulary: which of the target's tokens the draft can predict.

d2t int64 [N]: OFFSETS, target id = draft id + d2t[draft id] (speculators, vLLM). t2d bool [V]: True where the target's
token is in the draft vocabulary. Both are checked against each other before they are used: tables that read as
absolute ids, run out of the vocabulary, repeat or contradict each other train a draft that never agrees.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eyrie.core.errors import EyrieError

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger(__name__)


@dataclass
class Vocab:
    """The chosen target ids, int64 [N], ascending.

    seen: how many of them occur in answers; from_prompts, filled: how many only in prompts, and nowhere.
    """

    ids: np.ndarray[Any, Any]
    size: int  # V, the target's vocabulary
    required: int
    seen: int
    from_prompts: int
    filled: int

    @property
    def d2t(self) -> np.ndarray[Any, Any]:
        import numpy as np

        return np.asarray(self.ids - np.arange(len(self.ids), dtype=np.int64))

    @property
    def t2d(self) -> np.ndarray[Any, Any]:
        import numpy as np

        table = np.zeros(self.size, dtype=np.bool_)
        table[self.ids] = True
        return table


def build(
    supervised: np.ndarray[Any, Any],
    draft_size: int,
    required: Iterable[int] = (),
    context: np.ndarray[Any, Any] | None = None,
) -> Vocab:
    """Choose draft_size ids: required ones, then by supervised frequency (ties: the lower id).

    supervised, context: int64 [V], counts of each id in supervised and in other positions. Where fewer distinct ids
    occur than asked for, the rest is filled from the context's frequencies, then by ascending id, with a warning that
    says how many. Raises EyrieError.
    """
    import numpy as np

    size = len(supervised)
    check_size(draft_size, size)
    must = np.unique(np.fromiter(required, dtype=np.int64))
    if len(must) and (must[0] < 0 or must[-1] >= size):
        bad = [int(token) for token in must if not 0 <= token < size]
        raise EyrieError(f"required tokens {bad[:5]} lie outside the vocabulary of {size}.", code="vocab-id-outside")
    if len(must) > draft_size:
        raise EyrieError(
            f"draft_vocab_size {draft_size} is smaller than the {len(must)} tokens that must be in it.",
            todo="Raise eyrie_tokens_draft_vocab_size.",
            code="vocab-too-small",
        )
    other = np.zeros(size, dtype=np.int64) if context is None else context
    forced = np.zeros(size, dtype=np.bool_)
    forced[must] = True
    order = np.lexsort((np.arange(size), -other, -supervised, ~forced))
    ids = np.sort(order[:draft_size].astype(np.int64))
    seen = int(np.count_nonzero(supervised[ids]))
    from_prompts = int(np.count_nonzero((supervised[ids] == 0) & (other[ids] > 0) & ~forced[ids]))
    filled = int(np.count_nonzero((supervised[ids] == 0) & (other[ids] == 0) & ~forced[ids]))
    if filled or from_prompts:
        log.warning(
            "%d of %d ids of the draft vocabulary are never seen in an answer (%d occur in prompts, %d nowhere): "
            "there are too few distinct answer tokens for draft_vocab_size",
            filled + from_prompts,
            draft_size,
            from_prompts,
            filled,
        )
    return Vocab(ids, size, len(must), seen, from_prompts, filled)


def check_size(draft_size: Any, size: int) -> None:
    """Raises EyrieError unless 1 <= draft_size <= size."""
    if not isinstance(draft_size, int) or isinstance(draft_size, bool) or not 1 <= draft_size <= size:
        raise EyrieError(
            f"draft_vocab_size {draft_size!r} must lie between 1 and the target's vocabulary of {size}.",
            todo="Set eyrie_tokens_draft_vocab_size, or null for the whole vocabulary.",
            code="vocab-size",
        )


def check_tables(d2t: Any, t2d: Any, size: int, draft_size: int | None = None) -> None:
    """Refuse tables that are no draft vocabulary of a target of `size` ids. Raises EyrieError naming the first fault.

    d2t, t2d: anything numpy reads as an array. draft_size: the size that is asked for, where it is known.
    """
    import numpy as np

    d2t, t2d = np.asarray(d2t), np.asarray(t2d)
    if d2t.ndim != 1 or not np.issubdtype(d2t.dtype, np.integer):
        raise _bad(f"d2t must be a vector of integers, it is {d2t.dtype} of shape {d2t.shape}")
    if t2d.ndim != 1 or t2d.dtype != np.bool_:
        raise _bad(f"t2d must be a vector of booleans, it is {t2d.dtype} of shape {t2d.shape}")
    count = len(d2t)
    if draft_size is not None and count != draft_size:
        raise _bad(f"d2t has {count} ids, draft_vocab_size is {draft_size}")
    check_size(count, size)
    if len(t2d) != size:
        raise _bad(f"t2d has {len(t2d)} entries, the target's vocabulary has {size}")
    ids = np.arange(count, dtype=np.int64) + d2t.astype(np.int64)
    marked = int(np.count_nonzero(t2d))
    absolute = marked == count and bool(np.array_equal(np.flatnonzero(t2d), d2t)) and not np.array_equal(ids, d2t)
    if absolute:
        raise _bad("d2t looks like absolute ids; it must hold offsets (target id - draft id)")
    outside = np.flatnonzero((ids < 0) | (ids >= size))
    if len(outside):
        place = int(outside[0])
        hint = "; d2t looks like absolute ids" if np.all(np.diff(d2t) > 0) and d2t[0] >= 0 and d2t[-1] < size else ""
        raise _bad(
            f"d2t[{place}] = {int(d2t[place])} gives target id {int(ids[place])}, allowed is 0..{size - 1}{hint}"
        )
    falling = np.flatnonzero(np.diff(ids) <= 0)
    if len(falling):
        place = int(falling[0]) + 1
        raise _bad(
            f"d2t[{place}] = {int(d2t[place])} gives target id {int(ids[place])} after {int(ids[place - 1])}: "
            "target ids must ascend, none twice"
        )
    table = np.zeros(size, dtype=np.bool_)
    table[ids] = True
    wrong = np.flatnonzero(table != t2d)
    if len(wrong):
        place = int(wrong[0])
        said = "has" if table[place] else "lacks"
        raise _bad(
            f"d2t and t2d contradict each other: d2t {said} target id {place}, t2d says the opposite ({marked} marked)"
        )


def check_not_a_slice(d2t: Any, size: int) -> None:
    """Refuse a reduced vocabulary that is just the lowest ids: an unset mapping looks exactly so. Raises EyrieError."""
    import numpy as np

    d2t = np.asarray(d2t)
    if len(d2t) < size and not d2t.any():
        raise _bad(f"all offsets are zero: the draft could only ever say ids 0..{len(d2t) - 1} of {size}")


def check_ids(counts: np.ndarray[Any, Any] | dict[int, int], size: int, tokenizer_size: int | None = None) -> None:
    """Every counted id lies in the target's vocabulary. Raises EyrieError naming those that do not."""
    import numpy as np

    ids = sorted(counts) if isinstance(counts, dict) else [int(token) for token in np.flatnonzero(counts)]
    bad = [token for token in ids if not 0 <= token < size]
    if bad:
        why = f"The tokenizer has {tokenizer_size} tokens, the model's vocabulary {size}." if tokenizer_size else ""
        raise EyrieError(
            f"token ids {bad[:5]} lie outside the target's vocabulary of {size}.",
            why=why,
            todo="Check eyrie_target_vocab_size against the model's config.json and its tokenizer.",
            code="vocab-id-outside",
        )


def coverage(counts: np.ndarray[Any, Any], t2d: np.ndarray[Any, Any]) -> float:
    """Share of counted tokens that the draft vocabulary holds; 1.0 when nothing was counted."""
    total = int(counts.sum())
    return 1.0 if total == 0 else float(counts[t2d].sum() / total)


def _bad(text: str) -> EyrieError:
    return EyrieError(
        f"the draft vocabulary is refused: {text}.", code="vocab-refused", todo="Run the stage tokens again."
    )

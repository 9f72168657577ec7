"""Typed settings of the stage `tokens`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eyrie.core.spec import setting


@dataclass
class Settings:
    """Settings of `tokens`: rows of at most seq_length tokens, and the draft vocabulary."""

    seq_length: int = setting(2048, doc="tokens of one training row at most")
    overlong: Literal["clip", "drop"] = setting("clip", doc="rows longer than seq_length: cut their end, or leave out")
    min_supervised: int = setting(1, doc="rows with fewer supervised tokens are dropped")
    merge_turns: bool = setting(True, doc="turns whose prompt repeats the earlier turn token for token share one row")
    shuffle_seed: int = setting(0, doc="conversations are shuffled, the turns of one stay together")
    draft_vocab_size: int | None = setting(
        None, doc="ids that the draft can predict; null: the target's whole vocabulary"
    )
    keep_tokens: list[str] = setting([], doc="more tokens that must be in the draft vocabulary, as text of one token")
    min_coverage: float = setting(0.9, doc="least share of a source's supervised tokens that the draft can predict")
    coverage_policy: Literal["warn", "fail"] = "warn"
    chat_template_kwargs: dict[str, object] = setting(
        {}, doc="for rows without sampled ids, rendered from the template"
    )
    max_clipped_share: float = setting(0.05, identity=False, doc="more clipped or dropped rows than this are warned of")
    audit_samples: int = setting(2, identity=False, doc="samples of each source whose mask borders the report shows")

    def __post_init__(self) -> None:
        if self.seq_length < 2:
            raise ValueError("seq_length must be at least 2.")
        if self.min_supervised < 1:
            raise ValueError("min_supervised must be at least 1: rows without supervised tokens train nothing.")
        if self.draft_vocab_size is not None and self.draft_vocab_size < 1:
            raise ValueError(
                f"draft_vocab_size {self.draft_vocab_size} must be at least 1, or null for the whole vocabulary."
            )
        if not 0 <= self.min_coverage <= 1:
            raise ValueError("min_coverage must lie between 0 and 1.")

"""Typed settings of the stage `responses`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from eyrie.core.spec import setting

Policy = Literal["drop", "keep"]


@dataclass
class Mix:
    """One kind of sampling in a mix; a prompt's kind is chosen by weight, from the seed and the prompt's own key.

    None leaves a parameter out of the request: the server's own default, recorded as such.
    """

    weight: float = 1.0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] = setting({})

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ValueError(f"weight {self.weight} must be above 0.")


@dataclass
class Settings:
    """Settings of `responses`. Fields with identity=False cannot change an answer."""

    regenerate: bool = setting(True, doc="false: keep the dataset's own answers (off-policy; masks from the template)")
    temperature: float | None = setting(0.0, doc="null: the server's default")
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int = setting(0, doc="seeds of single prompts and the choice within a mix derive from it")
    mix: list[Mix] = setting([], doc="sampling kinds by weight; empty: the settings above for every prompt")
    max_tokens: int = setting(2048, doc="tokens of one answer at most, clamped to the context that is left")
    min_answer: int = setting(16, doc="a prompt that leaves less context than this is dropped (prompt_too_long)")
    chat_template_kwargs: dict[str, Any] = setting({}, doc="passed to the chat template, e.g. {thinking: true}")
    truncated: Policy = setting("drop", doc="answers that max_tokens cut off")
    content_filter: Policy = "drop"
    reasoning_only: Policy = setting("drop", doc="finished without a word outside the reasoning")
    reasoning_retry: float = setting(
        2.0, doc="an unfinished reasoning is asked for once more with max_tokens x this; 1: no"
    )
    think_tags: list[str] = setting(
        ["<think>", "</think>"], doc="reasoning marks in the text, where the server has no parser"
    )
    tool_match: Literal["name", "arguments"] = setting("name", doc="what a call must share with a stored tool result")

    concurrency: int = setting(0, identity=False, doc="requests in flight per endpoint; 0: found by the controller")
    max_concurrency: int = setting(1024, identity=False)
    latency_bound_s: float = setting(0.0, identity=False, doc="the controller stays below this median latency; 0: none")
    request_timeout_s: float = setting(0.0, identity=False, doc="0: from max_tokens and the slowest tolerable rate")
    idle_timeout_s: float = setting(300.0, identity=False, doc="an endpoint silent this long with work in flight hangs")
    outage_limit_s: float = setting(2700.0, identity=False, doc="how long to wait for a server that is gone")
    tries: int = setting(3, identity=False, doc="attempts at one prompt before it counts as failed")
    order: Literal["dataset", "longest_first", "bucketed"] = setting("dataset", identity=False)
    max_failed_share: float = setting(0.02, identity=False)
    max_empty_share: float = setting(0.01, identity=False)
    warn_truncated_share: float = setting(0.05, identity=False)
    share_after: int = setting(50, identity=False, doc="the shares stop a run early only after so many conversations")
    retry_poison: bool = setting(
        False, identity=False, doc="ask again for prompts that are recorded as crashing the server"
    )

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.min_answer < 1 or self.tries < 1:
            raise ValueError("max_tokens, min_answer and tries must be at least 1.")
        if self.min_answer > self.max_tokens:
            raise ValueError(f"min_answer {self.min_answer} is above max_tokens {self.max_tokens}.")
        if len(self.think_tags) not in (0, 2):
            raise ValueError("think_tags must be an opening and a closing mark, or empty.")
        if self.concurrency < 0 or self.max_concurrency < 1:
            raise ValueError("concurrency must be 0 (found) or more, max_concurrency at least 1.")
        if self.reasoning_retry < 1:
            raise ValueError("reasoning_retry must be at least 1.")

    def kinds(self) -> list[Mix]:
        """The sampling kinds: the mix, or the one that the plain settings describe."""
        return self.mix or [Mix(1.0, self.temperature, self.top_p, self.top_k, self.min_p, self.repetition_penalty)]

"""The benchmark's typed settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eyrie.core.spec import setting

BASELINE, EAGLE3, UNTRAINED, NGRAM, SWEEP = "baseline", "eagle3", "untrained", "ngram", "sweep"
Variant = Literal["baseline", "eagle3", "untrained", "ngram", "sweep"]


@dataclass
class Grid:
    """A block of cells: one prompt set at several concurrencies.

    end 'natural': answers end where the model ends them, at output_tokens at the latest.
    end 'fixed': every answer is exactly output_tokens long (the end token is ignored); steady load, but what
    comes after a natural end is text that no user sees: such cells are marked.
    prompts: how many at least; each stream gets at least `streams` prompts in a row (Settings).
    """

    set: str
    concurrency: list[int]
    temperature: float = 0.0
    end: Literal["natural", "fixed"] = "natural"
    output_tokens: int = 128
    prompts: int = 16
    variants: list[Variant] = setting(["baseline", "eagle3"])

    def __post_init__(self) -> None:
        if not self.concurrency or min(self.concurrency) < 1:
            raise ValueError("concurrency must list numbers of at least 1.")
        if self.temperature < 0:
            raise ValueError("temperature must not be negative.")
        if self.output_tokens < 2 or self.prompts < 1:
            raise ValueError("output_tokens must be at least 2 and prompts at least 1.")
        if not self.variants:
            raise ValueError("variants must name at least one of what is compared.")


@dataclass
class PromptFile:
    """A file of questions on the node, one JSON object a line; prompts.as_messages names the forms."""

    name: str
    src: str = setting(identity=False, doc="the file on the controller; its base name is the file on the node")
    limit: int = setting(0, doc="questions to take at most; 0 = all")


@dataclass
class Settings:
    """What is measured, how often, and what follows from it.

    The first grid entry is the headline: its prompt set, natural ends and temperature decide.
    """

    grid: list[Grid]
    rounds: int = setting(2, doc="times that baseline and EAGLE3 take turns: A/B/A/B")
    repeats: int = setting(1, doc="times that each cell is measured within one turn")
    warmup: int = setting(4, doc="requests sent before the first cell of a server, never counted")
    streams: int = setting(2, doc="prompts that each concurrent stream answers one after another, at least")
    k_sweep: list[int] = setting([], doc="numbers of draft tokens measured for grid entries with variant 'sweep'")
    ngram_tokens: int = setting(0, doc="draft tokens of the n-gram control; 0 = as EAGLE3")
    ngram_max: int = 4
    ngram_min: int = 2
    lossless_prompts: int = setting(0, doc="prompts of the fp32 losslessness check; 0 = no check")
    lossless_tokens: int = 64
    prompt_files: list[PromptFile] = setting([])
    prompt_folder: str = setting("", identity=False, doc="where the question files are on the node")
    seed: int = 0
    min_gain: float = setting(0.0, doc="gain over the baseline that a promotion needs: 0.05 = 5 %")
    promote: bool = setting(True, identity=False, doc="make a winning draft the current one")
    after: Literal["serve", "restore", "stop"] = setting("serve", identity=False)
    keep_drafts: int = setting(5, identity=False)
    cell_timeout_s: float = setting(1800.0, identity=False)

    def path(self, entry: PromptFile) -> Path:
        """A question file on the node."""
        return Path(self.prompt_folder) / Path(entry.src).name

    def __post_init__(self) -> None:
        if not self.grid:
            raise ValueError("grid is empty: nothing would be measured.")
        head = self.grid[0]
        if head.end != "natural" or not {BASELINE, EAGLE3} <= set(head.variants):
            raise ValueError("the first grid entry decides: it needs natural ends, baseline and eagle3.")
        if min(self.rounds, self.repeats, self.streams) < 1 or self.warmup < 0:
            raise ValueError("rounds, repeats and streams must be at least 1, warmup at least 0.")
        swept = any(SWEEP in entry.variants for entry in self.grid)
        if swept != bool(self.k_sweep):
            raise ValueError("k_sweep and a grid entry with variant 'sweep' belong together: one is missing.")
        if any(k < 1 for k in self.k_sweep):
            raise ValueError("k_sweep must list numbers of at least 1.")
        names = [entry.name for entry in self.prompt_files]
        if len(set(names)) != len(names) or {"heldout", "open"} & set(names):
            raise ValueError("prompt_files need distinct names, other than heldout and open.")
        for entry in self.grid:
            if entry.set not in {"heldout", "open", *names}:
                raise ValueError(f"grid names the prompt set {entry.set!r}; there are heldout, open {names or ''}.")

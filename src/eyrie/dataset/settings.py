"""Typed settings of the dataset stage: the registry of sources, and what is made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eyrie.core.spec import nearest, setting

Kind = Literal["hub", "local", "package", "generated"]
Adapter = Literal["messages", "sharegpt", "pair", "prompt", "alternating", "hermes"]
Format = Literal["auto", "json", "jsonl", "parquet", "arrow", "csv", "yaml", "text"]

#: settings that each kind cannot do without
NEEDS = {"hub": ("repository",), "local": ("path",), "package": ("package", "files"), "generated": ()}
#: column roles that an entry may rename
COLUMN_ROLES = ("conversation", "role", "content", "system", "prompt", "input", "response", "tools", "reasoning")


@dataclass
class Source:
    """One entry of the registry.

    kind 'hub': files of a dataset repository at a revision (a commit of 40 hex digits; '' is resolved on the first
      run and locked; a branch name is compared with the lock whenever the stage runs).
    kind 'local': a file or folder. kind 'package': data files inside an installed Python distribution.
    kind 'generated': prompts that the project makes itself from templates, by seed.
    adapter: the schema, stated and never guessed (see adapters.py).
    columns: which column plays which role, where it is not the adapter's own name for it.
    quota: rows of this source in the mix at most; 0 = no limit. weight: share of the mix when `samples` limits it.
    """

    kind: Kind
    adapter: Adapter
    repository: str = ""
    revision: str = ""
    config: str = ""
    split: str = ""
    package: str = ""
    path: str = setting("", identity=False)
    files: list[str] = setting([], doc="glob patterns below the repository, package or folder")
    format: Format = "auto"
    field: str = setting("", doc="key that holds the rows, where a JSON or YAML file is one object")
    delimiter: str = setting("", doc="CSV: '' = comma, or tab for .tsv")
    columns: dict[str, str] = setting({})
    think: list[str] = setting(["<think>", "</think>"], doc="tags around reasoning inside answers")
    answer: list[str] = setting([], doc="tags around the final answer, removed")
    max_turns: int = setting(0, doc="user turns kept of a conversation; 0 = all")
    rows: int = setting(0, doc="rows read at most, in file order; generated: prompts made; 0 = all")
    quota: int = setting(0, identity=False)
    weight: float = setting(1.0, identity=False)
    gated: bool = setting(False, identity=False)
    licence: str = setting("", identity=False)
    bytes: int = setting(0, identity=False, doc="size of the files, for the plan before anything is downloaded")

    def __post_init__(self) -> None:
        for name in NEEDS[self.kind]:
            if not getattr(self, name):
                raise ValueError(f"kind {self.kind!r} needs {name!r}.")
        if self.kind == "hub" and not (self.files or self.split):
            raise ValueError("kind 'hub' needs 'files' (patterns) or 'split'.")
        for role in self.columns:
            if role not in COLUMN_ROLES:
                raise ValueError(f"columns: there is no role {role!r}.{nearest(role, COLUMN_ROLES)}")
        if len(self.think) not in (0, 2) or len(self.answer) not in (0, 2):
            raise ValueError("think and answer are pairs of tags, [open, close], or empty.")
        if self.weight <= 0:
            raise ValueError(f"weight {self.weight} must be above 0; leave the source out of `sources` instead.")
        if min(self.quota, self.rows, self.max_turns) < 0:
            raise ValueError("quota, rows and max_turns must not be negative.")


@dataclass
class Settings:
    """Settings of the stage.

    registry: all known sources by name. sources: the names that this run uses, in order of precedence (of two equal
      prompts the one of the earlier source is kept).
    samples: rows of train.parquet; 0 = all that is left. heldout: rows kept out of training for the benchmark.
    exclude: files with prompts (JSON, JSONL, text) that must not be in training; exclude_sources: the same, as
      names of registry entries.
    """

    registry: dict[str, Source] = setting(identity=False)
    sources: list[str] = setting()
    samples: int = 0
    heldout: int = 40
    open_prompts: str = setting("", identity=False, doc="text file, one prompt a line; '' = the project's own")
    seed: int = 0
    dedup: Literal["exact", "minhash", "none"] = "exact"
    dedup_turns: int = setting(1, doc="user turns that make two conversations equal")
    minhash_threshold: float = 0.8
    minhash_permutations: int = 128
    exclude: list[str] = setting([], identity=False)
    exclude_sources: list[str] = setting([])
    max_prompt_tokens: int = setting(0, doc="history before the first answer; 0 = no limit")
    max_conversation_tokens: int = setting(0, doc="whole conversation, clipped after the last turn that fits")
    tokenizer: str = setting("", identity=False, doc="tokenizer.json; '' = the target's own")
    max_bad_share: float = setting(0.05, doc="unreadable or misshapen share at which a source fails")
    on_source_failure: Literal["fail", "continue"] = "fail"
    refresh: int = setting(0, doc="raise it to look again: branches that moved are taken")
    offline: bool = setting(False, identity=False)
    endpoint: str = setting("", identity=False, doc="hub endpoint; '' = the client's default or HF_ENDPOINT")
    token_file: str = setting("", identity=False, doc="file with the hub token; '' = <root>/secrets/hf_token, HF_TOKEN")
    workers: int = setting(0, identity=False, doc="worker processes; 0 = execution.workers or the cores")
    worker_memory_mb: int = setting(2048, identity=False, doc="memory that one worker may take")
    downloads: int = setting(4, identity=False, doc="sources that download at once")
    retries: int = setting(3, identity=False, doc="rounds of the client's own attempts, while the hub is busy")
    stall_s: int = setting(600, identity=False, doc="seconds without progress until a worker is given up")

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("sources is empty: name at least one entry of the registry.")
        for name in [*self.sources, *self.exclude_sources]:
            if name not in self.registry:
                raise ValueError(f"there is no source {name!r} in the registry.{nearest(name, self.registry)}")
        for name in self.registry:
            if not name.replace("-", "").replace("_", "").isalnum():
                raise ValueError(f"source name {name!r}: letters, digits, '-' and '_' only (it names files).")
            if name == "open":
                raise ValueError("source name 'open' is taken by the open-ended evaluation prompts.")
        if len(set(self.sources)) != len(self.sources):
            raise ValueError("sources names an entry twice.")
        if not 0 <= self.max_bad_share <= 1:
            raise ValueError(f"max_bad_share {self.max_bad_share} must lie in 0..1.")
        if not 0 < self.minhash_threshold <= 1:
            raise ValueError(f"minhash_threshold {self.minhash_threshold} must lie in (0, 1].")
        if min(self.samples, self.heldout, self.max_prompt_tokens, self.max_conversation_tokens) < 0:
            raise ValueError("samples, heldout and the token limits must not be negative.")
        if self.dedup_turns < 1:
            raise ValueError("dedup_turns must be at least 1.")

    def source(self, name: str) -> Source:
        return self.registry[name]

    @property
    def selected(self) -> dict[str, Source]:
        """The sources of this run, in order of precedence."""
        return {name: self.registry[name] for name in self.sources}

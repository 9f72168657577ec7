"""What must stay: the present settings of every run, what runs now, and the chain behind every kept draft."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from eyrie.core import lock, registry, state
from eyrie.core.fingerprint import short
from eyrie.core.pipeline import Pipeline
from eyrie.ops import provenance

CANARY = "-canary"


@dataclass
class Needed:
    """(stage, 12 digits) -> why it stays; `running`: runs in which a stage works now."""

    why: dict[tuple[str, str], str] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    promoted: set[tuple[str, str]] = field(default_factory=set)

    def keep(self, stage: str, digest: str, why: str) -> None:
        self.why.setdefault((stage, short(digest)), why)

    def reason(self, stage: str, digest: str) -> str:
        """'' when nothing needs it."""
        return self.why.get((stage, short(digest)), "")


def find(pipeline: Pipeline, exempt: frozenset[str] = frozenset()) -> Needed:
    """Look at the spec, at all runs (but those of `exempt`) and at the kept drafts of the root."""
    needed = Needed()
    root = pipeline.root
    _drafts(root, needed)
    for name in registry.NAMES:
        needed.keep(name, pipeline.context(name).fingerprint, "it belongs to the present settings")
    for run in provenance.runs(root):
        for name in registry.NAMES:
            folder = state.StateDir(root / "runs" / run / "state" / name)
            latest = str(folder.latest().get("fingerprint", ""))
            if latest and run not in exempt:
                needed.keep(name, latest, f"it is the newest of run {run}")
            if lock.holder(folder.lock_path) is not None:
                needed.running.add(run)
    return needed


def _drafts(root: Path, needed: Needed) -> None:
    from eyrie.benchmark import drafts

    current = drafts.current(root)
    for version in drafts.versions(root):
        name = str(version["version"])
        digest = str(version.get("draft_fingerprint") or name)
        links = provenance.chain(root, "draft", digest, str(version.get("run") or ""))
        role = "the promoted draft" if name == current else "the kept draft"
        for link in links:
            needed.keep(link.stage, link.fingerprint, f"{role} {name} was made from it")
            if name == current:
                needed.promoted.add((link.stage, short(link.fingerprint)))
        target = str(version.get("target_fingerprint") or "")
        if target:
            needed.keep("target", target, f"{role} {name} is served with it")

"""Where a draft comes from: the records of every stage behind it, followed by fingerprint.

A record names the fingerprints of its inputs (a Merkle chain), and its own fingerprint is the hash of what it says:
a record that was edited, or belongs elsewhere, is found by hashing it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyrie.core import atomic, planner, registry
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import fingerprint, short
from eyrie.core.pipeline import SCHEMA

CURRENT = "current"


@dataclass
class Link:
    """One stage of the chain. problems: what is wrong with it, in words; empty when it is sound."""

    stage: str
    fingerprint: str
    run: str = ""
    record: dict[str, Any] = field(default_factory=dict)
    outputs: Path | None = None
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        identity = self.record.get("identity") or {}
        kept = ("started", "finished", "seconds", "attempt", "account", "bytes", "inputs", "released", "imported_from")
        return {
            "stage": self.stage,
            "fingerprint": self.fingerprint,
            "run": self.run,
            "status": self.record.get("status", "unknown"),
            "settings": identity.get("settings"),
            "tools": identity.get("tools"),
            "identity": {key: identity[key] for key in identity if key not in ("settings", "tools")},
            "outputs": str(self.outputs) if self.outputs else None,
            "problems": self.problems,
            **{key: self.record[key] for key in kept if self.record.get(key)},
        }


def runs(root: Path) -> list[str]:
    """Names of the runs on this host, newest state first."""
    folders = [path for path in (root / "runs").glob("*") if (path / "state").is_dir()]
    return [path.name for path in sorted(folders, key=lambda path: -(path / "state").stat().st_mtime)]


def find_record(root: Path, stage: str, digest: str, run: str = "") -> tuple[str, dict[str, Any]]:
    """(run, record) of a stage's fingerprint (whole, or its first digits); ('', {}) when no run has one."""
    if len(digest) < 4 or not set(digest) <= set("0123456789abcdef"):
        return "", {}
    for name in sorted(runs(root), key=lambda known: known != run):
        folder = root / "runs" / name / "state" / stage
        for path in sorted(folder.glob(f"{digest[:12]}*.json")):
            record = atomic.read_json(path, {})
            if isinstance(record, dict) and str(record.get("fingerprint", "")).startswith(digest):
                return name, record
    return "", {}


def outputs_of(root: Path, run: str, stage: str, digest: str) -> Path | None:
    """The folder of a fingerprint's outputs, None when it is not there."""
    if stage == "target":
        found = next((root / "models").glob(f"*-{short(digest)}"), None)
        return found if found and found.is_dir() else None
    folder = root / "runs" / run / stage / short(digest)
    return folder if folder.is_dir() else None


def check(link: Link) -> None:
    """Note what is wrong with a link's record and outputs."""
    record = link.record
    if not record:
        link.problems.append("no record of it is left on this host")
        return
    said = {"schema": SCHEMA, "stage": link.stage, "identity": record.get("identity"), "inputs": record.get("inputs")}
    if fingerprint(said) != link.fingerprint:
        link.problems.append("its record does not hash to its fingerprint: it was edited, or made by another version")
    if record.get("status") != "done":
        link.problems.append(f"it is not done, but {record.get('status')}")
    if record.get("released"):
        return  # large outputs that were given up on purpose: they can be made again from their inputs
    if link.outputs is None:
        link.problems.append("its outputs are not there")
        return
    for name, size in (record.get("output_sizes") or {}).items():
        found = planner.output_size(link.outputs / name)
        if found != size:
            link.problems.append(f"{name} is {'missing' if found < 0 else f'{found} bytes'} instead of {size}")


def chain(root: Path, stage: str, digest: str, run: str = "") -> list[Link]:
    """The stage and everything behind it, in reading order of the stages."""
    found: dict[tuple[str, str], Link] = {}
    todo = [(stage, digest)]
    while todo:
        name, wanted = todo.pop()
        where, record = find_record(root, name, wanted, run)
        whole = str(record.get("fingerprint") or wanted)
        if (name, whole) in found:
            continue
        link = Link(name, whole, where, record, outputs_of(root, where, name, whole) if where else None)
        check(link)
        found[(name, whole)] = link
        todo += sorted((record.get("inputs") or {}).items())
    return sorted(found.values(), key=lambda link: (registry.NAMES.index(link.stage), link.fingerprint))


def locate(root: Path, draft: str, run: str = "") -> tuple[str, str, dict[str, Any]]:
    """(fingerprint, run, version record) of a draft named as an operator names it.

    draft: 'current', a version or the beginning of one, a folder of drafts/ or of a checkpoint, or a run's name
    (its newest draft). Raises EyrieError.
    """
    from eyrie.benchmark import drafts

    if draft == CURRENT:
        name = drafts.current(root)
        if not name:
            raise EyrieError("no draft is promoted here.", code="no-current-draft", where=str(drafts.folder(root)))
        draft = name
    path = Path(draft)
    if path.is_dir() and draft not in runs(root):
        parts = path.resolve().parts
        draft = next((part for part in reversed(parts) if find_record(root, "draft", part)[0]), path.resolve().name)
    known = {record["version"]: record for record in drafts.versions(root)}
    versions = [name for name in known if name.startswith(draft)] if draft else []
    if len(versions) == 1:
        version = known[versions[0]]
        whole = str(version.get("draft_fingerprint") or versions[0])
        return whole, str(version.get("run") or run), {**version, "version": versions[0]}
    where, record = find_record(root, "draft", draft, run)
    if record:
        return str(record["fingerprint"]), where, {}
    if draft in runs(root):
        latest = atomic.read_json(root / "runs" / draft / "state" / "draft" / "latest.json", {}) or {}
        if latest.get("fingerprint"):
            return str(latest["fingerprint"]), draft, {}
    names = ", ".join([*known, *runs(root)]) or "none"
    raise EyrieError(
        f"no draft {draft!r} is known here.",
        code="draft-unknown",
        where=str(root),
        todo=f"Name a version, a run or `current`. Known: {names}.",
    )


def why(root: Path, draft: str, run: str = "") -> dict[str, Any]:
    """{draft, version, run, ok, chain: [...], dataset: {...}} of a draft."""
    digest, where, version = locate(root, draft, run)
    links = chain(root, "draft", digest, where)
    dataset = next((link for link in links if link.stage == "dataset" and link.outputs), None)
    lock = atomic.read_json(dataset.outputs / "lock.json", {}) if dataset and dataset.outputs else {}
    return {
        "draft": draft,
        "fingerprint": digest,
        "run": where,
        "version": version or None,
        "ok": not any(link.problems for link in links),
        "chain": [link.as_dict() for link in links],
        "dataset_lock": lock,
    }

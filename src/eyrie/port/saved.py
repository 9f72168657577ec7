"""What a run's results are, and whether they are safe elsewhere.

Results are what cannot be made again for nothing: data, answers, tokens, drafts, measurements, and the records of all
settings ever run here. Models and hidden states can be made again; they are not saved unless asked for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyrie.core import atomic, registry
from eyrie.core.errors import EyrieError, SpecError
from eyrie.core.fingerprint import HashCache, fingerprint
from eyrie.core.pipeline import Pipeline
from eyrie.port import manifest
from eyrie.port.decision import COPY, LEAVE
from eyrie.port.manifest import STATE
from eyrie.port.pack import KEPT, name_of, trees
from eyrie.port.survey import BASE, OUT, Item, hash_cache, items, port_dir, survey

#: saved always, in this order
RESULTS = ("draft", "responses", "benchmark", "report", "tokens", "dataset")
#: saved on request: large, and can be made again
REMADE = ("hidden_states", "target")


@dataclass(frozen=True)
class Kept:
    """A stage's whole folder, every fingerprint and store in it."""

    name: str
    base: Path

    @property
    def out(self) -> Path:
        return self.base


def runs(root: Path) -> list[str]:
    """Names of all runs below a root."""
    folder = root / "runs"
    return sorted(item.name for item in folder.iterdir() if item.is_dir()) if folder.is_dir() else []


def kept(run_dir: Path, stage: str) -> Kept:
    return Kept(stage, run_dir / stage)


def kept_items(place: Kept) -> list[Item]:
    return items(place, [place.base])


def stages_to_save(also: list[str]) -> list[str]:
    """RESULTS and the wished ones. Raises SpecError for what is no stage or cannot be saved this way."""
    for name in also:
        if name not in registry.NAMES or name == "target":
            raise SpecError(
                f"{name!r} cannot be saved.",
                where="eyrie_teardown_save",
                todo=f"Known: {', '.join((*RESULTS, REMADE[0]))}.",
            )
    return [*RESULTS, *(name for name in also if name not in RESULTS)]


def signature(place: Kept) -> str:
    """Changes when anything in the folder does: names, sizes, times. No file is read."""
    parts = []
    for item in kept_items(place):
        info = (place.base / item.path).lstat()
        parts.append([item.path, item.bytes, info.st_mtime_ns, item.link])
    return fingerprint(parts)


def pack(pipeline: Pipeline, also: list[str]) -> dict[str, Any]:
    """List and hash the results of this run: {manifest, sha256, name, files, bytes, trees, signatures}."""
    wanted = stages_to_save(also)
    for name in registry.NAMES:
        if pipeline.context(name).state.running() is not None:
            raise EyrieError(
                f"{name} runs on this host: its files would be torn.",
                code="running-source",
                todo="Stop it first: `eyrie stop`.",
            )
    hashes = hash_cache(pipeline.root)
    places = [kept(pipeline.run_dir, name) for name in (STATE, *wanted)]
    listed = [(place, kept_items(place)) for place in places]
    made = manifest.build(
        listed,
        {"host": pipeline.host, "run": pipeline.run, "stages": {}, "survey": survey(pipeline), "saved": wanted},
        hashes,
    )
    path = port_dir(pipeline.root) / "outgoing" / f"{pipeline.run}-save" / manifest.NAME
    return {
        "manifest": str(path),
        "sha256": made.write(path),
        "name": f"{pipeline.run}",
        "files": sum(1 for entry in made.entries if entry.sha256),
        "bytes": made.bytes,
        "trees": [
            {
                "stage": place.name,
                "tree": BASE,
                "path": str(place.base),
                "files": len(found),
                "bytes": sum(item.bytes for item in found),
            }
            for place, found in listed
            if found
        ],
        "signatures": {place.name: signature(place) for place in places},
    }


@dataclass(frozen=True)
class Shelved:
    """One stage of a saved run: its folder of one fingerprint, and what lay beside it."""

    name: str
    out: Path
    base: Path


def survey_saved(folder: Path) -> dict[str, Any]:
    """The survey that was made when the run was saved, of what the save holds: the source's side of a port from it."""
    header = manifest.read(folder / manifest.NAME).header
    found: dict[str, Any] = header.get("survey") or {}
    if not found:
        raise EyrieError(
            "this is no saved run.", where=str(folder), code="not-saved", todo="Name a folder that teardown made."
        )
    for name, stage in found["stages"].items():
        if name not in header["saved"]:
            stage.update(files=0, bytes=0)
    return found


def pack_saved(folder: Path, decisions: list[dict[str, Any]]) -> dict[str, Any]:
    """As pack.pack, from a saved run: {manifest, sha256, name, files, bytes, trees}. Raises EyrieError for rot."""
    listed = manifest.read(folder / manifest.NAME)
    known = {(entry.stage, entry.path): entry.sha256 for entry in listed.entries}
    found = survey_saved(folder)
    header: dict[str, Any] = {"host": found["host"], "run": found["run"], "stages": {}}
    places: list[tuple[Shelved, list[Item]]] = []
    for item in decisions:
        if item["action"] not in (COPY, LEAVE):
            continue
        name, stage = item["stage"], found["stages"][item["stage"]]
        header["stages"][name] = {key: stage[key] for key in KEPT} | {"action": item["action"]}
        if item["action"] == COPY:
            base = folder / name / BASE
            place = Shelved(name, base / stage["folder"], base)
            paths = [(place.out if tree == OUT else place.base) / path for tree, path in stage["carry"]]
            places.append((place, items(place, paths)))
    made = manifest.build(places, header, HashCache(folder / "hashes.json"))
    for entry in made.entries:
        path = f"{found['stages'][entry.stage]['folder']}/{entry.path}" if entry.tree == OUT else entry.path
        if entry.sha256 and known.get((entry.stage, path)) != entry.sha256:
            raise EyrieError(
                "a saved file is not what was saved.",
                where=str(folder / entry.stage / BASE / path),
                code="saved-rotten",
            )
    goal = folder / "outgoing" / manifest.NAME
    return {
        "manifest": str(goal),
        "sha256": made.write(goal),
        "name": name_of(found["host"], found["run"]),
        "files": sum(1 for entry in made.entries if entry.sha256),
        "bytes": made.bytes,
        "trees": trees(made, {place.name: place for place, _ in places}),
    }


def ledger(root: Path) -> dict[str, Any]:
    """{run: {where, when, sha256, signatures}}: what was saved, and proved where it was saved."""
    return atomic.read_json(port_dir(root) / "saved.json", {}) or {}


def mark(pipeline: Pipeline, packed: dict[str, Any], where: str) -> dict[str, Any]:
    """Remember that a pack was checked at `where`; results that change afterwards count as unsaved again."""
    known = ledger(pipeline.root)
    before = known.get(pipeline.run) or {}
    known[pipeline.run] = {
        "where": where,
        "when": time.time(),
        "sha256": packed["sha256"],
        "signatures": {**(before.get("signatures") or {}), **packed["signatures"]},
    }
    atomic.write_json(port_dir(pipeline.root) / "saved.json", known)
    return {"marked": pipeline.run, "where": where}


def is_saved(root: Path, run: str, place: Kept, known: dict[str, Any]) -> bool:
    entry = (known.get(run) or {}).get("signatures") or {}
    return bool(entry.get(place.name)) and entry[place.name] == signature(place)

"""The verbs of `eyrie port`, from plain requests to plain answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyrie.core.pipeline import Pipeline
from eyrie.port.cli import need


def survey(pipeline: Pipeline | None, request: dict[str, Any]) -> dict[str, Any]:
    if pipeline is None:
        from eyrie.port import saved

        return saved.survey_saved(Path(need(request, "saved")[0]))
    from eyrie.port import survey as surveys

    return surveys.survey(pipeline)


def plan(pipeline: Pipeline, request: dict[str, Any]) -> dict[str, Any]:
    from eyrie.port import plan as plans
    from eyrie.port.shown import lines

    (source,) = need(request, "source")
    made = plans.make(pipeline, source, request.get("link") or {}, request.get("options") or {})
    pipeline.hashes.save()
    return {**made, "lines": lines(made)}


def pack(pipeline: Pipeline | None, request: dict[str, Any]) -> dict[str, Any]:
    (decisions,) = need(request, "decisions")
    if pipeline is None:
        from eyrie.port import saved

        return saved.pack_saved(Path(need(request, "saved")[0]), decisions)
    from eyrie.port import pack as packs

    return packs.pack(pipeline, decisions)


def prepare(pipeline: Pipeline, request: dict[str, Any]) -> dict[str, Any]:
    from eyrie.port import land as lands

    source, trees = need(request, "source", "trees")
    return lands.prepare(pipeline, source["host"], source["run"], trees)


def send(request: dict[str, Any]) -> dict[str, Any]:
    """Bring every tree, then the manifest: its presence says that all the rest was sent."""
    from eyrie.port import moving

    return moving.send_pack(moving.Move.of(request))


def start(pipeline: Pipeline, request: dict[str, Any]) -> dict[str, Any]:
    from eyrie.port import moving

    return moving.start(pipeline, request)


def status(pipeline: Pipeline, request: dict[str, Any]) -> dict[str, Any]:
    from eyrie.port import moving

    return moving.status(pipeline)


def start_here(request: dict[str, Any]) -> dict[str, Any]:
    from eyrie.port import here

    return here.start(request)


def status_here(request: dict[str, Any]) -> dict[str, Any]:
    from eyrie.port import here

    return here.status(request)


def prove(request: dict[str, Any]) -> dict[str, Any]:
    """Check a pack where it lies (a spool, a saved run): every file by SHA-256; bad ones are removed."""
    from eyrie.core.fingerprint import HashCache
    from eyrie.port import manifest

    folder, sha256 = need(request, "folder", "sha256")
    top = Path(folder)
    listed = manifest.read(top / manifest.NAME, sha256)
    found = list(manifest.check(listed, lambda entry: entry.at(top), HashCache(top / "hashes.json")))
    for bad in found:
        path = bad.entry.at(top)
        if path.is_symlink() or path.is_file():
            path.unlink()
    return {"ok": not found, "bad": len(found), "faults": [str(item) for item in found[:20]]}


def measure(request: dict[str, Any]) -> dict[str, Any]:
    from eyrie.port import measure as measures

    (destination,) = need(request, "destination")
    return measures.through_here(request.get("source"), destination)


def check(pipeline: Pipeline, request: dict[str, Any]) -> dict[str, Any]:
    from eyrie.port import land as lands

    folder, sha256 = need(request, "folder", "sha256")
    found = lands.faults(pipeline, Path(folder), sha256)
    return {"ok": not found, "bad": len(found), "faults": [str(item) for item in found[:20]]}


def land(pipeline: Pipeline, request: dict[str, Any]) -> dict[str, Any]:
    from eyrie.port import land as lands

    made, folder, sha256 = need(request, "plan", "folder", "sha256")
    return lands.land(pipeline, made, Path(folder), sha256)


def key(pipeline: Pipeline, request: dict[str, Any]) -> dict[str, Any]:
    from eyrie.port import keys

    return keys.make(pipeline) if request.get("state", "present") == "present" else keys.remove(pipeline)


def probe(pipeline: Pipeline, request: dict[str, Any]) -> dict[str, Any]:
    from eyrie.port import moving

    (to,) = need(request, "to")
    return moving.probe(pipeline, to, int(request.get("bytes") or moving.PROBE_BYTES))


def identities(pipeline: Pipeline, request: dict[str, Any]) -> dict[str, Any]:
    from eyrie.port import agree as agreement

    return agreement.identities(pipeline)


def agree(pipeline: Pipeline, request: dict[str, Any]) -> dict[str, Any]:
    from eyrie.port import agree as agreement

    (leader,) = need(request, "leader")
    return agreement.agree(pipeline, leader)

"""The verbs of `eyrie port`, from plain requests to plain answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyrie.core.pipeline import Pipeline
from eyrie.core.spec import load
from eyrie.port.cli import need
from eyrie.port.transfer import Limits, Way


def survey(pipeline: Pipeline, request: dict[str, Any]) -> dict[str, Any]:
    from eyrie.port import survey as surveys

    return surveys.survey(pipeline)


def plan(pipeline: Pipeline, request: dict[str, Any]) -> dict[str, Any]:
    from eyrie.port import plan as plans
    from eyrie.port.shown import lines

    (source,) = need(request, "source")
    made = plans.make(pipeline, source, request.get("link") or {}, request.get("options") or {})
    pipeline.hashes.save()
    return {**made, "lines": lines(made)}


def pack(pipeline: Pipeline, request: dict[str, Any]) -> dict[str, Any]:
    from eyrie.port import pack as packs

    (decisions,) = need(request, "decisions")
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


def way_of(to: dict[str, Any]) -> Way:
    """The remote shell of a destination {rsh, host}."""
    return Way(tuple(to.get("rsh") or ()), str(to.get("host") or ""))


def limits_of(data: dict[str, Any] | None) -> Limits:
    return load(Limits, data or {}, "port.limits")

"""The source's part: freeze the list of what travels, with a SHA-256 of every file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyrie.core import registry
from eyrie.core.errors import EyrieError
from eyrie.core.pipeline import Pipeline
from eyrie.port import manifest
from eyrie.port.decision import COPY, LEAVE
from eyrie.port.survey import Item, Place, hash_cache, items_of, port_dir, stage_survey, tree_dir

#: what of a stage's survey travels in the manifest's header
KEPT = ("fingerprint", "identity", "inputs", "status", "record")


def name_of(host: str, run: str) -> str:
    """The folder of a port: two sources or two runs never share one."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", f"{host}-{run}").lstrip(".") or "port"


def outgoing(pipeline: Pipeline, purpose: str) -> Path:
    return port_dir(pipeline.root) / "outgoing" / f"{pipeline.run}-{purpose}" / manifest.NAME


def pack(pipeline: Pipeline, decisions: list[dict[str, Any]], purpose: str = "port") -> dict[str, Any]:
    """Write the manifest of the decisions that travel.

    decisions: [{stage, action, destination?}]; 'copy' carries files, 'leave' only the stage's record.
    Returns {manifest, sha256, name, files, bytes, trees: [{stage, tree, path, files, bytes}]}.
    Raises EyrieError when a stage runs or changed since it was planned.
    """
    hashes = hash_cache(pipeline.root)
    header: dict[str, Any] = {"host": pipeline.host, "run": pipeline.run, "stages": {}}
    places: list[tuple[Place, list[Item]]] = []
    for item in decisions:
        if item["action"] not in (COPY, LEAVE):
            continue
        ctx = pipeline.context(item["stage"])
        found = stage_survey(ctx, hashes)
        if found["running"]:
            raise EyrieError(
                f"{ctx.name} runs on this host: its files would be torn.",
                code="running-source",
                todo="Stop it first (`eyrie stop`, or -e eyrie_port_stop_source=true): it goes on at the destination.",
            )
        planned = item.get("source")
        if planned and planned != found["fingerprint"]:
            raise EyrieError(
                f"{ctx.name} has changed since it was planned.", code="plan-stale", todo="Plan the port again."
            )
        header["stages"][ctx.name] = {key: found[key] for key in KEPT} | {"action": item["action"]}
        if item["action"] == COPY:
            places.append((ctx, items_of(ctx)))
    listed = manifest.build(places, header, hashes)
    path = outgoing(pipeline, purpose)
    digest = listed.write(path)
    return {
        "manifest": str(path),
        "sha256": digest,
        "name": name_of(pipeline.host, pipeline.run),
        "files": sum(1 for entry in listed.entries if entry.sha256),
        "bytes": listed.bytes,
        "trees": trees(listed, {place.name: place for place, _ in places}),
    }


def trees(listed: manifest.Manifest, places: Mapping[str, Place]) -> list[dict[str, Any]]:
    """Where each tree starts on this host, small trees first: what matters most is safe soonest."""
    out = []
    for stage, tree in listed.trees:
        entries = listed.of(stage, tree)
        out.append(
            {
                "stage": stage,
                "tree": tree,
                "path": str(tree_dir(places[stage], tree)),
                "files": len(entries),
                "bytes": sum(entry.bytes for entry in entries),
            }
        )
    return sorted(out, key=lambda item: (item["bytes"], registry.NAMES.index(item["stage"])))

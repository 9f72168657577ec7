"""Do the hosts of a group mean the same run? Same settings, data and versions, stage by stage."""

from __future__ import annotations

from typing import Any

from eyrie.core.errors import SpecError
from eyrie.core.fingerprint import differences, short
from eyrie.core.pipeline import Pipeline

#: what hosts that train together must agree on
STAGES = ("target", "dataset", "responses", "tokens", "hidden_states", "draft")


def identities(pipeline: Pipeline) -> dict[str, Any]:
    """{host, stages: {name: {fingerprint, identity}}} of a host."""
    stages = {name: pipeline.context(name) for name in STAGES}
    return {
        "host": pipeline.host,
        "stages": {name: {"fingerprint": ctx.fingerprint, "identity": ctx.identity} for name, ctx in stages.items()},
    }


def agree(pipeline: Pipeline, leader: dict[str, Any]) -> dict[str, Any]:
    """{ok, host, leader, differences: [{stage, name, leader, host}], message}: this host against the one that leads."""
    if not isinstance(leader.get("stages"), dict):
        raise SpecError("the leader's identities are missing.", where="port.leader", code="identities-missing")
    own = identities(pipeline)["stages"]
    found: list[dict[str, Any]] = []
    for name in STAGES:
        theirs = leader["stages"].get(name) or {}
        if theirs.get("fingerprint") == own[name]["fingerprint"]:
            continue
        for item in differences(theirs.get("identity"), own[name]["identity"]):
            found.append({"stage": name, "name": item["name"], "leader": item["current"], "host": item["desired"]})
    ok = (leader["stages"].get("draft") or {}).get("fingerprint") == own["draft"]["fingerprint"]
    shown = "; ".join(
        f"{item['stage']} {item['name']} {item['leader']!r} there, {item['host']!r} here" for item in found
    )
    message = f"{pipeline.host} would train {short(own['draft']['fingerprint'])} as {leader.get('host')} does."
    if not ok:
        message = f"{pipeline.host} does not agree with {leader.get('host')}, which leads its group: {shown}."
    return {"ok": ok, "host": pipeline.host, "leader": leader.get("host"), "differences": found, "message": message}

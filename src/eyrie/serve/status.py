"""What serves on this host, as processes, units and records show it. Read-only."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from eyrie.core.pipeline import Pipeline
from eyrie.serve import execute, records
from eyrie.serve import settings as server_settings
from eyrie.serve.house import House
from eyrie.serve.settings import PROFILES
from eyrie.supervise import processes


def of(pipeline: Pipeline) -> dict[str, Any]:
    """{active, serving, switching, units: {profile: {unit, state, pid, fingerprint, leftovers}}, port}."""
    settings = server_settings.load(pipeline)
    house = House(pipeline, settings)
    units = {}
    for profile in PROFILES:
        known = house.launched(profile)
        orphans = execute.leftovers(house.root, profile) - house.supervisor.pids(house.unit(profile))
        units[profile] = {
            "unit": house.unit(profile),
            **asdict(house.status(profile)),
            "fingerprint": known.get("fingerprint"),
            "leftovers": {pid: processes.command(pid, 80) for pid in sorted(orphans)},
            "log": str(house.log(profile)),
        }
    owners = processes.port_owners(settings.port)
    return {
        "supervisor": house.supervisor.kind,
        "active": house.active(),
        "serving": records.read(records.serving_path(house.root)) or None,
        "switching": records.read(records.switching_path(house.root)) or None,
        "units": units,
        "port": {
            "number": settings.port,
            "owners": None if owners is None else {pid: processes.command(pid, 80) for pid in sorted(owners)},
        },
    }

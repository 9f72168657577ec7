# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""The preflight: is this host fit for the run? Standard library only, Python 3.9 or later, read-only."""

from __future__ import annotations

from ansible.module_utils.eyrie.preflight import fabric, gpus, machine, plan, software


def examine(host, context):
    """All findings, errors first. host: a Host (or a recorded one). context: see finding.Context."""
    found = []
    for check in (
        software.names,
        software.python,
        software.environment,
        software.index,
        software.model,
        machine.disk,
        machine.disk_speed,
        machine.shared_memory,
        machine.memory,
        machine.limits,
        machine.port,
        machine.clock,
        plan.layers,
        plan.parallel,
        plan.hub,
        plan.lease,
        gpus.present,
        gpus.kind,
        gpus.visible,
        gpus.busy,
        gpus.health,
        gpus.driver,
        fabric.links,
        fabric.settings,
        fabric.peers,
        fabric.topology,
    ):
        found += check(host, context)
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda item: order[item["level"]])

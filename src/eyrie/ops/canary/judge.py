"""The canary's verdict: all probes, each on its own; what one cannot read is a fault too."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eyrie.core import atomic, state
from eyrie.core.errors import EyrieError, GateError
from eyrie.core.stage import Fault
from eyrie.hidden_states.files import BadFile
from eyrie.ops.canary import derive
from eyrie.ops.canary.look import Look
from eyrie.ops.canary.probes import PROBES

VERDICT = "canary.json"
UNREADABLE = (EyrieError, BadFile, OSError, ValueError, KeyError, IndexError, TypeError)


def judge(look: Look) -> dict[str, Any]:
    """{ok, faults: [{probe, where, what, todo, code}], acceptance: {...}, seconds: {...}}."""
    faults: list[dict[str, Any]] = []
    unfinished = [name for name in derive.STAGES if look.records[name].get("status") != state.DONE]
    for name in unfinished:
        status = look.records[name].get("status", "absent")
        told = f"the canary's {name} is {status}"
        if look.moved.get(name):
            told += f" since it ran: {look.moved[name]}"
        faults.append(_fault("stages", Fault(name, told, "Run the canary again.")))
    for probe, look_for in PROBES.items() if not unfinished else ():
        try:
            faults += [_fault(probe, fault) for fault in look_for(look)]
        except UNREADABLE as error:
            told = f"could not be checked: {type(error).__name__}: {error}"
            faults.append(_fault(probe, Fault(probe, told, "Run the canary again.")))
    return {
        "ok": not faults,
        "faults": faults,
        "acceptance": _acceptance(look) if not unfinished else None,
        "seconds": {name: look.records[name].get("seconds") for name in derive.STAGES},
        "time": time.time(),
    }


def _fault(probe: str, fault: Fault) -> dict[str, Any]:
    return {"probe": probe, **asdict(fault)}


def _acceptance(look: Look) -> dict[str, Any]:
    measured = look.measured
    return {
        "trained": (measured.get("acceptance") or {}).get("length"),
        "untrained": (measured.get("untrained") or {}).get("length"),
        "predicted": look.metrics.get("predicted_acceptance"),
        "min_acceptance": look.wanted["min_acceptance"],
        "min_gain": look.wanted["min_gain"],
    }


def write(run_dir: Path, verdict: dict[str, Any]) -> Path:
    """Keep the verdict beside the canary's stages."""
    path = run_dir / VERDICT
    atomic.write_json(path, verdict)
    return path


def refuse(verdict: dict[str, Any]) -> None:
    """Raise GateError that names every fault; the long run must not begin."""
    if verdict["ok"]:
        return
    told = "; ".join(f"[{fault['probe']}] {fault['where']}: {fault['what']}" for fault in verdict["faults"])
    raise GateError(
        f"the canary found {len(verdict['faults'])} fault{'s' if len(verdict['faults']) > 1 else ''}: {told}",
        code="canary-failed",
        todo=" ".join(dict.fromkeys(fault["todo"] for fault in verdict["faults"] if fault["todo"]))
        + " Nothing of the run itself was started.",
    )

"""status: stages, servers, disk and GPUs of a run on one screen, as data. Disturbs nothing that runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from eyrie.core import status as core_status
from eyrie.core.state import FAILED, INTERRUPTED, RUNNING
from eyrie.ops import host

#: a running stage whose progress file is older than this is shown as silent
SILENT_S = 300.0


def overview(root: Path, run: str, names: list[str] | None = None) -> dict[str, Any]:
    """core's run_status plus {host, servers, findings, lines}; `silent_s` is added to stages that stopped reporting."""
    answer = core_status.run_status(root, run, names)
    for stage in answer["stages"]:
        mark_silent(stage, time.time())
    answer["host"] = host.snapshot(root)
    answer["servers"] = servers(root)
    answer["findings"] = findings(root, run, answer["stages"])
    answer["lines"] = lines(answer)
    return answer


def lines(answer: dict[str, Any]) -> list[str]:
    """What stands below the stages' table where only text is shown: disk, GPUs, servers, the doctor's findings."""
    from eyrie.ops import view

    text = ["", *(f"{name:<7} {line}" for name, line in view.host_lines(answer))]
    for finding in answer["findings"]:
        text += ["", f"{finding['stage']}: {finding['cause']}", f"  cure: {finding['cure']}"]
    return text


def mark_silent(stage: dict[str, Any], now: float) -> None:
    """Add `silent_s` to a running stage that has not reported for longer than SILENT_S."""
    updated = (stage.get("progress") or {}).get("updated")
    if stage["status"] == RUNNING and updated and now - float(updated) > SILENT_S:
        stage["silent_s"] = round(now - float(updated), 1)


def servers(root: Path) -> list[dict[str, Any]]:
    """Each profile's server as records and processes show it; nothing is asked of the server itself.

    [{profile, state, pid, base_url, model, method, up_s}]; [] before any server was started here.
    """
    from eyrie.serve import execute, launch, records
    from eyrie.serve.settings import PROFILES

    serving, switching = records.read(records.serving_path(root)), records.read(records.switching_path(root))
    found = []
    for profile in PROFILES:
        process, document = execute.launched(root, profile), launch.read(root, profile)
        if not process:
            continue
        proven = serving.get("pid") == process["pid"] and serving.get("profile") == profile
        found.append(
            {
                "profile": profile,
                "state": "serving, proven" if proven else "up, not proven yet",
                "pid": process["pid"],
                "base_url": document.get("base_url"),
                "model": document.get("served_model_name"),
                "method": document.get("method"),
                "up_s": round(time.time() - float(process.get("time") or time.time()), 1),
            }
        )
    if not found and serving:
        found.append({"profile": serving.get("profile"), "state": "was stopped or died"})
    if switching:
        since = round(time.time() - float(switching.get("since") or time.time()), 1)
        found.append({"profile": switching.get("to"), "state": "switch under way", "up_s": since})
    return found


def findings(root: Path, run: str, stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The doctor's first finding for each stage that failed or was killed."""
    broken = [stage["stage"] for stage in stages if stage["status"] in (FAILED, INTERRUPTED)]
    if not broken:
        return []
    from eyrie.ops.doctor import examine

    found = examine.examine(root, run, broken)["findings"]
    first: dict[str, dict[str, Any]] = {}
    for finding in found:
        first.setdefault(finding["stage"], finding)
    return [first[name] for name in broken if name in first]

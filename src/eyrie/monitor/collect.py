"""What Prometheus is told of a root folder: stages of every run, servers, disk, memory, GPUs. Read-only.

Texts that people write (errors, paths of logs) stay out: labels are few and their values known.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from eyrie import __version__
from eyrie.core import status
from eyrie.core.state import DONE, FAILED, INTERRUPTED, RUNNING
from eyrie.monitor.text import Family, render
from eyrie.ops import host, overview

STATES = ("absent", RUNNING, DONE, FAILED, INTERRUPTED)
PROVEN = "serving, proven"


def metrics(root: Path, runs: list[str] | None = None) -> str:
    """The page that is scraped. runs: their names; all runs of the root by default."""
    families = [*stages(root, runs_of(root) if runs is None else runs, time.time()), *servers(root), *machine(root)]
    build = Family("eyrie_build_info", "Version of the node package.")
    build.add(1, version=__version__)
    return render([build, *families])


def runs_of(root: Path) -> list[str]:
    """Runs that have a state; [] before the first."""
    return sorted(path.parent.name for path in root.glob("runs/*/state") if path.is_dir())


def stages(root: Path, runs: list[str], now: float) -> list[Family]:
    state = Family("eyrie_stage_state", "1 for the state that a stage is in, 0 for the others.")
    ratio = Family("eyrie_stage_progress_ratio", "Share of a stage's present phase that is done, 0 to 1.")
    done = Family("eyrie_stage_done", "Items done in the present phase of a running stage, resumed ones included.")
    total = Family("eyrie_stage_total", "Items of the present phase of a running stage.")
    rate = Family("eyrie_stage_rate", "Items a second of a running stage, over the last minute.")
    left = Family("eyrie_stage_eta_seconds", "Seconds left in the present phase of a running stage.")
    spent = Family("eyrie_stage_seconds", "Seconds that a stage took, or has run.")
    size = Family("eyrie_stage_bytes", "Bytes written by a stage.")
    age = Family("eyrie_stage_report_age_seconds", "Seconds since a running stage said where it stands.")
    items = Family("eyrie_stage_items", "The books of a finished stage: in = kept + dropped + failed.")
    figure = Family("eyrie_stage_figure", "Figures that a running stage reports, such as its loss or tokens a second.")
    for run in runs:
        for stage in status.run_status(root, run)["stages"]:
            name = {"run": run, "stage": stage["stage"]}
            for known in STATES:
                state.add(stage["status"] == known, **name, state=known)
            progress = stage["progress"] or {}
            ratio.add(_ratio(stage["status"], progress), **name)
            spent.add(stage["seconds"], **name)
            size.add(progress.get("bytes") or stage["bytes"], **name)
            for outcome, count in _books(stage["account"]).items():
                items.add(count, **name, outcome=outcome)
            if not progress:
                continue
            done.add(progress.get("done"), **name)
            total.add(progress.get("total") or None, **name)
            rate.add(progress.get("rate"), **name)
            left.add(progress.get("eta_s") if progress.get("total") else None, **name)
            age.add(now - float(progress["updated"]) if progress.get("updated") else None, **name)
            for key, value in sorted((progress.get("detail") or {}).items()):
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    figure.add(value, **name, figure=key)
    return [state, ratio, done, total, rate, left, spent, size, age, items, figure]


def _ratio(state: str, progress: dict[str, Any]) -> float | None:
    if state == DONE:
        return 1.0
    if progress.get("total"):
        return min(1.0, float(progress.get("done") or 0) / float(progress["total"]))
    return None if state == RUNNING else 0.0


def _books(account: dict[str, Any] | None) -> dict[str, int]:
    if not account:
        return {}
    lost = {name: sum(account[name].values()) for name in ("dropped", "failed")}
    return {"in": account["in"], "kept": account["kept"], **lost}


def servers(root: Path) -> list[Family]:
    """Which profile serves, as records and processes show it; nothing is asked of the server itself."""
    from eyrie.serve.settings import PROFILES

    up = Family("eyrie_server_up", "1 while a profile's server runs and was proven to be what it should be.")
    age = Family("eyrie_server_seconds", "Seconds since a profile's server was started.")
    found = {server["profile"]: server for server in overview.servers(root)}
    for profile in PROFILES:
        server = found.get(profile, {})
        up.add(server.get("state") == PROVEN, profile=profile)
        if server.get("pid"):
            age.add(server.get("up_s"), profile=profile)
    return [up, age]


def machine(root: Path) -> list[Family]:
    facts = host.snapshot(root)
    free = Family("eyrie_disk_free_bytes", "Bytes free on the file system of the root folder, or of shared memory.")
    size = Family("eyrie_disk_size_bytes", "Size of that file system.")
    for key in ("disk", "shm"):
        place = "root" if key == "disk" else key
        free.add(facts[key].get("free"), place=place)
        size.add(facts[key].get("total"), place=place)
    available = Family("eyrie_memory_available_bytes", "Memory that programs can still take.")
    available.add(facts["memory"].get("available"))
    memory = Family("eyrie_memory_size_bytes", "Memory of the host.")
    memory.add(facts["memory"].get("total"))
    load = Family("eyrie_load1", "Load average of the last minute.")
    load.add(facts["load"][0])
    return [free, size, available, memory, load, *gpus(facts["gpus"])]


def gpus(found: list[dict[str, Any]]) -> list[Family]:
    busy = Family("eyrie_gpu_busy_ratio", "Share of the time in which a GPU computed, 0 to 1.")
    used = Family("eyrie_gpu_memory_used_bytes", "Memory in use of a GPU.")
    size = Family("eyrie_gpu_memory_size_bytes", "Memory of a GPU.")
    heat = Family("eyrie_gpu_celsius", "Temperature of a GPU.")
    for gpu in found:
        name = {"gpu": gpu["index"], "model": gpu["name"]}
        busy.add(None if gpu["busy"] is None else gpu["busy"] / 100, **name)
        used.add(gpu["used"], **name)
        size.add(gpu["total"], **name)
        heat.add(gpu["celsius"], **name)
    return [busy, used, size, heat]

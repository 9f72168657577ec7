"""The switch: one profile serves at a time, with proof; on failure what really served before is restored."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError, GateError
from eyrie.core.fingerprint import differences, short
from eyrie.core.pipeline import Pipeline
from eyrie.core.progress import Progress
from eyrie.gates import server as server_gates
from eyrie.serve import cluster, execute, gpu, identity, launch, ready, records
from eyrie.serve import settings as server_settings
from eyrie.serve.house import House, rotate
from eyrie.serve.settings import PROFILES
from eyrie.supervise import processes
from eyrie.supervise.base import tail


@dataclass(frozen=True)
class Serving:
    """A proven server. started: False when it served already; seconds: what the switch took (0.0 then)."""

    base_url: str
    model: str
    profile: str
    fingerprint: str
    started: bool
    seconds: float
    log: Path


class _Note:
    """Where a switch stands, in the stage's progress."""

    def __init__(self, progress: Progress | None):
        self.progress = progress

    def __call__(self, text: str) -> None:
        if self.progress is not None:
            self.progress.update(self.progress.done, server=text)

    def begin(self, profile: str) -> None:
        if self.progress is not None:
            self.progress.start(f"server {profile}")

    def end(self) -> None:
        if self.progress is not None:
            self.progress.detail.pop("server", None)


def plan(pipeline: Pipeline, profile: str, overrides: dict[str, Any] | None = None) -> dict[str, Any]:
    """What `ensure` would do: {profile, fingerprint, up_to_date, stops, starts, differences, gates}. Read-only."""
    settings = server_settings.load(pipeline)
    document = launch.document(pipeline, profile, overrides)
    house = House(pipeline, settings)
    active = house.active()
    running = house.launched(profile)
    unit = _unit_difference(house, profile, running)
    up_to_date = active == [profile] and running.get("fingerprint") == document["fingerprint"] and not unit
    before = launch.read(house.root, profile) if running else {}
    changed = [] if up_to_date else differences(before, document) + unit
    stops = [name for name in active if name != profile or not up_to_date]
    return {
        "profile": profile,
        "fingerprint": document["fingerprint"],
        "up_to_date": up_to_date,
        "serving": active,
        "stops": [house.unit(name) for name in stops],
        "starts": [] if up_to_date else [house.unit(profile)],
        "differences": [item for item in changed if item["name"] not in ("fingerprint", "schema", "argv")],
        "gates": gates(pipeline, house, document),
        "supervisor": house.supervisor.kind,
    }


def gates(pipeline: Pipeline, house: House, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Everything that can be known to be wrong before the running server is touched."""
    faults = house.unit_faults(document["profile"])
    unit = server_gates.gate("unit-file", " ".join(faults) or None)
    return [*server_gates.report(pipeline, document), unit]


def check_gates(pipeline: Pipeline, house: House, document: dict[str, Any]) -> None:
    """Raise GateError naming each gate that refuses (one that cannot be checked yet refuses a start)."""
    refused = [gate for gate in gates(pipeline, house, document) if not gate["ok"]]
    if refused:
        raise GateError(
            f"{document['profile']} is refused before it starts: "
            + " ".join(f"[{gate['name']}] {gate['message']}" for gate in refused),
            code="gate-refused",
            todo="The server that runs was not touched.",
        )


def _unit_difference(house: House, profile: str, running: dict[str, Any]) -> list[dict[str, Any]]:
    """Whether the unit's files changed since the running server was proven (by the role, or by hand)."""
    known = records.read(records.serving_path(house.root))
    if not running or known.get("pid") != running.get("pid") or "unit_digest" not in known:
        return []
    digest = house.unit_digest(profile)
    if digest == known["unit_digest"]:
        return []
    return [{"name": "unit file", "current": short(known["unit_digest"]), "desired": short(digest)}]


def ensure(
    pipeline: Pipeline, profile: str, progress: Progress | None = None, overrides: dict[str, Any] | None = None
) -> Serving:
    """Make `profile` serve, and prove it. Does nothing when exactly that serves and can prove it.

    Raises GateError before anything is touched when the profile cannot be right; EyrieError when the switch
    failed (what served before serves again, and the error says so).
    """
    settings = server_settings.load(pipeline)
    document = launch.document(pipeline, profile, overrides)
    house, note = House(pipeline, settings), _Note(progress)
    check_gates(pipeline, house, document)
    with records.one_switch(house.root, settings.start_timeout_s, note):
        started, seconds = not _serves(house, document), 0.0
        if started:
            if settings.ray.used:
                cluster.check(settings.ray, document["args"])
            note.begin(profile)
            try:
                seconds = _switch(house, document, note)
            finally:
                note.end()
        if not overrides:
            point_to_declared(pipeline, profile)
    return _serving(house, document, started, seconds)


def point_to_declared(pipeline: Pipeline, profile: str) -> None:
    """A kept draft that was asked for by version, and serves, is the current one from now on (a rollback)."""
    declared = server_settings.load(pipeline).profiles.eagle3.draft
    if profile == "eagle3" and declared:
        from eyrie.benchmark import drafts

        drafts.point(pipeline.root, drafts.find(pipeline.root, declared).name)


def current(pipeline: Pipeline, document: dict[str, Any]) -> Serving | None:
    """The server of exactly this document if it serves now, alone and proven; changes nothing."""
    house = House(pipeline, server_settings.load(pipeline))
    return _serving(house, document, False, 0.0) if _serves(house, document) else None


def stop(pipeline: Pipeline, progress: Progress | None = None) -> None:
    """Stop whatever profile runs, and wait until its processes and its GPU memory are gone."""
    settings = server_settings.load(pipeline)
    house, note = House(pipeline, settings), _Note(progress)
    if not house.active() and not any(execute.leftovers(house.root, name) for name in PROFILES):
        return
    with records.one_switch(house.root, settings.start_timeout_s, note):
        _stop_all(house, note)
        records.switching_path(house.root).unlink(missing_ok=True)
        records.serving_path(house.root).unlink(missing_ok=True)
    note.end()


def _serving(house: House, document: dict[str, Any], started: bool, seconds: float) -> Serving:
    profile = document["profile"]
    return Serving(
        document["base_url"],
        document["served_model_name"],
        profile,
        document["fingerprint"],
        started,
        round(seconds, 3),
        house.log(profile),
    )


def _serves(house: House, document: dict[str, Any]) -> bool:
    """Whether exactly this document serves, alone and proven."""
    profile = document["profile"]
    if house.active() != [profile] or not house.status(profile).active:
        return False
    if _unit_difference(house, profile, house.launched(profile)):
        return False
    try:
        identity.prove_document(house.root, document)
    except EyrieError:
        return False
    return True


def _switch(house: House, document: dict[str, Any], note: _Note) -> float:
    begin = time.monotonic()
    active = house.active()
    _check_port(house, document, active)
    previous = _previous(house, active)
    atomic.write_json(
        records.switching_path(house.root),
        {"from": previous, "to": document["profile"], "fingerprint": document["fingerprint"], "since": time.time()},
    )
    times: dict[str, float] = {}
    try:
        mark = time.monotonic()
        foreign = _stop_all(house, note)
        times["stop_s"] = time.monotonic() - mark
        proof = _start(house, document, note, times)
    except BaseException as error:
        failure = _restored(house, document, previous, note, error)
        records.switching_path(house.root).unlink(missing_ok=True)
        if isinstance(error, Exception):
            raise failure from error
        raise
    seconds = time.monotonic() - begin
    times["overhead_s"] = seconds - times["stop_s"] - times["load_s"]
    _remember(house, document, proof, seconds, times, foreign)
    records.switching_path(house.root).unlink(missing_ok=True)
    return seconds


def _check_port(house: House, document: dict[str, Any], active: list[str]) -> None:
    """Before anything is touched: the port is free, or ours."""
    owners = processes.port_owners(document["port"])
    ours: set[int] = set()
    for profile in PROFILES:
        ours |= house.pids(profile)
    if owners is None and not active:
        raise identity.foreign_port(document["port"], set())
    if owners and not owners <= ours:
        raise identity.foreign_port(document["port"], owners - ours)


def _previous(house: House, active: list[str]) -> dict[str, Any] | None:
    """The launch document of what really serves.

    Where a switch was cut off, what runs was never proven: then what that switch had stopped is meant.
    """
    cut_off = records.read(records.switching_path(house.root))
    for profile in active:
        document, record = launch.read(house.root, profile), house.launched(profile)
        if not document or record.get("fingerprint") != document["fingerprint"]:
            continue
        if records.proved(house.root, record) or not cut_off:
            return document
    before = cut_off.get("from")
    return before if isinstance(before, dict) else None


def _stop_all(house: House, note: _Note) -> dict[str, int]:
    """Stop every profile and wait for its processes and GPU memory. Returns what strangers hold on the GPUs."""
    stopped: set[int] = set()
    for profile in PROFILES:
        pids = house.pids(profile)
        unit = house.unit(profile)
        if house.status(profile).active:
            note(f"stopping {profile}")
            house.supervisor.stop(unit)
        if pids:
            _reap(profile, pids, house.settings.stop_timeout_s, note)
        stopped |= pids
    if not stopped:
        return {}
    if house.settings.ray.used:
        cluster.wait_free(house.settings.ray, house.settings.release_timeout_s, note)
    return gpu.wait_free(stopped, house.settings.release_timeout_s, note)


def _reap(profile: str, pids: set[int], stop_timeout_s: float, note: _Note) -> None:
    """End what the supervisor left of our own processes: orphaned engine cores and workers."""
    for number, limit in ((0, 1.0), (signal.SIGTERM, stop_timeout_s), (signal.SIGKILL, 15.0)):
        left = {pid for pid in pids if processes.read(pid)}
        if not left:
            return
        if number:
            note(f"ending left-over processes of {profile}: {', '.join(map(str, sorted(left)))}")
            for pid in left:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
        processes.wait_gone(left, limit)
    left = {pid for pid in pids if processes.read(pid)}
    if left:
        named = "; ".join(f"pid {pid}: {processes.command(pid, 80)}" for pid in sorted(left))
        raise EyrieError(f"processes of {profile} do not end: {named}", code="stop-timeout")


def _start(house: House, document: dict[str, Any], note: _Note, times: dict[str, float]) -> dict[str, Any]:
    """Start a document's profile, wait until it is ready, prove it. The supervisor restarts it from then on."""
    profile = document["profile"]
    # only systemd's units run under an account of their own
    prepare_folders(house.root, house.settings.user if house.supervisor.kind == "systemd" else "")
    rotate(house.log(profile))
    launch.write(house.root, document)
    mark = time.monotonic()
    house.supervisor.start(house.program(profile))
    ready.wait(house, document, note)
    times["load_s"] = time.monotonic() - mark
    note("proving its identity")
    return identity.prove_document(house.root, document, acceptance=True)


def prepare_folders(root: Path, user: str) -> None:
    """Folders a server writes to; its own account's where units run under one."""
    base = launch.folder(root)
    for folder in (
        base / "log",
        base / "launched",
        launch.storage(root),
        root / "cache" / "tmp",
        root / "cache" / "home",
    ):
        folder.mkdir(parents=True, exist_ok=True)
        if user and os.geteuid() == 0:
            import pwd

            account = pwd.getpwnam(user)
            os.chown(folder, account.pw_uid, account.pw_gid)


def _restored(
    house: House, document: dict[str, Any], previous: dict[str, Any] | None, note: _Note, error: BaseException
) -> EyrieError:
    """Bring back what served before, and make one error of the failure and of how that went."""
    profile = document["profile"]
    lines = tail(house.log(profile), 12)
    try:
        note("restoring what served before")
        _stop_all(house, note)
        if previous is None:
            after = "Nothing served before; nothing serves now."
        else:
            _start(house, previous, note, {})
            after = f"{previous['profile']} ({short(previous['fingerprint'])}) served before and serves again, proven."
    except EyrieError as second:
        after = f"RESTORING {(previous or {}).get('profile', 'nothing')} FAILED TOO: {second}"
    known = error if isinstance(error, EyrieError) else EyrieError(f"{type(error).__name__}: {error}")
    kind = GateError if isinstance(error, GateError) else EyrieError
    return kind(
        f"switching to {profile} failed: {known.what}",
        where=house.unit(profile),
        code=known.code if known.code != "error" else "switch-failed",
        why=" ".join(part for part in (known.why, f"Last log lines: {' | '.join(lines)}" if lines else "") if part),
        todo=" ".join(part for part in (after, known.todo, f"Log: {house.log(profile)}") if part),
    )


def _remember(
    house: House,
    document: dict[str, Any],
    proof: dict[str, Any],
    seconds: float,
    times: dict[str, float],
    foreign: dict[str, int],
) -> None:
    record = house.launched(document["profile"])
    atomic.write_json(
        records.serving_path(house.root),
        {
            "profile": document["profile"],
            "fingerprint": document["fingerprint"],
            "pid": record.get("pid"),
            "start": record.get("start"),
            "unit_digest": house.unit_digest(document["profile"]),
            "identity": proof,
            "since": time.time(),
            "switch_s": round(seconds, 3),
            **{key: round(value, 3) for key, value in times.items()},
            "foreign_gpu_mib": foreign,
        },
    )

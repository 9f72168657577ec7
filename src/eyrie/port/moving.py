"""Sending a pack: in the foreground, or as a supervised job that outlives the connection that started it."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from eyrie.core import atomic, lock
from eyrie.core.errors import EyrieError, Interrupted, SpecError
from eyrie.core.fingerprint import fingerprint
from eyrie.core.pipeline import Pipeline
from eyrie.core.progress import Progress
from eyrie.core.spec import load
from eyrie.port import keys, manifest, transfer, ways
from eyrie.port.manifest import Entry
from eyrie.port.survey import port_dir
from eyrie.port.transfer import Limits, Way

PROBE_BYTES = 16 << 20
_SMALL = 64 << 10


@dataclass(frozen=True)
class Move:
    """One pack to one place.

    to_local: the near end is the destination (a pull); else the near end is the source. seal: send the manifest after
    the trees; off while further trees of the same pack are to come.
    """

    trees: list[dict[str, Any]]
    manifest: Path
    sha256: str
    way: Way
    folder: str
    limits: Limits
    to_local: bool = False
    progress: Path | None = None
    seal: bool = True

    @classmethod
    def of(cls, request: dict[str, Any]) -> Move:
        """From a request {trees, manifest, sha256, to: {connection | rsh, host; folder}, limits?, pull?, seal?}."""
        missing = [name for name in ("trees", "manifest", "sha256", "to") if request.get(name) is None]
        if missing:
            raise SpecError(f"the request lacks {', '.join(missing)}.", where="port.send", code="request-incomplete")
        to = request["to"]
        return cls(
            trees=request["trees"],
            manifest=Path(request["manifest"]),
            sha256=request["sha256"],
            way=way_of(to),
            folder=str(to.get("folder") or ""),
            limits=load(Limits, request.get("limits") or {}, "port.limits"),
            to_local=bool(request.get("pull")),
            progress=Path(request["progress"]) if request.get("progress") else None,
            seal=request.get("seal", True) is not False,
        )


def send_pack(move: Move, check_stop: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Bring every tree, then the manifest; {files, bytes, seconds, attempts, cuts}.

    The manifest comes last: its presence says that all the rest was sent.
    """
    listed = _listed(move)
    begin = time.monotonic()
    progress = Progress(move.progress) if move.progress else None
    if progress:
        progress.start("send", listed.bytes, "bytes")

    def moved(size: int) -> None:
        if progress:  # what a cut link makes cross twice is not more than there is
            size = min(size, listed.bytes - progress.done)
            progress.advance(size, size)

    attempts = 0
    for tree in move.trees:
        entries = listed.of(tree["stage"], tree["tree"])
        there = "/".join(part for part in (move.folder, tree["stage"], tree["tree"]) if part)
        near, far = tree["path"], move.way.place(there)
        if move.to_local:
            near, far = move.way.place(tree["path"]), there
        if move.to_local or not move.way.host:
            Path(there).mkdir(parents=True, exist_ok=True)
        attempts += transfer.send(entries, near, far, move.way, move.limits, moved, check_stop)
    if move.seal:
        attempts += _send_manifest(move, check_stop)
    sent = [entry for tree in move.trees for entry in listed.of(tree["stage"], tree["tree"]) if entry.sha256]
    return {
        "files": len(sent),
        "bytes": sum(entry.bytes for entry in sent),
        "seconds": round(time.monotonic() - begin, 2),
        "attempts": attempts,
        "cuts": attempts - len(move.trees) - int(move.seal),
    }


def _listed(move: Move) -> manifest.Manifest:
    """The manifest; a pull fetches it first, because it says what to fetch."""
    if not move.to_local:
        return manifest.read(move.manifest, move.sha256)
    folder = Path(move.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        entry = [Entry("target", "out", manifest.NAME)]
        source = move.way.place(str(move.manifest.parent))
        transfer.send(entry, source, scratch, move.way, move.limits)
        return manifest.read(Path(scratch) / manifest.NAME, move.sha256)


def _send_manifest(move: Move, check_stop: Callable[[], None]) -> int:
    entry = [Entry("target", "out", manifest.NAME)]
    near, far = str(move.manifest.parent), move.way.place(move.folder or ".")
    if move.to_local:
        near, far = move.way.place(near), move.folder
    return transfer.send(entry, near, far, move.way, move.limits, check_stop=check_stop)


def job_dir(pipeline: Pipeline) -> Path:
    return port_dir(pipeline.root) / "job"


def start(pipeline: Pipeline, request: dict[str, Any]) -> dict[str, Any]:
    """Send under the supervisor, or attach to the same send; {started, attached, unit, log}."""
    from eyrie.supervise import backend, jobs
    from eyrie.supervise.base import Program

    to = request.get("to") or {}
    way = direct_way(pipeline, to)
    request = {**request, "to": {"rsh": list(way.rsh), "host": way.host, "folder": to.get("folder", "")}}
    Move.of(request)  # refuse a bad request here, not in the job's log
    folder = job_dir(pipeline)
    unit = jobs.unit_of(pipeline, "port")
    supervisor = backend(pipeline.root, pipeline.execution)
    wanted = fingerprint({key: request.get(key) for key in ("sha256", "to")})
    owner = lock.holder(folder / "lock")
    told = {"unit": unit, "log": str(folder / "log")}
    if owner is not None:
        if owner.get("fingerprint") == wanted:
            return {"started": False, "attached": True, **told}
        raise EyrieError(
            "another port is being sent from this host.",
            code="running-other",
            todo="Wait for it, or stop its unit.",
            where=unit,
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").unlink(missing_ok=True)
    request.pop("spec", None)
    job = {**request, "progress": str(folder / "progress.json"), "fingerprint": wanted}
    atomic.write_json(folder / "request.json", job, mode=0o600)
    supervisor.stop(unit)
    argv = (sys.executable, "-m", "eyrie.port.job", str(folder))
    supervisor.start(Program(unit, argv, folder / "log", pipeline.root, jobs.job_environment(pipeline), 30))
    return {"started": True, "attached": False, **told}


def status(pipeline: Pipeline) -> dict[str, Any]:
    """Where the supervised sending job stands; see `stands`."""
    from eyrie.supervise import backend, jobs

    def starting() -> bool:
        return backend(pipeline.root, pipeline.execution).status(jobs.unit_of(pipeline, "port")).active

    return stands(job_dir(pipeline), starting)


def stands(folder: Path, starting: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """{finished, running, lost, progress, result, error, log} of a job's folder.

    starting: whether a job that has no lock yet is on its way.
    """
    running = lock.holder(folder / "lock") is not None  # first: who lets go of the lock has left its result
    result = atomic.read_json(folder / "result.json", {}) or {}
    running = running or (not result and starting())
    return {
        "finished": bool(result) and not running,
        "running": running,
        "lost": not running and not result and (folder / "request.json").exists(),
        "progress": atomic.read_json(folder / "progress.json", None),
        "result": result.get("result"),
        "error": result.get("error"),
        "log": str(folder / "log"),
    }


def work(folder: Path) -> int:
    """The job itself: send what request.json says, leave result.json."""
    request = atomic.read_json(folder / "request.json", {}) or {}
    stop = {"asked": False}

    def asked(number: int, frame: FrameType | None) -> None:
        stop["asked"] = True

    def check_stop() -> None:
        if stop["asked"]:
            raise Interrupted(
                "asked to stop", code="interrupted", todo="Run the port again: it goes on where it stopped."
            )

    signal.signal(signal.SIGTERM, asked)
    with lock.Lock(folder / "lock", {"fingerprint": request.get("fingerprint"), "since": time.time()}):
        try:
            result: dict[str, Any] = {"result": send_pack(Move.of(request), check_stop)}
        except EyrieError as error:
            result = {"error": error.as_dict()}
        atomic.write_json(folder / "result.json", result)
    return 1 if "error" in result else 0


def probe(pipeline: Pipeline, to: dict[str, Any], size: int = PROBE_BYTES) -> dict[str, Any]:
    """Can this host write to the destination, and how fast? {reachable, mb_s, why}.

    The time of a small file is taken from that of a large one, so that connecting does not count. The probe's files
    are random bytes in the incoming folder, removed by the landing.
    """
    way = direct_way(pipeline, to)
    folder = str(to.get("folder") or "")
    limits = Limits(timeout_s=20, tries=1, pause_s=0.0)
    port_dir(pipeline.root).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=port_dir(pipeline.root)) as scratch:
        try:
            small = _timed(Path(scratch), "probe-small", _SMALL, folder, way, limits)
            large = _timed(Path(scratch), "probe-large", size, folder, way, limits)
        except EyrieError as error:
            return {"reachable": False, "mb_s": 0.0, "why": error.why or error.what}
    seconds = max(large - small, 1e-3)
    return {"reachable": True, "mb_s": round((size - _SMALL) / seconds / 1e6, 3), "why": ""}


def _timed(scratch: Path, name: str, size: int, folder: str, way: Way, limits: Limits) -> float:
    (scratch / name).write_bytes(secrets.token_bytes(size))
    begin = time.monotonic()
    transfer.send([Entry("target", "out", name)], str(scratch), way.place(folder or "."), way, limits)
    with suppress(OSError):
        os.unlink(scratch / name)
    return time.monotonic() - begin


def way_of(to: dict[str, Any]) -> Way:
    """{connection: {...}} as the inventory says it, or {rsh, host} as rsync takes it; neither: this machine."""
    if to.get("connection"):
        return ways.way(to["connection"])
    return Way(tuple(to.get("rsh") or ()), str(to.get("host") or ""))


def direct_way(pipeline: Pipeline, to: dict[str, Any]) -> Way:
    """{address, port, user, host_keys} -> ssh with this port's key; any other form is taken as it is."""
    if not to.get("address"):
        return way_of(to)
    words = keys.ssh_words(
        pipeline, str(to["address"]), int(to.get("port") or 22), str(to.get("user") or "root"), list(to["host_keys"])
    )
    return Way(tuple(words), str(to["address"]))

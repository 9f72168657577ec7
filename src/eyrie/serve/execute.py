"""`eyrie server exec PROFILE`: become the server that its launch document describes."""

from __future__ import annotations

import os
import re
import resource
import signal
import time
from pathlib import Path
from typing import Any, NoReturn

from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.serve import launch
from eyrie.supervise import processes

#: what a server takes over from its supervisor's environment; the rest is declared or not there
INHERITED = re.compile(
    r"LANG|LC_.*|TZ|USER|LOGNAME|LD_LIBRARY_PATH|NVIDIA_.*|CUDA_HOME|CREDENTIALS_DIRECTORY|EYRIE_.*|NOTIFY_SOCKET"
)
WRONG_DOCUMENT = 78  # EX_CONFIG: units do not try that again


def become(root: Path, profile: str) -> NoReturn:
    """Replace this process by the server. Raises EyrieError when the document cannot be used."""
    document = launch.read(root, profile)
    if not document:
        raise EyrieError(
            f"there is no valid launch document {launch.path(root, profile)}.",
            code="no-document",
            why="It is missing, torn or was edited by hand.",
            todo="Start servers with playbooks/serve.yml or `eyrie server start`, which write it.",
        )
    running = launched(root, profile)
    if running and running["pid"] != os.getpid():
        raise EyrieError(
            f"{profile} is running already (pid {running['pid']}).",
            code="already-launched",
            todo="Stop it with `eyrie server stop`.",
        )
    reap_leftovers(root, profile)
    environment = _environment(root, document)
    _raise_file_limit()
    os.chdir(document["directory"])
    process = processes.read(os.getpid())
    atomic.write_json(
        launched_path(root, profile),
        {
            "fingerprint": document["fingerprint"],
            "pid": os.getpid(),
            "start": process.start if process else 0,
            "group": os.getpgrp(),
            "log_offset": _size(launch.log_path(root, profile)),
            "time": time.time(),
        },
    )
    argv = document["argv"]
    try:
        os.execvpe(argv[0], argv, environment)  # noqa: S606 - a list, from our own checked document
    except OSError as error:
        raise EyrieError(f"cannot execute {argv[0]}: {error.strerror}", code="exec-failed") from None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def launched_path(root: Path, profile: str) -> Path:
    return launch.folder(root) / "launched" / f"{profile}.json"


def launched(root: Path, profile: str) -> dict[str, Any]:
    """What the live process of a profile was started with: {fingerprint, pid, start, group}; {} when none lives."""
    record = atomic.read_json(launched_path(root, profile), {})
    if not isinstance(record, dict) or not record.get("pid"):
        return {}
    process = processes.read(int(record["pid"]))
    return record if process and process.start == record.get("start") else {}


def leftovers(root: Path, profile: str) -> set[int]:
    """Live processes of an earlier launch of this profile (orphaned engine cores and workers).

    Ours by process group or by the mark in their environment, never by name.
    """
    record = atomic.read_json(launched_path(root, profile), {})
    if not isinstance(record, dict):
        return set()
    group, mark = int(record.get("group") or 0), mark_of(root, profile)
    # a group number may have been given to strangers since: its members must have our mark or our record's pid
    found = set()
    for process in processes.alive():
        if process.pid == os.getpid() or process.group == os.getpgrp():
            continue
        if processes.has_mark(process.pid, mark) or (
            group > 1 and process.group == group and _older_kin(process, record)
        ):
            found.add(process.pid)
    return found


def _older_kin(process: processes.Process, record: dict[str, Any]) -> bool:
    """A member of the recorded group that started after its leader, while the leader's pid is not someone else's."""
    leader = processes.read(int(record["pid"]))
    ours = leader is None or leader.start == record.get("start")
    return ours and process.start >= int(record.get("start") or 0)


def reap_leftovers(root: Path, profile: str) -> None:
    """Kill what an earlier launch of this profile left; it holds memory that this launch needs."""
    left = leftovers(root, profile)
    for number, limit in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 10.0)):
        for pid in left:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        left = processes.wait_gone(left, limit)
    if left:
        named = "; ".join(f"{pid} {processes.command(pid, 60)}" for pid in sorted(left))
        raise EyrieError(f"processes of an earlier launch do not end: {named}", code="leftovers")


def mark_of(root: Path, profile: str) -> str:
    return f"EYRIE_SERVER={root}:{profile}"


def inherited() -> dict[str, str]:
    """What is taken over from the supervisor's environment."""
    return {key: value for key, value in os.environ.items() if INHERITED.fullmatch(key)}


def _environment(root: Path, document: dict[str, Any]) -> dict[str, str]:
    name, _, value = mark_of(root, document["profile"]).partition("=")
    found = {**inherited(), **document["environment"], name: value}
    if document["device"] == "cpu":
        cores = sorted(os.sched_getaffinity(0))
        found.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(str(core) for core in cores))
    for key, place in document["secrets"].items():
        found[key] = read_secret(key, Path(place))
    Path(found.get("TMPDIR", "/tmp")).mkdir(parents=True, exist_ok=True)  # noqa: S108
    return found


def read_secret(name: str, place: Path) -> str:
    """A secret by systemd's credential of that name, else from its file, which nobody else may read."""
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    if credentials and (Path(credentials) / name.lower()).exists():
        return (Path(credentials) / name.lower()).read_text("utf-8").strip()
    try:
        mode = place.stat().st_mode
        if mode & 0o077:
            raise EyrieError(
                f"{place} is open to others (mode {mode & 0o777:o}).",
                where=f"server.secrets.{name}",
                code="secret-open",
                todo=f"chmod 600 {place}",
            )
        return place.read_text("utf-8").strip()
    except OSError as error:
        raise EyrieError(
            f"cannot read {place}: {error.strerror}", where=f"server.secrets.{name}", code="secret-unreadable"
        ) from None


def _raise_file_limit() -> None:
    """Up to the hard limit: a server with a thousand clients needs more than 1024 files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

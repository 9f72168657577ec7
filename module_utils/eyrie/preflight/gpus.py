# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""The GPUs as nvidia-smi shows them: number, kind, who uses them, errors, driver."""

from __future__ import annotations

import re

from ansible.module_utils.eyrie.preflight.finding import error, info, warning
from ansible.module_utils.eyrie.text import human_bytes
from ansible.module_utils.eyrie.venv import VenvError, pins

FIELDS = (
    "index",
    "name",
    "memory.total",
    "memory.used",
    "driver_version",
    "compute_cap",
    "pci.bus_id",
    "pcie.link.gen.max",
    "pcie.link.width.max",
    "pcie.link.width.current",
    "ecc.errors.uncorrected.volatile.total",
    "mig.mode.current",
)
QUERY = ["nvidia-smi", "--query-gpu=" + ",".join(FIELDS), "--format=csv,noheader,nounits"]
APPS = ["nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits"]
MIB = 1 << 20
#: memory that an idle GPU shows as used (driver, persistence)
IDLE_BYTES = 1500 * MIB
#: first driver branch that carries a CUDA major version
DRIVER_OF_CUDA = {"12": "525.60.13", "13": "580.65.06"}


def read(host):
    """([{field: text}], problem): the GPUs, or why they cannot be seen. Asked once a host."""
    known = getattr(host, "_gpus", None)
    if known is None:
        rc, out, err = host.run(QUERY)
        if rc != 0:
            said = ((err + out).strip().splitlines() or ["rc %d" % rc])[-1]
            known = ([], "nvidia-smi is not there" if rc == 127 else said)
        else:
            rows = [[cell.strip() for cell in line.split(",")] for line in out.splitlines() if line.strip()]
            known = ([dict(zip(FIELDS, row)) for row in rows if len(row) == len(FIELDS)], "")
        host._gpus = known
    return known


def number(text):
    """A figure of nvidia-smi; None for [N/A] and the like."""
    match = re.match(r"^\s*([0-9]+(?:\.[0-9]+)?)", text or "")
    return float(match.group(1)) if match else None


def version(text):
    return tuple(int(part) for part in re.findall(r"\d+", text or "")[:3])


def wanted(context):
    return int(context.expect["gpu_count"] or 0)


def present(host, context):
    """As many GPUs as the profile has; none is asked for on a CPU profile."""
    if not wanted(context):
        return []
    found, problem = read(host)
    if problem:
        return error(
            "gpus",
            "The GPUs cannot be seen: %s." % problem,
            "The profile has %d of them." % wanted(context),
            "Install the driver, start the container with --gpus all, or choose the profile that fits this host. "
            "'Driver/library version mismatch' wants a reboot; 'fallen off the bus' a power cycle.",
        )
    if len(found) < wanted(context):
        return error(
            "gpus",
            "%d GPUs are there, the profile has %d." % (len(found), wanted(context)),
            "Tensor parallel ranks would be missing.",
            "Look for Xid errors in the kernel's log (a GPU that fell off the bus), or start the container with all "
            "GPUs.",
        )
    if len(found) > wanted(context):
        return info("gpus", "%d GPUs are there, the profile uses %d." % (len(found), wanted(context)))
    return []


def kind(host, context):
    """Model, memory and compute capability are the profile's, and all are alike."""
    found, problem = read(host)
    if not wanted(context) or problem:
        return []
    faults = []
    names = sorted(set(gpu["name"] for gpu in found))
    if len(names) > 1:
        faults += error(
            "gpu model",
            "The GPUs are not alike: %s." % ", ".join(names),
            "The slowest sets the pace, the smallest the size.",
            "Use one kind.",
        )
    pattern = context.expect["gpu_name"]
    other = [name for name in names if pattern and not re.search(pattern, name)]
    if other:
        faults += error(
            "gpu model",
            "The GPUs are %s; the profile is for %s." % (", ".join(other), pattern),
            "Attention kernels, NCCL settings and memory sizes are those of another chip.",
            "Put the host into the group of its own profile.",
        )
    least = float(context.expect["gpu_memory_bytes"])
    small = [gpu for gpu in found if (number(gpu["memory.total"]) or 0) * MIB < least]
    if small:
        faults += error(
            "gpu memory",
            "GPU %s has %s, the profile counts on %s."
            % (small[0]["index"], human_bytes((number(small[0]["memory.total"]) or 0) * MIB), human_bytes(least)),
            "The target would not fit.",
            "Raise tensor_parallel_size, or use larger GPUs.",
        )
    capability = str(context.expect["gpu_compute_capability"] or "")
    wrong = sorted(set(gpu["compute_cap"] for gpu in found) - {capability})
    if capability and wrong:
        faults += error(
            "compute capability",
            "Compute capability %s; the profile is for %s." % (", ".join(wrong), capability),
            "Kernels are chosen by it: MLA and flex-attention sizes that fit one chip fail on the other.",
            "Put the host into the group of its own profile.",
        )
    sliced = [gpu["index"] for gpu in found if gpu["mig.mode.current"] == "Enabled"]
    if sliced:
        faults += error(
            "mig",
            "MIG is on for GPU %s." % ", ".join(sliced),
            "Slices cannot talk to each other.",
            "nvidia-smi -mig 0, as root.",
        )
    return faults


def visible(host, context):
    """CUDA_VISIBLE_DEVICES, where set for the servers, names GPUs of this host by index, each once, enough of them."""
    value = context.server_environment().get("CUDA_VISIBLE_DEVICES")
    found, problem = read(host)
    if value is None or problem or not found:
        return []
    fault = _misnamed([part.strip() for part in str(value).split(",")], [gpu["index"] for gpu in found])
    count = len(str(value).split(","))
    if not fault and count < wanted(context):
        fault = "shows %d of the %d GPUs of the profile" % (count, wanted(context))
    if not fault:
        return []
    return error(
        "visible gpus",
        "CUDA_VISIBLE_DEVICES=%s %s." % (value, fault),
        "The server reads it as a list of indices: it would stop while it starts, or wait for ranks that never come.",
        "Correct it in eyrie_server_environment: indices separated by commas (`nvidia-smi -L` lists them), or leave it "
        "out to use all.",
    )


def _misnamed(names, indices):
    """What is wrong with a list of visible GPUs; "" when nothing is."""
    for place, name in enumerate(names):
        if not name:
            return "has an empty place: no GPU after it is seen"
        if name.startswith(("GPU-", "MIG-")):
            return "names %s by its identifier, not by its index" % name
        if re.match(r"^\d+\s*[-:]\s*\d+$", name):
            return "has the range %s; ranges are not understood" % name
        if name not in indices:
            return "names %r, which is none of %s" % (name, ", ".join(indices))
        if name in names[:place]:
            return "names %s twice" % name
    return ""


def busy(host, context):
    """Memory that strangers hold; Eyrie's own servers are known by their environment."""
    found, problem = read(host)
    if not wanted(context) or problem:
        return []
    used = [gpu for gpu in found if (number(gpu["memory.used"]) or 0) * MIB > IDLE_BYTES]
    if not used:
        return []
    rc, out, _err = host.run(APPS)
    apps = (
        [[cell.strip() for cell in line.split(",")] for line in out.splitlines() if line.count(",") >= 2]
        if rc == 0
        else []
    )
    mark = "EYRIE_"
    strangers = [
        app for app in apps if not any(e.startswith(mark) for e in host.read("/proc/%s/environ" % app[0]).split("\0"))
    ]
    if apps and not strangers:
        return []
    listed = (
        "; ".join(sorted(set("pid %s %s" % (app[0], app[1]) for app in strangers))) or "nvidia-smi names no process"
    )
    return error(
        "gpu memory in use",
        "GPU %s already hold memory (%s on GPU %s): %s."
        % (
            ", ".join(gpu["index"] for gpu in used),
            human_bytes((number(used[0]["memory.used"]) or 0) * MIB),
            used[0]["index"],
            listed,
        ),
        "The server takes a share of all memory when it starts, and would not find it.",
        "End those processes. Workers of a killed server count among them: they hold memory without a port.",
    )


def health(host, context):
    """Uncorrected memory errors, and the kernel's log of GPU faults where it can be read."""
    found, problem = read(host)
    if not wanted(context) or problem:
        return []
    faults = []
    bad = [gpu["index"] for gpu in found if (number(gpu["ecc.errors.uncorrected.volatile.total"]) or 0) > 0]
    if bad:
        faults += error(
            "ecc",
            "GPU %s has uncorrected memory errors since the last boot." % ", ".join(bad),
            "States and gradients may be wrong without a word.",
            "Reset or replace the GPU; on a rented host ask for another.",
        )
    rc, out, _err = host.run(["dmesg"])
    seen = sorted(set(re.findall(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)", out))) if rc == 0 else []
    if seen:
        listed = ", ".join("Xid %s on %s" % (code, bus) for bus, code in seen[:4])
        faults += warning(
            "xid",
            "The kernel's log has GPU faults: %s." % listed,
            "A GPU that failed once tends to fail again in a long run (79: fell off the bus; 119: firmware hung).",
            "Look the numbers up in NVIDIA's Xid list; reset or replace the GPU.",
        )
    return faults


def cuda_of_lock(context):
    """CUDA version of the locked wheels ('13.0'), '' when the lock names none."""
    try:
        locked = pins(context.runtime.get("lock") or "")
    except VenvError:
        return ""
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12"):
        if name in locked:
            return ".".join(locked[name].split(".")[:2])
    return ""


def driver(host, context):
    """The driver carries the CUDA of the locked wheels, and is not older than the profile's chip wants."""
    found, problem = read(host)
    if not wanted(context) or problem or not found:
        return []
    have = found[0]["driver_version"]
    cuda = cuda_of_lock(context)
    needed = [
        text for text in (str(context.expect["gpu_driver"] or ""), DRIVER_OF_CUDA.get(cuda.split(".")[0], "")) if text
    ]
    most = max(needed, key=version, default="")
    if not most or version(have) >= version(most):
        return []
    return error(
        "driver",
        "Driver %s; %s or later is needed (the wheels are for CUDA %s)." % (have, most, cuda or "unknown"),
        "torch would find no GPU, or the first kernel would fail.",
        "Install the driver on the host (a container uses the host's), or a lock with wheels for an older CUDA.",
    )

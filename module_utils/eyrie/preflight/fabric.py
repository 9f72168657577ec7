# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""How the GPUs are joined: NVLink or PCIe, peer-to-peer, and what NCCL will believe."""

from __future__ import annotations

import re

from ansible.module_utils.eyrie.preflight import gpus
from ansible.module_utils.eyrie.preflight.finding import error, info, warning

TOPOLOGY = ["nvidia-smi", "topo", "-m"]
PEERS = ["nvidia-smi", "topo", "-p2p", "r"]
#: GB/s of one lane, by PCIe generation
LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.877}
#: the kernel's words for a link speed -> generation
GENERATION = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
ESCAPE = re.compile("\x1b\\[[0-9;]*m")
#: variables that give NCCL a topology instead of letting it look
GIVEN = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")


def matrix(text):
    """{(row, column): cell} between GPUs of an `nvidia-smi topo` answer, the diagonal left out."""
    cells, columns = {}, []
    for line in ESCAPE.sub("", text).splitlines():
        words = line.split()
        if not columns and words and all(re.match(r"^GPU\d+$", word) for word in words[:1]) and "X" not in words:
            columns = [word for word in words if re.match(r"^GPU\d+$", word)]
        elif columns and words and words[0] in columns:
            for column, cell in zip(columns, words[1:]):
                if cell != "X":
                    cells[(words[0], column)] = cell
    return cells


def _ask(host, argv):
    rc, out, _err = host.run(argv)
    return matrix(out) if rc == 0 else {}


def links(host, context):
    """NVLink where the profile has it, PCIe where it does not."""
    expected = context.expect["gpu_link"]
    found, problem = gpus.read(host)
    if not expected or problem or len(found) < 2:
        return []
    cells = _ask(host, TOPOLOGY)
    if not cells:
        return warning(
            "link", "nvidia-smi topo -m gave no matrix.", "Whether the GPUs are joined as the profile says is unknown."
        )
    without = sorted(pair for pair, cell in cells.items() if not cell.startswith("NV"))
    if expected == "nvlink" and without:
        return error(
            "link",
            "%d of %d pairs of GPUs are not joined by NVLink (first: %s-%s %s)."
            % (len(without), len(cells), without[0][0], without[0][1], cells[without[0]]),
            "All-reduce would go through PCIe; the profile's settings are for NVLink.",
            "Look at `nvidia-smi nvlink -s` and at the fabric manager (systemctl status nvidia-fabricmanager), "
            "or use the PCIe profile.",
        )
    if expected == "pcie" and len(without) < len(cells):
        return warning(
            "link",
            "The GPUs are joined by NVLink; the profile is for PCIe.",
            "Its settings (custom all-reduce off) leave NVLink unused.",
            "Put the host into the group of an NVLink profile.",
        )
    if expected == "pcie":
        return _distances(cells)
    return []


def _distances(cells):
    """PCIe: how many pairs must cross the CPUs' interconnect."""
    across = [cell for cell in cells.values() if cell == "SYS"]
    if not across:
        return []
    return info(
        "link",
        "%d of %d pairs of GPUs talk across CPU sockets (SYS)." % (len(across), len(cells)),
        "One-shot all-reduce is slower there than NCCL's ring.",
        "Keep disable_custom_all_reduce on.",
    )


def settings(host, context):
    """The servers' all-reduce settings fit the links that are there: what one kind needs costs the other dear."""
    found, problem = gpus.read(host)
    cells = _ask(host, TOPOLOGY) if not problem and len(found) > 1 else {}
    if not cells:
        return []
    nvlink = all(cell.startswith("NV") for cell in cells.values())
    parallel = [args for _where, args in context.server_args() if int(args.get("tensor_parallel_size") or 1) > 1]
    faults = []
    if nvlink and str(context.server_environment().get("NCCL_P2P_DISABLE", "0")) == "1":
        faults += warning(
            "all-reduce",
            "NCCL_P2P_DISABLE=1 on GPUs that NVLink joins.",
            "Every all-reduce is copied through host memory; a leftover of another host.",
            "Remove it from eyrie_server_environment.",
        )
    if nvlink and any(args.get("disable_custom_all_reduce") for args in parallel):
        faults += warning(
            "all-reduce",
            "disable_custom_all_reduce on GPUs that NVLink joins.",
            "Small all-reduces, those of decoding, take the slower way.",
            "Remove it from eyrie_server_args.",
        )
    if not nvlink and any(gpus.version(gpu["compute_cap"])[:1] == (12,) for gpu in found):
        open_to_it = [args for args in parallel if not args.get("disable_custom_all_reduce")]
        if open_to_it:
            faults += error(
                "all-reduce",
                "disable_custom_all_reduce is not set for a server on PCIe GPUs of compute capability 12.",
                "The custom all-reduce is built for other chips: the first one hangs or ends the server, though "
                "`topo -p2p` says OK.",
                "Set disable_custom_all_reduce: true in eyrie_server_args.",
            )
    return faults


def peers(host, context):
    """Peer-to-peer reads work between all GPUs, where the profile counts on them."""
    found, problem = gpus.read(host)
    if not context.expect["gpu_peer_to_peer"] or problem or len(found) < 2:
        return []
    cells = _ask(host, PEERS)
    bad = sorted(pair for pair, cell in cells.items() if cell != "OK")
    faults = []
    if bad:
        means = {
            "CNS": "chipset",
            "GNS": "GPU",
            "TNS": "topology",
            "NS": "not supported",
            "DR": "switched off in the driver",
        }
        cell = cells[bad[0]]
        faults += warning(
            "peer to peer",
            "%d of %d pairs of GPUs have no peer-to-peer access (%s-%s %s: %s)."
            % (len(bad), len(cells), bad[0][0], bad[0][1], cell, means.get(cell, "unknown")),
            "Every all-reduce is copied through host memory: decoding falls to a fraction.",
            "On the host: IOMMU in passthrough or off (iommu=pt), ACS off on the bridges, and the driver's "
            "peer-to-peer options (modprobe); or set NCCL_P2P_DISABLE=1 and accept the speed.",
        )
    return faults + _acs(host, bool(bad)) + _iommu(host)


def _acs(host, broken):
    """Bridges that send peers' traffic up to the CPU (ACS), as lspci shows them to root."""
    rc, out, _err = host.run(["lspci", "-vvv"])
    if rc != 0:
        return []
    bridges, device = [], ""
    for line in out.splitlines():
        if line and not line[0].isspace():
            device = line.split()[0] if "bridge" in line.lower() else ""
        elif device and "ACSCtl:" in line and ("ReqRedir+" in line or "SrcValid+" in line):
            bridges.append(device)
    if not bridges:
        return []
    return warning(
        "acs",
        "ACS is on for %d PCIe bridges (first: %s)." % (len(bridges), bridges[0]),
        "Peers' traffic goes up to the CPU and back: slower, and NCCL may hang at the first all-reduce though "
        "`topo -p2p` says OK.",
        "Switch it off in the BIOS or with setpci on the host; inside a container only the host can.",
    )


def _iommu(host):
    """An IOMMU that translates (not passthrough) breaks or slows peer-to-peer copies."""
    line = host.read("/proc/cmdline")
    groups = host.glob("/sys/kernel/iommu_groups/*")
    if not groups or re.search(r"\biommu=(pt|off)\b|\b(intel|amd)_iommu=off\b", line):
        return []
    return warning(
        "iommu",
        "The IOMMU is on and not in passthrough (kernel command line: no iommu=pt).",
        "Peer-to-peer copies are slowed down, or hang at the first all-reduce though `topo -p2p` says OK.",
        "Boot the host with iommu=pt (or off). If that is out of reach and NCCL hangs: NCCL_P2P_DISABLE=1.",
    )


def topology(host, context):
    """What NCCL will read from sysfs, against what nvidia-smi knows: a bridge that lies makes it choose badly."""
    found, problem = gpus.read(host)
    if not context.expect["gpu_link"] or problem or len(found) < 2:
        return []
    given = [name for name in GIVEN if name in context.server_environment()]
    slow, nowhere = [], []
    for gpu in found:
        true = _bandwidth(gpus.number(gpu["pcie.link.gen.max"]), gpus.number(gpu["pcie.link.width.max"]))
        believed = _believed(host, gpu["pci.bus_id"])
        if true and believed is not None and believed < 0.5 * true:
            slow.append((gpu["index"], believed, true))
        if host.read("/sys/bus/pci/devices/%s/numa_node" % _device(gpu["pci.bus_id"])).strip() == "-1":
            nowhere.append(gpu["index"])
    sockets = len(host.glob("/sys/devices/system/node/node[0-9]*"))
    said = []
    if context.expect["gpu_link"] == "pcie" and sockets > 1 and "AuthenticAMD" in host.read("/proc/cpuinfo"):
        said.append("on %d AMD nodes NCCL takes the link between them for 16 GB/s, whatever it is" % sockets)
    if slow and context.expect["gpu_link"] == "pcie":
        said.append("GPU %s: sysfs shows a path of %.1f GB/s, the GPU has %.1f GB/s" % slow[0])
    if nowhere and sockets > 1:
        said.append("GPU %s: no NUMA node, on a host with %d of them" % (", ".join(nowhere), sockets))
    if not said:
        return []
    if given:
        return info("nccl topology", "%s; %s is set." % ("; ".join(said), " and ".join(given)))
    return warning(
        "nccl topology",
        "NCCL will misread this host: %s." % "; ".join(said),
        "It chooses rings by what it believes; prefill has been seen at an eighth of its speed (876 of 7,478 tok/s).",
        "Give it the true topology: a file for NCCL_TOPO_FILE (or NCCL_GRAPH_FILE) in eyrie_server_environment; "
        "NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=GRAPH shows what it believes.",
    )


def _device(bus_id):
    """nvidia-smi's 00000000:1A:00.0 -> sysfs's 0000:1a:00.0."""
    return bus_id.lower()[-12:]


def _bandwidth(generation, width):
    return LANE[int(generation)] * int(width) if generation and width and int(generation) in LANE else None


def _believed(host, bus_id):
    """GB/s of the slowest link between a GPU and the root, as the kernel shows it; None when it shows nothing."""
    path = host.realpath("/sys/bus/pci/devices/%s" % _device(bus_id))
    lowest = None
    for step in _steps(path):
        speed = re.match(r"^([\d.]+) GT/s", host.read(step + "/max_link_speed").strip())
        width = host.read(step + "/max_link_width").strip()
        if not speed or not width.isdigit() or width in ("0", "255"):
            continue
        generation = GENERATION.get("%.1f" % float(speed.group(1)))
        here = _bandwidth(generation, int(width))
        if here is not None and (lowest is None or here < lowest):
            lowest = here
    return lowest


def _steps(path):
    """The device and the bridges above it, as paths."""
    parts = path.split("/")
    first = next((i for i, part in enumerate(parts) if part.startswith("pci")), len(parts))
    return ["/".join(parts[:end]) for end in range(first + 2, len(parts) + 1)]

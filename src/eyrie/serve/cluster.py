"""A target that one host cannot hold: vLLM places its workers on several hosts through Ray.

Each host keeps up a node of one Ray cluster (`eyrie server node`, a unit of its own), whatever is served. The first
host serves: its vLLM takes the other hosts' GPUs through the cluster, so a switch of profiles happens on that host
alone. Before a server is touched the cluster must be whole, and its GPUs free before the next one starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from eyrie.core import atomic, children, spec
from eyrie.core.addresses import interface_of, talk_over
from eyrie.core.errors import EyrieError, GateError
from eyrie.serve import execute
from eyrie.serve.cpu_platform import SEATS
from eyrie.serve.settings import RAY_TOKEN, Ray
from eyrie.supervise.interpreter import venv_python

LOOK_S = 60.0


@dataclass(frozen=True)
class Cluster:
    """nodes: {address: GPUs} of the living nodes; free: GPUs that nothing holds."""

    nodes: dict[str, float]
    free: float


def document_path(root: Path) -> Path:
    """What this host's node is started with: `spec.server.ray`, as the role wrote it."""
    return root / "server" / "ray.json"


def environment(ray: Ray) -> dict[str, str]:
    """What a process needs to be let into the cluster, the secret left out."""
    found = {
        "RAY_ADDRESS": ray.address,
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_HOST_IP": ray.own,
    }
    return found | ({SEATS: "1"} if ray.seats else {})


def seats(args: dict[str, Any]) -> int:
    """GPUs that a server with these arguments takes."""
    sizes = [args.get(name) or 1 for name in ("tensor_parallel_size", "pipeline_parallel_size")]
    return int(sizes[0]) * int(sizes[1])


def look(ray: Ray) -> Cluster:
    """The cluster as it is now. Raises EyrieError where it cannot be reached."""
    secret = execute.read_secret(RAY_TOKEN, Path(ray.token))
    try:
        done = subprocess.run(
            [venv_python(), "-m", "eyrie.serve.cluster_look", ray.address, ray.own],
            env=children.environment(**environment(ray), **{RAY_TOKEN: secret}),
            capture_output=True,
            text=True,
            timeout=LOOK_S,
        )
    except subprocess.TimeoutExpired:
        raise _unreachable(ray, f"no answer within {LOOK_S:.0f} s") from None
    if done.returncode:
        raise _unreachable(ray, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no word")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return Cluster({item["address"]: float(item["gpus"]) for item in found["nodes"]}, float(found["free"]))


def _unreachable(ray: Ray, why: str) -> EyrieError:
    return EyrieError(
        f"the Ray cluster at {ray.address} cannot be reached: {why}",
        where="server.ray",
        code="ray-unreachable",
        todo="Look at `systemctl status eyrie-ray` on its first host, and that all hosts have one token "
        "(the role `server` shares it): run playbooks/provision.yml over all of them.",
    )


def check(ray: Ray, args: dict[str, Any]) -> None:
    """Refuse a start while the cluster cannot hold the server. Raises GateError naming what is missing."""
    found = look(ray)
    missing = [address for address in ray.nodes if address not in found.nodes]
    if missing:
        raise GateError(
            f"the target is to be held by {len(ray.nodes)} hosts, the Ray cluster lacks {', '.join(missing)}.",
            where="server.ray",
            code="ray-node-missing",
            why=f"Nodes that are there: {', '.join(sorted(found.nodes)) or 'none'}.",
            todo="`systemctl restart eyrie-ray` there, and see that it reaches "
            f"{ray.address}. The server that runs was not touched.",
        )
    there, wanted = sum(found.nodes.values()), seats(args)
    if wanted > there:
        raise GateError(
            f"the server takes {wanted} GPUs (its tensor times its pipeline parallel size), the cluster has {there:g}.",
            where="server.args",
            code="ray-too-small",
            why=", ".join(f"{address}: {gpus:g}" for address, gpus in sorted(found.nodes.items())),
            todo="Make the sizes fit the hosts, or add hosts to eyrie_server_hosts.",
        )


def wait_free(ray: Ray, timeout_s: float, note: Callable[[str], None]) -> None:
    """Wait until a stopped server's workers, on all hosts, gave back their GPUs."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = look(ray)
        held = sum(found.nodes.values()) - found.free
        if held < 1:
            return
        if time.monotonic() > deadline:
            raise EyrieError(
                f"{held:g} GPUs of the Ray cluster are not free after {timeout_s:.0f} s.",
                where="server.ray",
                code="ray-not-free",
                why="Workers of the server that was stopped, or somebody else's, still hold them.",
                todo="`systemctl restart eyrie-ray` on all of its hosts ends every worker; then run again.",
            )
        note(f"waiting for {held:g} GPUs of the cluster")
        time.sleep(1)


def node_command(ray: Ray, root: Path) -> list[str]:
    """Ray's command for this host's node."""
    own = [venv_python(), str(Path(venv_python()).parent / "ray"), "start", "--block", "--disable-usage-stats"]
    own += ["--node-ip-address", ray.own]
    if ray.seats:
        own += ["--num-gpus", str(ray.seats)]
    if ray.own == ray.nodes[0]:
        # short: sockets lie below it, and their paths have 107 characters at most
        own += ["--head", "--port", str(ray.port), "--include-dashboard", "false", "--temp-dir", str(root / "ray")]
        return own
    return [*own, "--address", ray.address]


def become(root: Path) -> NoReturn:
    """Replace this process by the node that the host's document describes."""
    value = atomic.read_json(document_path(root))
    if not isinstance(value, dict):
        raise EyrieError(f"there is no {document_path(root)}.", code="no-document", todo="Run playbooks/provision.yml.")
    ray = spec.load(Ray, value, "server.ray").numbered()
    found = {**execute.inherited(), **environment(ray), **_of_workers(root, ray)}
    found[RAY_TOKEN] = execute.read_secret(RAY_TOKEN, Path(ray.token))
    del found["RAY_ADDRESS"]  # this is a node, not a client
    argv = node_command(ray, root)
    os.execvpe(argv[0], argv, found)  # noqa: S606 - a list, from our own checked document


def _of_workers(root: Path, ray: Ray) -> dict[str, str]:
    """What vLLM's workers take over from their node."""
    cache = root / "cache"
    return {
        "HOME": str(cache / "home"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "PATH": os.pathsep.join([str(Path(venv_python()).parent), "/usr/local/bin", "/usr/bin", "/bin"]),
        **talk_over(interface_of(ray.own)),  # else gloo takes what the host's name leads to, which may be loopback
    }

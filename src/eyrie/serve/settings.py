"""Typed settings of the servers: `spec.server`."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from eyrie.core import spec
from eyrie.core.addresses import is_number, number_of, own_on_the_way_to
from eyrie.core.errors import SpecError
from eyrie.core.spec import setting

if TYPE_CHECKING:
    from eyrie.core.pipeline import Pipeline

PROFILES = ("baseline", "extract", "eagle3")
#: the environment's name of the secret of a Ray cluster
RAY_TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 - a name
#: arguments that Eyrie computes: a second source of them would contradict the first
COMPUTED = {
    "model", "model_path", "served_model_name", "host", "port", "speculative_config", "kv_transfer_config",
    "speculative_algorithm", "speculative_draft_model_path",
}  # fmt: skip


@dataclass
class Profile:
    """What one profile adds to the common settings.

    args: engine arguments as data: `tensor_parallel_size: 8`, a bool for a switch, a mapping for JSON; null drops one.
    environment: variables for the engine's processes.
    """

    args: dict[str, Any] = setting({})
    environment: dict[str, str] = setting({})


@dataclass
class ExtractProfile(Profile):
    """extract_args: kv_connector_extra_config of the hidden-states connector, besides the storage path."""

    connector: dict[str, Any] = setting({})


@dataclass
class Eagle3Profile(Profile):
    """num_speculative_tokens: tokens drafted per step (k).

    speculative: further keys of vLLM's speculative config (draft_tensor_parallel_size, ...).
    min_acceptance: acceptance length a served draft must reach on the probe; an untrained one shows 1.00-1.006.
    """

    num_speculative_tokens: int = 3
    speculative: dict[str, Any] = setting({})
    min_acceptance: float = setting(1.05)
    draft: str = setting("", identity=False, doc="a kept version (or 'current'); '' = the draft that this run trained")

    def __post_init__(self) -> None:
        if self.num_speculative_tokens < 1:
            raise ValueError(f"num_speculative_tokens {self.num_speculative_tokens} must be at least 1.")


@dataclass
class Profiles:
    baseline: Profile = field(default_factory=Profile)
    extract: ExtractProfile = field(default_factory=ExtractProfile)
    eagle3: Eagle3Profile = field(default_factory=Eagle3Profile)


@dataclass
class Ray:
    """The hosts that hold the target together (serve/cluster.py); fewer than two nodes = this host alone.

    nodes: their addresses, the first one serves. own: this host's. port: of the cluster's first host. token: file
    (mode 0600) with the secret that all of them share. seats: processes that a host without GPUs offers as if they
    were some (for trials on CPUs); 0 = its GPUs.
    """

    nodes: list[str] = setting([])
    own: str = ""
    port: int = 6379
    token: str = ""
    seats: int = 0

    def __post_init__(self) -> None:
        if not self.used:
            return
        if self.own not in self.nodes:
            raise ValueError(f"own {self.own!r} is not among the nodes {', '.join(self.nodes)}.")
        if len(set(self.nodes)) < len(self.nodes):
            raise ValueError(f"nodes name an address twice: {', '.join(self.nodes)}.")
        if not self.token:
            raise ValueError("token names no file: whoever reaches a cluster without a token runs code in it.")

    @property
    def used(self) -> bool:
        return len(self.nodes) > 1

    @property
    def address(self) -> str:
        return f"{self.nodes[0]}:{self.port}"

    def numbered(self) -> Ray:
        """The same with numbers in place of names: Ray and vLLM know nodes by them.

        A host's own name may lead home only, so its own number is the one that it has on the way to another host.
        """
        if all(map(is_number, self.nodes)):
            return self
        other = next(node for node in self.nodes if node != self.own)
        own = self.own if is_number(self.own) else own_on_the_way_to(other) or number_of(self.own)
        nodes = [own if node == self.own else number_of(node) for node in self.nodes]
        return dataclasses.replace(self, nodes=nodes, own=own)


@dataclass
class ServerSettings:
    """How the target is served on this host.

    device: 'auto' looks for a GPU. command: replaces the engine's own command (its arguments follow).
    endpoints: base URLs of further servers of the same profile (responses and capture are spread over them).
    secrets: environment name -> file (mode 0600) read at start; never in argv, a unit or a document.
    user: account of the units on a systemd host ('' = the supervisor's own).
    start_timeout_s covers weight loading and JIT warm-up; release_timeout_s: until stopped processes gave back
    their GPU memory.
    """

    engine: Literal["vllm", "sglang"] = "vllm"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    host: str = "127.0.0.1"
    port: int = 8000
    start_timeout_s: int = 2700
    stop_timeout_s: int = 120
    release_timeout_s: int = 120
    command: list[str] = setting([])
    environment: dict[str, str] = setting({})
    secrets: dict[str, str] = setting({})
    args: dict[str, Any] = setting({})
    endpoints: list[str] = setting([])
    user: str = ""
    ray: Ray = field(default_factory=Ray)
    profiles: Profiles = field(default_factory=Profiles)

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65535:
            raise ValueError(f"port {self.port} is not in 1..65535.")
        for name in ("start_timeout_s", "stop_timeout_s", "release_timeout_s"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} must be at least 1 second.")
        if self.ray.used and self.engine != "vllm":
            raise ValueError("only vllm serves over several hosts (ray.nodes).")
        places = {"server": (self.args, self.environment)}
        for name in PROFILES:
            profile = getattr(self.profiles, name)
            places[f"server.profiles.{name}"] = (profile.args, profile.environment)
        for where, (args, environment) in places.items():
            _refuse_computed(where, args)
            _refuse_secrets(where, [*args, *environment])

    def profile(self, name: str) -> Profile:
        if name not in PROFILES:
            raise SpecError(
                f"there is no server profile {name!r}.{spec.nearest(name, PROFILES)}",
                code="unknown-profile",
                todo=f"Known: {', '.join(PROFILES)}.",
            )
        return getattr(self.profiles, name)  # type: ignore[no-any-return]


def _refuse_computed(where: str, args: dict[str, Any]) -> None:
    for key in args:
        name = key.replace("-", "_")
        if name in COMPUTED:
            raise ValueError(f"{where}.args.{key} is set by Eyrie; it cannot be an argument of its own.")
        if not re.fullmatch(r"[a-z][a-z0-9_.]*", name):
            raise ValueError(f"{where}.args.{key} is not the name of an argument (write tensor_parallel_size: 8).")


def _refuse_secrets(where: str, names: list[str]) -> None:
    for name in names:
        if spec.SECRET_NAME.search(name):
            raise ValueError(
                f"{where} sets {name}: a secret must not stand in arguments or the environment. "
                "Name a file of mode 0600 under server.secrets."
            )


def load(pipeline: Pipeline) -> ServerSettings:
    """The typed `spec.server` of a run; hosts of a cluster are known by number."""
    found = spec.load(ServerSettings, pipeline.server, "server")
    return dataclasses.replace(found, ray=found.ray.numbered()) if found.ray.used else found


def api_host(host: str) -> str:
    """Where a client on this machine reaches a server bound to `host`."""
    if host in ("0.0.0.0", "", "*"):  # noqa: S104 - compared, not bound
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host

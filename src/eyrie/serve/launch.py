"""The launch document: everything a server process is started with, as one JSON file.

<root>/server/<profile>.json is written here and read by `eyrie server exec <profile>`, which is all that a unit
runs. So neither JSON arguments nor '%' ever meet a supervisor's own syntax.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import SpecError
from eyrie.core.fingerprint import fingerprint
from eyrie.core.pipeline import Pipeline
from eyrie.serve import engines, flags
from eyrie.serve import settings as server_settings
from eyrie.serve.engines.base import Request
from eyrie.serve.settings import RAY_TOKEN, ServerSettings, api_host
from eyrie.supervise.interpreter import python_path

SCHEMA = 1
OVERRIDES = {"draft", "num_speculative_tokens", "args", "min_acceptance"}


def folder(root: Path) -> Path:
    return root / "server"


def path(root: Path, profile: str) -> Path:
    return folder(root) / f"{profile}.json"


def log_path(root: Path, profile: str) -> Path:
    return folder(root) / "log" / f"{profile}.log"


def storage(root: Path) -> Path:
    """Where the extract server leaves states; the client moves them away."""
    return folder(root) / "extract"


def document(pipeline: Pipeline, profile: str, overrides: dict[str, Any] | None = None) -> dict[str, Any]:
    """The launch document of a profile (pure: reads settings and what this host is, writes nothing).

    overrides: {"draft": Path | None, "num_speculative_tokens": int, "args": {...}, "min_acceptance": float} for
    benchmark variants; they win over the settings, and a variant's draft need not reach min_acceptance.
    """
    settings = server_settings.load(pipeline)
    own = settings.profile(profile)
    variant = dict(overrides or {})
    unknown = sorted(set(variant) - OVERRIDES)
    if unknown:
        raise SpecError(f"unknown override {unknown[0]!r}.", where="server", todo=f"Known: {sorted(OVERRIDES)}.")
    engine = engines.get(settings.engine)
    device = device_of(settings)
    draft = _draft(pipeline, profile, variant)
    tokens = int(variant.get("num_speculative_tokens") or settings.profiles.eagle3.num_speculative_tokens)
    model = pipeline.context("target").out
    request = Request(profile, settings, pipeline.target, model, storage(pipeline.root), draft, tokens, device)
    args = {**engine.arguments(request), **settings.args, **own.args, **(variant.get("args") or {})}
    method = engine.method(profile, args)
    if profile == "eagle3" and not method:
        raise SpecError("the eagle3 profile needs a draft.", where="server.profiles.eagle3", code="no-draft")
    command = settings.command or engine.command()
    floor = 0.0 if variant else settings.profiles.eagle3.min_acceptance
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "profile": profile,
        "engine": settings.engine,
        "device": device,
        "args": args,
        "argv": [*command, *engine.positional(request), *flags.words(engine.flag_words(args))],
        "environment": environment(pipeline, settings, device) | own.environment,
        "secrets": settings.secrets | ({RAY_TOKEN: settings.ray.token} if settings.ray.used else {}),
        "directory": str(folder(pipeline.root)),
        "base_url": f"http://{api_host(settings.host)}:{settings.port}",
        "port": settings.port,
        "served_model_name": pipeline.target.name,
        "model": str(model),
        "method": method,
        "draft": str(draft) if draft and method == "eagle3" else "",
        "num_speculative_tokens": tokens if method == "eagle3" else 0,
        "hidden_size": pipeline.target.hidden_size,
        "aux_layers": pipeline.target.aux_layers,
        "captured_layers": pipeline.target.captured_layers,
        "storage": str(storage(pipeline.root)) if profile == "extract" else "",
        "min_acceptance": float(variant.get("min_acceptance", floor)) if method == "eagle3" else 0.0,
    }
    return {**body, "fingerprint": _digest(body)}


def _digest(body: dict[str, Any]) -> str:
    """What the process is: all but the floor of the probe, which decides whether it may stay, not what it is."""
    return fingerprint({key: value for key, value in body.items() if key not in ("fingerprint", "min_acceptance")})


def _draft(pipeline: Pipeline, profile: str, variant: dict[str, Any]) -> Path | None:
    if profile != "eagle3":
        return None
    if "draft" in variant:
        return Path(variant["draft"]) if variant["draft"] else None
    declared = server_settings.load(pipeline).profiles.eagle3.draft
    if declared:
        from eyrie.benchmark import drafts

        return drafts.find(pipeline.root, declared)
    return pipeline.context("draft").out / "checkpoint"


def device_of(settings: ServerSettings) -> str:
    """'cpu' or 'cuda'."""
    if settings.device != "auto":
        return settings.device
    return "cuda" if Path("/dev/nvidia0").exists() or Path("/proc/driver/nvidia/version").exists() else "cpu"


def environment(pipeline: Pipeline, settings: ServerSettings, device: str) -> dict[str, str]:
    """Caches on the big disk, no hub at serving time, and on a CPU the faster OpenMP runtime."""
    cache = pipeline.root / "cache"
    found = {
        "HOME": str(cache / "home"),
        "HF_HOME": str(cache / "hf"),
        "XDG_CACHE_HOME": str(cache),
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "TMPDIR": str(cache / "tmp"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_MININTERVAL": "5",
        "PYTHONUNBUFFERED": "1",
        "PATH": os.pathsep.join([str(Path(sys.prefix).resolve() / "bin"), "/usr/local/bin", "/usr/bin", "/bin"]),
    }
    if device == "cpu":
        if not settings.ray.seats:  # with an explicit target vLLM looks for no other platform, the seated one
            found["VLLM_TARGET_DEVICE"] = "cpu"
        openmp = Path(sys.prefix).resolve() / "lib" / "libiomp5.so"
        if openmp.exists():
            found["LD_PRELOAD"] = str(openmp)
    else:
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if settings.ray.used:
        from eyrie.serve import cluster

        found |= cluster.environment(settings.ray)
    return found | python_path() | settings.environment


def write(root: Path, value: dict[str, Any]) -> None:
    atomic.write_json(path(root, value["profile"]), value)


def read(root: Path, profile: str) -> dict[str, Any]:
    """The document on disk, {} when there is none or it was torn or edited (its fingerprint tells)."""
    value = atomic.read_json(path(root, profile), {})
    if not isinstance(value, dict) or value.get("profile") != profile:
        return {}
    return value if value.get("fingerprint") == _digest(value) else {}

"""How a host serves the target, as far as it changes the numbers: compared by ports, part of no fingerprint."""

from __future__ import annotations

from typing import Any

from eyrie.core.pipeline import Pipeline

#: engine arguments that change rounding or the model itself; all others move bytes and time only
NUMERIC = (
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "attention_backend",
    "enforce_eager",
    "all2all_backend",
)
PROFILES = {"responses": "baseline", "hidden_states": "extract"}


def of(pipeline: Pipeline, stage: str) -> dict[str, Any]:
    """{engine, device, args} of the profile that feeds a stage; {} for a stage without a server."""
    if stage not in PROFILES:
        return {}
    server = pipeline.server
    profile = (server.get("profiles") or {}).get(PROFILES[stage]) or {}
    args = {**(server.get("args") or {}), **(profile.get("args") or {})}
    plain = {str(key).replace("-", "_"): value for key, value in args.items() if value is not None}
    return {
        "engine": server.get("engine", "vllm"),
        "device": server.get("device", "auto"),
        "args": {key: plain[key] for key in NUMERIC if key in plain},
    }

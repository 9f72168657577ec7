# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Forecasts from settings alone, before anything is installed or measured.

Standard library only and Python 3.9 or later: the same file serves the modules, on a host where the node
package is not there yet, and the node package (src/eyrie/core/estimate.py is a link to it), which refines
it with real token lengths and measured rates.

Every function returns bytes, seconds and the basis in words. Rates come from the hardware profile
(`eyrie_planning`); units: tokens per second, bytes, seconds.
"""

from __future__ import annotations

from typing import Any

DTYPE_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "fp8": 1.0}
SAFETENSORS_OVERHEAD = 200  # header of one states file, bytes
FP8_SCALE_BYTES = 4  # one fp32 scale per token and captured layer

PLANNING_DEFAULTS = {
    "prompt_tokens": 60.0,
    "answer_tokens": 160.0,
    "decode_tok_s": 450.0,
    "prefill_tok_s": 1350.0,
    "train_tok_s": 1400.0,
    "rows_s": 2000.0,
    "server_start_s": 25.0,
    "install_bytes": 4.0e9,
    "install_s": 110.0,
    "model_bytes": 3.0e8,
    "model_s": 20.0,
    "draft_bytes": 2.5e8,
    "benchmark_s": 240.0,
    "disk_bytes_s": 1.0e9,
    "price_hour": 0.0,
}


def token_bytes(hidden_size: int, layers: int, dtype: str = "bf16") -> float:
    """Bytes of one token's captured states: `layers` (auxiliary + last) x hidden_size."""
    size = layers * hidden_size * DTYPE_BYTES[dtype]
    return size + layers * FP8_SCALE_BYTES if dtype == "fp8" else size


def states_bytes(tokens: float, samples: int, hidden_size: int, layers: int, dtype: str = "bf16") -> int:
    """Bytes of a corpus of captured states, token ids (int64) and file headers included."""
    return int(tokens * (token_bytes(hidden_size, layers, dtype) + 8) + samples * SAFETENSORS_OVERHEAD)


def estimate(
    stage: str, spec: dict[str, Any], samples: int | None = None, tokens: float | None = None
) -> dict[str, Any]:
    """Forecast of one stage from the run's spec.

    stage: stage name. spec: the full spec (see docs/architecture.md).
    samples, tokens: known counts, which replace the planning figures.
    Returns {'bytes': int, 'seconds': float, 'basis': str}.
    """
    plan = dict(PLANNING_DEFAULTS)
    plan.update(spec.get("planning") or {})
    stages = spec.get("stages") or {}
    settings = stages.get(stage) or {}
    known = samples is not None
    if samples is None:
        samples = int((stages.get("dataset") or {}).get("samples") or 0)
    answer = float(plan["answer_tokens"])
    per_sample = float(plan["prompt_tokens"]) + answer
    if tokens is None:
        tokens = samples * per_sample
    basis = "counted" if known else "planning figures of the profile"
    target = spec.get("target") or {}
    layers = len(target.get("aux_layers") or [0, 0, 0]) + 1
    hidden = int(target.get("hidden_size") or 0)
    if stage == "runtime":
        return _forecast(plan["install_bytes"], plan["install_s"], basis)
    if stage == "target":
        return _forecast(plan["model_bytes"], plan["model_s"], basis)
    if stage == "dataset":
        return _forecast(samples * 600, 2 + samples / plan["rows_s"], basis)
    if stage == "responses":
        return _forecast(samples * answer * 12, plan["server_start_s"] + samples * answer / plan["decode_tok_s"], basis)
    if stage == "tokens":
        return _forecast(tokens * 9, 8 + samples / plan["rows_s"], basis)
    if stage == "hidden_states":
        size = states_bytes(tokens, samples, hidden, layers, _dtype(settings))
        seconds = max(tokens / plan["prefill_tok_s"], size / plan["disk_bytes_s"])
        if settings.get("storage") == "window":
            size = min(size, int(settings.get("window_bytes") or size))
        return _forecast(size, plan["server_start_s"] + seconds, basis)
    if stage == "draft":
        epochs = float(settings.get("epochs") or 1)
        size = states_bytes(tokens, samples, hidden, layers, _dtype(stages.get("hidden_states") or {}))
        seconds = max(tokens / plan["train_tok_s"], size / plan["disk_bytes_s"])  # every epoch reads all states
        return _forecast(plan["draft_bytes"] * 3, 15 + epochs * seconds, basis)
    if stage == "benchmark":
        return _forecast(1e6, plan["benchmark_s"], basis)
    return _forecast(1e6, 2, basis)


def _dtype(settings: dict[str, Any]) -> str:
    """The dtype that states are kept in, from the hidden_states stage's settings."""
    storage = str(settings.get("storage") or "bf16")
    return str(settings.get("window_dtype") or "bf16") if storage == "window" else storage


def _forecast(size: float, seconds: float, basis: str) -> dict[str, Any]:
    return {"bytes": int(size), "seconds": round(float(seconds), 1), "basis": basis}

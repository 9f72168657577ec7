"""Bytes, inodes and time of a capture before its first byte, and how far off that was."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

from eyrie.core import atomic, estimate
from eyrie.core.pipeline import Context
from eyrie.hidden_states import files
from eyrie.hidden_states.capture import Result
from eyrie.hidden_states.disk import space
from eyrie.hidden_states.settings import HiddenStatesSettings
from eyrie.hidden_states.store import totals_read_only

RATES = "rates.json"


def lengths(ctx: Context) -> Counter[int] | None:
    """How many prepared rows there are of each token count, or None before the tokens stage has run."""
    path = ctx.input("tokens").out / "samples.parquet"
    try:
        return _counted(str(path), path.stat().st_mtime_ns)
    except FileNotFoundError:
        return None


@lru_cache(maxsize=4)  # a plan asks twice, for its forecast and for its gates
def _counted(path: str, modified: int) -> Counter[int]:
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(path) as stream:  # read_table would import pandas, which a plan has no time for
        column = stream.read(columns=["length"]).column("length").value_counts()
    return Counter({int(item["values"]): int(item["counts"]) for item in column.to_pylist()})


def of(ctx: Context) -> dict[str, Any]:
    """The plan's forecast: exact bytes once the data is prepared, planning figures before."""
    known = lengths(ctx)
    if known is None:
        return estimate.estimate("hidden_states", ctx.pipeline.raw)
    settings: HiddenStatesSettings = ctx.settings
    rows, counted = known.total(), sum(length * count for length, count in known.items())
    size = corpus_bytes(known, len(ctx.target.captured_layers), ctx.target.hidden_size, settings.dtype)
    rate, basis = rate_of(ctx)
    samples, stored = totals_read_only(ctx.base / "store")
    left = max(0, size - stored)
    tokens = counted * (left / size if size else 0)
    bytes_needed = min(left, settings.window_bytes) if settings.storage == "window" else left
    return {
        "bytes": bytes_needed,
        "seconds": round(start_seconds(ctx) + tokens / rate, 1) if left else 2.0,
        "basis": f"{rows} rows, {counted} tokens counted; {basis}",
        "samples": rows,
        "tokens": counted,
        "corpus_bytes": size,
        "stored_samples": samples,
        "stored_bytes": stored,
    }


def corpus_bytes(lengths_: Counter[int], layers: int, hidden: int, dtype: str) -> int:
    """Exact bytes of all files of a corpus of so many rows of each token count."""
    return sum(count * files.file_bytes(length, layers, hidden, dtype) for length, count in lengths_.items())


def rate_of(ctx: Context) -> tuple[float, str]:
    """(tokens per second, where that is from): this host's last measured capture, else the profile's figure."""
    measured = atomic.read_json(ctx.base / RATES, {}) or {}
    if measured.get("tok_s"):
        return float(measured["tok_s"]), "rate measured on this host"
    plan = {**estimate.PLANNING_DEFAULTS, **(ctx.pipeline.raw.get("planning") or {})}
    each = estimate.token_bytes(ctx.target.hidden_size, len(ctx.target.captured_layers), ctx.settings.dtype)
    rate = min(float(plan["prefill_tok_s"]), float(plan["disk_bytes_s"]) / each)
    return rate, "rate from the profile's planning figures"


def start_seconds(ctx: Context) -> float:
    plan = {**estimate.PLANNING_DEFAULTS, **(ctx.pipeline.raw.get("planning") or {})}
    return float(plan["server_start_s"])


def gates(ctx: Context) -> list[dict[str, Any]]:
    """Room on the disk for what is left to capture, with the reserve that capture never touches."""
    settings: HiddenStatesSettings = ctx.settings
    need = of(ctx)
    left = int(need["bytes"])
    room = space(ctx.base)
    floor = max(settings.reserve_bytes, (1 - settings.high_water) * room["total"])
    usable = max(0, room["free"] - floor)
    free = room["free"]
    told = f"{left / 1e9:.2f} GB of states to write; {usable / 1e9:.2f} GB of the {free / 1e9:.2f} GB free may be used"
    if left > usable:
        told += "." + _ways_out(ctx, settings, need, usable)
    gate = [{"name": "disk", "ok": left <= usable, "message": told}]
    samples = int(need.get("samples") or 0) * 2  # a file and a link each
    if room["inodes"] and samples > room["free_inodes"]:
        gate.append({"name": "inodes", "ok": False, "message": f"{samples} files, {room['free_inodes']} inodes free"})
    return gate


def _ways_out(ctx: Context, settings: HiddenStatesSettings, need: dict[str, Any], usable: float) -> str:
    size = float(need.get("corpus_bytes") or need["bytes"])
    if settings.storage == "bf16" and size / 2 <= usable:
        return f" Do: set storage to fp8 ({size / 2e9:.2f} GB), which the stage then checks for fidelity."
    if settings.storage != "window":
        return f" Do: set storage to window with window_bytes of at most {int(usable)}, or a larger disk."
    return f" Do: lower window_bytes to {int(usable)} or less."


def of_rows(ctx: Context, todo: Any, proof: dict[str, Any]) -> dict[str, Any]:
    """The forecast of one capture from the probe's measured rate: bytes, seconds, tokens."""
    size = corpus_bytes(
        Counter(row.tokens for row in todo.missing), len(todo.shape.layers), todo.shape.hidden_size, todo.shape.dtype
    )
    tokens = sum(row.tokens for row in todo.missing)
    rate = max(float(proof["tok_s"]), 1e-9)
    return {"bytes": size, "tokens": tokens, "seconds": round(tokens / rate, 1), "tok_s": rate, "basis": "probe"}


def outcome(made: dict[str, Any] | None, result: Result) -> dict[str, Any]:
    """Measured figures and the forecast's error (signed share: +0.1 = took 10% more than forecast)."""
    rate = result.tokens / result.seconds if result.seconds else 0.0
    figures: dict[str, Any] = {
        "captured": result.captured,
        "captured_tokens": result.tokens,
        "captured_bytes": result.bytes,
        "tok_s": round(rate, 1),
    }
    if made and result.captured:
        figures["forecast_error"] = {
            "bytes": round(result.bytes / made["bytes"] - 1, 4) if made["bytes"] else 0.0,
            "seconds": round(result.seconds / made["seconds"] - 1, 4) if made["seconds"] else 0.0,
        }
    return figures


def remember_rate(base: Path, result: Result) -> None:
    """Keep the measured rate for the next forecast, once it stands for something."""
    if result.seconds > 5 and result.tokens > 2000:
        atomic.write_json(base / RATES, {"tok_s": round(result.tokens / result.seconds, 1), "tokens": result.tokens})

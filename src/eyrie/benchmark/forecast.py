"""Seconds and bytes of a benchmark before anything is measured. Pure."""

from __future__ import annotations

from typing import Any

from eyrie.benchmark import cells
from eyrie.benchmark.settings import Settings
from eyrie.core.estimate import PLANNING_DEFAULTS

#: the planning rate is that of full concurrency; a single stream gets about this share of it (measured: 1/6 to 1/5)
SINGLE_STREAM_SHARE = 0.17
FULL_CONCURRENCY = 32
BYTES_PER_REQUEST = 120


def rate(full: float, concurrency: int) -> float:
    """Tokens a second at a concurrency: from the single stream's share, growing evenly up to full concurrency."""
    share = SINGLE_STREAM_SHARE + (1 - SINGLE_STREAM_SHARE) * min(1.0, (concurrency - 1) / (FULL_CONCURRENCY - 1))
    return full * share


def forecast(settings: Settings, k: int, planning: dict[str, Any]) -> dict[str, Any]:
    """{'bytes', 'seconds', 'basis'} from the planned cells, server starts included."""
    plan = {**PLANNING_DEFAULTS, **planning}
    full, start = float(plan["decode_tok_s"]), float(plan["server_start_s"])
    planned = cells.sessions(settings, k)
    seconds, requests = 0.0, 0
    for session in planned:
        seconds += start
        for cell in session.cells:
            seconds += settings.repeats * cell.prompts * cell.output_tokens / rate(full, cell.concurrency)
            requests += settings.repeats * cell.prompts
    if settings.lossless_prompts:
        seconds += 2 * (start + settings.lossless_prompts * settings.lossless_tokens / rate(full, 1))
    return {
        "bytes": requests * BYTES_PER_REQUEST,
        "seconds": round(seconds, 1),
        "basis": f"{len(planned)} server starts, {requests} requests at the profile's planning rates",
    }

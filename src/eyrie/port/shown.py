"""A port's plan as lines for people."""

from __future__ import annotations

from typing import Any


def human_bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def human_minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def lines(plan: dict[str, Any]) -> list[str]:
    """The table: stage, action, bytes, minutes, reason; differences below; then gates and totals."""
    link = plan["link"]
    head = (
        f"port {plan['from']['host']} -> {plan['to']['host']}, {link['mb_s']:.3g} MB/s {link['basis']}, {link['via']}"
    )
    out = [head + (f" ({link['why']})" if link["why"] else "")]
    for item in plan["decisions"]:
        action = item["action"] + (" (unfinished)" if item["unfinished"] and item["action"] == "copy" else "")
        size = human_bytes(item["bytes"]) if item["bytes"] else "-"
        minutes = human_minutes(item["seconds"]) if item["seconds"] else "-"
        out.append(f"{item['stage']:<14}{action:<20}{size:>10}{minutes:>11}  {item['reason']}")
        for found in item["differences"]:
            change = f"{found['name']} {found['source']!r} -> {found['destination']!r}"
            out.append(f"{'':14}{found['verdict']}: {change}: {found['why']}")
    totals = plan["totals"]
    out.append(
        f"{human_bytes(totals['bytes'])} travel in {human_minutes(totals['copy_seconds'])}; "
        f"made again on the destination: {human_minutes(totals['recompute_seconds'])}"
    )
    out += [f"REFUSED [{gate['name']}] {gate['message']}" for gate in plan["gates"] if not gate["ok"]]
    return out

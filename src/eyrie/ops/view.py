"""The one screen of `eyrie status`, drawn with rich."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from eyrie.ops.shown import redact, size, span

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

MARKS = {
    "done": ("green", "done"),
    "running": ("cyan", "running"),
    "failed": ("bold red", "failed"),
    "interrupted": ("yellow", "interrupted"),
    "absent": ("dim", "-"),
}


def screen(status: dict[str, Any]) -> RenderableType:
    """Everything that an operator looks at each day, top to bottom."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_title(status), stages_table(status["stages"])]
    parts += [Text.assemble((f"{name:<8}", "bold"), line) for name, line in host_lines(status)]
    for stage in status["stages"]:
        if stage["status"] in ("failed", "interrupted") and stage.get("error"):
            parts.append(_trouble(stage, status.get("findings") or []))
    return Group(*parts)


def _title(status: dict[str, Any]) -> Text:
    from rich.text import Text

    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status.get("host", {}).get("time")))
    return Text.assemble(("eyrie ", "bold"), (status["run"], "bold cyan"), f"  {status['root']}  {clock}")


def stages_table(stages: list[dict[str, Any]]) -> RenderableType:
    """One row per stage."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    for title, justify in (("stage", "left"), ("state", "left"), ("done / total", "right"), ("rate", "right")):
        table.add_column(title, justify=justify, no_wrap=True)
    for title in ("left", "bytes", "time"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("note", justify="left", overflow="ellipsis", no_wrap=True)
    for stage in stages:
        style, word = MARKS.get(stage["status"], ("", stage["status"]))
        table.add_row(stage["stage"], Text(word, style=style), *cells(stage), Text(note(stage), style="dim"))
    return table


def cells(stage: dict[str, Any]) -> tuple[str, str, str, str, str]:
    """done/total, rate, time left, bytes, seconds of one stage, as shown."""
    progress = stage.get("progress") or {}
    if progress:
        total = f" / {progress['total']:,}" if progress.get("total") else ""
        counted = f"{progress.get('done', 0):,}{total}"
        rate = f"{progress['rate']:.3g}/s" if progress.get("rate") else "-"
        used = progress.get("bytes") or stage.get("bytes")
        return counted, rate, span(progress.get("eta_s")), size(used or None), span(stage.get("seconds"))
    account = stage.get("account") or {}
    counted = f"{account['kept']:,} / {account['in']:,}" if account else "-"
    return counted, "-", "-", size(stage.get("bytes")), span(stage.get("seconds"))


def note(stage: dict[str, Any]) -> str:
    """Phase and figures while it runs; what was left out once it is done; the error when it failed."""
    if stage.get("silent_s"):
        return f"no sign of life for {span(stage['silent_s'])}"
    if stage["status"] == "running":
        progress = stage.get("progress") or {}
        detail = [f"{key} {_brief(value)}" for key, value in sorted((progress.get("detail") or {}).items())]
        return ", ".join([str(progress.get("phase", "starting")), *detail])
    if stage["status"] in ("failed", "interrupted"):
        error = stage.get("error") or {}
        return redact(str(error.get("what") or "it was killed; run again, it resumes"))
    account = stage.get("account") or {}
    lost = {**account.get("dropped", {}), **{f"failed: {key}": n for key, n in account.get("failed", {}).items()}}
    worst = sorted(lost.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{count:,} {reason}" for reason, count in worst)


def _brief(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else redact(str(value))
    return text if len(text) <= 32 else text[:29] + "..."


def host_lines(status: dict[str, Any]) -> list[tuple[str, str]]:
    """(name, text) of disk, memory, each GPU and each server."""
    facts = status.get("host") or {}
    lines = []
    disk, memory = facts.get("disk"), facts.get("memory")
    if disk:
        text = f"{size(disk['free'])} free of {size(disk['total'])} ({disk['used_share']:.0%} used) at {disk['path']}"
        lines.append(("disk", text + ("  READ-ONLY" if disk.get("read_only") else "")))
    if memory:
        load = facts.get("load") or [0.0]
        lines.append(("memory", f"{size(memory['available'])} free of {size(memory['total'])}, load {load[0]:.1f}"))
    lines += [("gpu", gpu_line(gpu)) for gpu in facts.get("gpus") or []]
    lines += [("server", server_line(server)) for server in status.get("servers") or []]
    return lines


def gpu_line(gpu: dict[str, Any]) -> str:
    busy = "-" if gpu.get("busy") is None else f"{gpu['busy']:.0f}%"
    degrees = "" if gpu.get("celsius") is None else f", {gpu['celsius']:.0f} C"
    return f"{gpu['index']} {gpu['name']}: {busy} busy, {size(gpu.get('used'))} of {size(gpu.get('total'))}{degrees}"


def server_line(server: dict[str, Any]) -> str:
    text = f"{server.get('profile') or '?'}: {server.get('state', 'unknown')}"
    for key in ("base_url", "model", "method", "pid"):
        if server.get(key):
            text += f", {key} {server[key]}" if key == "pid" else f", {server[key]}"
    return text + (f", up {span(server['up_s'])}" if server.get("up_s") is not None else "")


def _trouble(stage: dict[str, Any], findings: list[dict[str, Any]]) -> Text:
    from rich.text import Text

    error = stage["error"]
    text = Text.assemble(("\n" + stage["stage"], "bold red"), f": {redact(str(error.get('what', '')))}")
    for key, word in (("why", "why"), ("todo", "do")):
        if error.get(key):
            text.append(f"\n  {word}: {redact(str(error[key]))}")
    for finding in findings:
        if finding["stage"] == stage["stage"]:
            text.append(f"\n  doctor: {finding['cause']}\n  cure: {finding['cure']}", style="yellow")
    text.append(f"\n  log: {stage['log']}", style="dim")
    return text

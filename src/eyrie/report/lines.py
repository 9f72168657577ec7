"""The run on one screen, as plain text. Pure."""

from __future__ import annotations

from typing import Any


def summary(report: dict[str, Any]) -> list[str]:
    """Stages, acceptance, throughput, verdict: what the play prints at its end."""
    lines = [f"{report['target']['name']} on {report['host'] or 'this host'}, run {report['run']}", ""]
    lines += stages(report["stages"])
    lines += ["", *acceptance(report)]
    lines += ["", *throughput(report)]
    lines += ["", f"verdict    {report['verdict']}", f"promotion  {report['promotion']['reason']}"]
    return lines


def stages(entries: list[dict[str, Any]]) -> list[str]:
    rows = [["stage", ">in", ">kept", ">dropped", ">failed", ">size", ">time"]]
    for entry in entries:
        lost = [sum(entry[key].values()) for key in ("dropped", "failed")]
        counts = [f"{count:,}" for count in (entry["in"], entry["kept"], *lost)]
        rows.append([entry["name"], *counts, size(entry["bytes"]), seconds(entry["seconds"])])
    total = sum(entry["seconds"] for entry in entries)
    rows.append(["total", "", "", "", "", size(sum(entry["bytes"] for entry in entries)), seconds(total)])
    return table(rows)


def acceptance(report: dict[str, Any]) -> list[str]:
    value = report["acceptance"]
    head = f"acceptance length = {value['formula']}, k = {value['num_speculative_tokens']}"
    rows = [["prompts", ">trained", ">untrained", ">predicted", ">per position"]]
    for name, found in report["sets"].items():
        trained, untrained = found["acceptance"] or {}, found["untrained"] or {}
        is_head = name == value["set"]
        positions = " ".join(f"{share:.2f}" for share in trained.get("per_position", []))
        rows.append(
            [
                name,
                figure(trained.get("length")),
                figure(untrained.get("length")),
                figure(value["predicted"]) if is_head else "",
                positions,
            ]
        )
    lines = [head, *table(rows)]
    if value.get("ngram_tokens_per_step"):
        lines.append(f"n-gram control: {figure(value['ngram_tokens_per_step'])} tokens per step over all steps")
    return lines


def throughput(report: dict[str, Any]) -> list[str]:
    rows = [["prompts", ">concurrency", ">baseline tok/s", ">EAGLE3 tok/s", ">ratio", ">95%", ">breaks even at"]]
    for name, found in report["sets"].items():
        for line in found["throughput"]:
            interval = line["ratio_ci"]
            rows.append(
                [
                    name,
                    str(line["concurrency"]),
                    f"{line['baseline_tok_s']:,.1f}",
                    f"{line['eagle3_tok_s']:,.1f}",
                    f"{line['ratio']:.2f}x",
                    f"{interval[0]:.2f}-{interval[1]:.2f}" if interval else "-",
                    figure(line["break_even_acceptance"]),
                ]
            )
    return table(rows)


def table(rows: list[list[str]]) -> list[str]:
    """Columns aligned; a heading that begins with > aligns its column to the right."""
    right = [cell.startswith(">") for cell in rows[0]]
    rows = [[cell.lstrip(">") for cell in rows[0]], *rows[1:]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(right))]
    return [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]


def figure(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def size(count: float) -> str:
    """Bytes in decimal units: '61.2 MB'."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} TB"


def seconds(value: float) -> str:
    """'4.2 s', '83 s', '12 min', '3 h 05 min'."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 100:
        return f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"

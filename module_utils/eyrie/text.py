# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Plans, progress and figures in words. Standard library only, Python 3.9 or later."""

from __future__ import annotations

import json


def human_bytes(size):
    """1234567 -> '1.2 MB' (decimal units, as disks are sold)."""
    size = float(size)
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if size < 1000 or unit == "PB":
            return ("%d %s" if unit == "B" else "%.1f %s") % (size, unit)
        size /= 1000


def human_seconds(seconds):
    """95 -> '95 s', 3900 -> '1 h 05 min'."""
    seconds = round(seconds)
    if seconds < 100:
        return "%d s" % seconds
    minutes = (seconds + 30) // 60
    if minutes < 60:
        return "%d min" % minutes
    hours = minutes // 60
    if hours < 72:
        return "%d h %02d min" % (hours, minutes % 60)
    return "%.1f days" % (minutes / 1440.0)


def brief(value, limit=48):
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def reasons(plan, count=4):
    """Why a stage would run, in one line."""
    shown = [
        "%s: %s -> %s" % (d["name"], brief(d["current"]), brief(d["desired"])) for d in plan["differences"][:count]
    ]
    more = len(plan["differences"]) - len(shown)
    return "; ".join(shown) + ("; and %d more" % more if more > 0 else "")


def progress_text(stage, progress):
    """'hidden_states: capture 12,340/83,288 samples, 1.9 TB, 14.2/s, 3 h 12 min left'."""
    if not progress:
        return "%s: starting" % stage
    text = "%s: %s" % (stage, progress["phase"])
    if progress["total"]:
        text += " {:,}/{:,} {}".format(progress["done"], progress["total"], progress["unit"])
    if progress["bytes"]:
        text += ", " + human_bytes(progress["bytes"])
    if progress["rate"]:
        text += ", %.3g/s" % progress["rate"]
    if progress["eta_s"] is not None and progress["total"]:
        text += ", %s left" % human_seconds(progress["eta_s"])
    for key in sorted(progress.get("detail") or {}):
        if progress["detail"][key] not in (None, "", [], {}):
            text += ", %s %s" % (key, brief(progress["detail"][key], 60))
    return text


def table(header, rows):
    """Aligned lines; cells that are numbers with units are given as text and aligned right when `header` says '>'."""
    right = [name.startswith(">") for name in header]
    header = [name.lstrip(">") for name in header]
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]

    def line(row):
        cells = [
            str(cell).rjust(width) if flag else str(cell).ljust(width) for cell, width, flag in zip(row, widths, right)
        ]
        return "  ".join(cells).rstrip()

    return [line(header), "  ".join("-" * width for width in widths)] + [line(row) for row in rows]


def plan_lines(plans, install=None, price=0.0):
    """The plan of a run as a table: stage, what would happen and why, forecast bytes and time.

    install: {current, desired, forecast} when the node's environment or package would be installed first.
    price: of one hour of the host, where the profile names one (eyrie_planning_price_hour).
    """
    rows, total_bytes, total_seconds = [], 0, 0
    if install:
        cost = install["forecast"]
        said = "would install the node package: %s -> %s" % (install["current"], install["desired"])
        rows.append(["runtime", said, human_bytes(cost["bytes"]), human_seconds(cost["seconds"])])
        total_bytes, total_seconds = cost["bytes"], cost["seconds"]
    for plan in plans:
        rows.append([plan["stage"], verdict(plan), _bytes(plan), _seconds(plan)])
        total_bytes += plan["forecast"]["bytes"]
        total_seconds += plan["forecast"]["seconds"]
    if install or not all(plan["up_to_date"] for plan in plans):
        paid = "" if not price else "costs %.2f at %.2f an hour" % (total_seconds / 3600 * price, price)
        rows.append(["total", paid, human_bytes(total_bytes), human_seconds(total_seconds)])
    return table(["stage", "plan", ">bytes", ">time"], rows)


def verdict(plan):
    """One cell: up to date, running, refused, or would run and why."""
    if plan["up_to_date"]:
        return "up to date"
    refused = [gate["message"] for gate in plan["gates"] if not gate["ok"]]
    if refused:
        return "refused: " + brief(" ".join(refused), 90)
    running = plan.get("running")
    if running:
        same = running.get("fingerprint") in (None, plan["fingerprint"])
        return (
            "running (pid %s)" % running.get("pid")
            if same
            else "other settings are running (pid %s)" % running.get("pid")
        )
    if [item["name"] for item in plan["differences"]] == ["node package"]:
        return "would run: nothing is known of it yet"  # the line above says why
    verb = "would resume" if plan["status"] in ("interrupted", "failed") else "would run"
    return "%s: %s" % (verb, brief(reasons(plan, 2), 90))


def _bytes(plan):
    return "-" if plan["up_to_date"] else human_bytes(plan["forecast"]["bytes"])


def _seconds(plan):
    return "-" if plan["up_to_date"] else human_seconds(plan["forecast"]["seconds"])


def status_lines(stages):
    """Where each stage stands, as a table."""
    rows = []
    for item in stages:
        error = item.get("error") or {}
        shown = progress_text(item["stage"], item["progress"]).partition(": ")[2] if item.get("progress") else ""
        rows.append(
            [
                item["stage"],
                item["status"],
                human_seconds(item["seconds"]) if item.get("seconds") is not None else "-",
                human_bytes(item["bytes"]) if item.get("bytes") else "-",
                brief(shown or error.get("what") or "", 90),
            ]
        )
    return table(["stage", "status", ">time", ">bytes", "progress or last error"], rows)


def verify_lines(answer):
    lines = []
    for stage in sorted(answer["faults"]):
        for fault in answer["faults"][stage]:
            lines.append("%s: %s: %s %s" % (stage, fault.get("where"), fault.get("what"), fault.get("todo") or ""))
    return lines or ["Every output is whole."]


def summary_lines(report):
    """The run on one screen, as the report stage wrote it."""
    return list(report.get("summary_lines") or ["The report has no summary."])

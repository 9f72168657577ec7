"""report.html: one file that needs no network."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from eyrie.benchmark.measure import FLAGS
from eyrie.core.fingerprint import flatten, short
from eyrie.report import lines, masked, plots_bench, plots_run
from eyrie.report.figure import Plot, render

HERE = Path(__file__).parent
LONGEST = 160
SECTIONS = (
    ("pipeline", "Pipeline"),
    ("speed", "Worth serving?"),
    ("samples", "Samples"),
    ("training", "Training"),
    ("forecast", "Time and disk"),
    ("changes", "Changes"),
    ("environment", "Environment"),
    ("provenance", "Provenance"),
)


def build(report: dict[str, Any], samples: list[dict[str, Any]], curve_points: int) -> str:
    """The page of a report value (report.json's, with vocabulary_curve)."""
    plots = {
        "speed": [plots_bench.speed(report), plots_bench.break_even(report)],
        "samples": [plots_run.waterfall(report), plots_run.supervised(report), plots_run.vocabulary(report)],
        "training": [plots_run.training(report, curve_points)],
        "forecast": [plots_run.forecast(report)],
    }
    plots["speed"] += [plots_bench.positions(report), plots_bench.sweep(report)]
    drawn = {name: [drawing(plot) for plot in found if plot] for name, found in plots.items()}
    sections = [item for item in SECTIONS if item[0] not in ("training", "forecast") or drawn[item[0]]]
    return fill(
        "page.html.jinja",
        report=report,
        title=f"{report['target']['name']} draft {report['draft']['version']}",
        subtitle=subtitle(report),
        sections=sections,
        win=report["decision"]["serve"] == "eagle3",
        headline=headline(report),
        tiles=tiles(report),
        stages=[flow(entry) for entry in report["stages"]],
        plots=drawn,
        cells=cells(report),
        flags=[(name, FLAGS[name]) for name in sorted({flag for cell in report["cells"] for flag in cell["flags"]})],
        method=method(report),
        masked=samples,
        audit=audit(report["audit"]),
        changes=changes(report["changes"]),
        environment=environment(report),
        chain=[
            (item["stage"].replace("_", " "), short(item["fingerprint"]), ", ".join(item["inputs"]) or "-")
            for item in report["provenance"]
        ],
        identities=[
            {"stage": item["stage"].replace("_", " "), "rows": settings(item["identity"])}
            for item in report["provenance"]
        ],
    )


def fill(template: str, **values: Any) -> str:
    """A template of this folder, everything escaped that is not marked safe."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    css = (HERE / "page.css").read_text("utf-8")
    return environment.get_template(template).render(css=css, **values).lstrip()


def drawing(plot: Plot) -> dict[str, Any]:
    return {
        "name": plot.name,
        "title": plot.title,
        "caption": plot.caption,
        "rows": plot.rows,
        **render(plot),
    }


def subtitle(report: dict[str, Any]) -> str:
    finished = max((entry["finished"] or 0 for entry in report["stages"]), default=0)
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(finished)) if finished else "unknown time"
    return f"Run {report['run']} on {report['host'] or 'this host'}, finished {when}"


def headline(report: dict[str, Any]) -> str:
    decision = report["decision"]
    if decision["serve"] != "eagle3":
        return "Serve the baseline"
    return f"Serve EAGLE3, k={decision['num_speculative_tokens']}, up to {decision['max_concurrency']} in flight"


def tiles(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The few figures that everybody asks for."""
    acceptance = report["acceptance"]
    found = [
        (lines.figure(acceptance["trained"]), f"acceptance length, {acceptance['set']}"),
        (lines.figure(acceptance["untrained"]), "untrained control"),
        (lines.figure(acceptance["predicted"]), "predicted from validation"),
    ]
    for name, value in report["sets"].items():
        if name != acceptance["set"] and value["acceptance"]:
            found.insert(1, (lines.figure(value["acceptance"]["length"]), f"acceptance length, {name}"))
    for line in report["throughput"][:2]:
        found.append((f"{line['ratio']:.2f}x", f"baseline's speed, {line['concurrency']} in flight"))
    found.append((lines.figure(report["break_even_acceptance"]), "acceptance length to break even"))
    found.append((lines.seconds(sum(entry["seconds"] for entry in report["stages"])), "all stages"))
    found.append((lines.size(sum(entry["bytes"] for entry in report["stages"])), "all outputs"))
    return found


def flow(entry: dict[str, Any]) -> dict[str, str]:
    counts = f"{entry['kept']:,} of {entry['in']:,}" if entry["in"] else lines.size(entry["bytes"])
    return {
        "name": entry["name"].replace("_", " "),
        "status": entry["status"],
        "time": lines.seconds(entry["seconds"]),
        "counts": counts,
    }


def cells(report: dict[str, Any]) -> dict[str, Any]:
    head = ["server", "prompts", "in flight", "temperature", "ends", "k", "tok/s", "95%", "n", "acceptance"]
    head += ["tokens/step", "TTFT p50 ms", "p99", "TPOT p50 ms", "p99", "marks"]
    rows = []
    for cell in report["cells"]:
        interval = cell["tok_s_ci"]
        rows.append(
            [
                cell["variant"],
                cell["set"],
                cell["concurrency"],
                f"{cell['temperature']:g}",
                cell["end"],
                cell["k"],
                f"{cell['tok_s']:,.1f}",
                f"{interval[0]:,.1f}-{interval[1]:,.1f}" if interval else "-",
                cell["n"],
                lines.figure(cell["acceptance"]),
                lines.figure(cell["tokens_per_step"]),
                *[f"{cell[name][part]:,.1f}" for name in ("ttft_ms", "tpot_ms") for part in ("p50", "p99")],
                ", ".join(cell["flags"]),
            ]
        )
    return {"head": head, "rows": rows}


def method(report: dict[str, Any]) -> str:
    turns = sum(session["variant"] == "baseline" for session in report["sessions"])
    text = (
        f"Baseline and EAGLE3 took turns on this host ({turns} each), warm-up excluded; load from `vllm bench serve`. "
    )
    text += "Intervals: 95 %, Student, from the spread of repeats."
    same = report["same_text"]
    if same:
        text += f" {same['same']} of {same['of']} greedy answers were the same to the letter with and without the draft"
        text += " (other batch shapes round differently; only the check in fp32 decides)."
    lossless = report["lossless"]
    if lossless:
        text += f" In {lossless['dtype']} {lossless['same']} of {lossless['of']} were."
    return text


def audit(value: dict[str, Any] | None) -> dict[str, Any]:
    """The mask's audit: {head, rows, warnings}; nothing where there was none."""
    head = ["source", "rows", "tokens", "supervised", "cut at the end", "without a mask", "left out for another reason"]
    if not value:
        return {"head": head, "rows": [], "warnings": []}
    return {"head": head, "rows": masked.table(value), "warnings": value["warnings"]}


def changes(value: dict[str, Any] | None) -> dict[str, Any]:
    if not value:
        return {"figures": [], "settings": []}
    figures = []
    for item in value["figures"]:
        before, now = item["before"], item["now"]
        change = f"{100 * (now - before) / before:+.1f} %" if before and now is not None else "-"
        figures.append((item["name"], number(before), number(now), change))
    rows = [
        (item["stage"].replace("_", " "), item["name"], brief(item["current"]), brief(item["desired"]))
        for item in value["settings"]
    ]
    return {"figures": figures, "settings": rows}


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def brief(value: Any) -> str:
    text = "-" if value is None else value if isinstance(value, str) else dumps(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def environment(report: dict[str, Any]) -> list[tuple[str, str]]:
    known = report["environment"]
    gpus = known.get("gpus") or []
    rows = [
        ("host", f"{report['host'] or '-'}, {known['os']}, kernel {known['kernel']}, {known['machine']}"),
        ("processor", f"{known['cpu']}, {known['cores']} cores, {lines.size(known['memory_bytes'])}"),
        ("accelerators", f"{len(gpus)}x {gpus[0]}, driver {known.get('driver', '-')}" if gpus else "none"),
        ("python", known["python"]),
        ("versions", ", ".join(f"{name} {version}" for name, version in sorted(known["versions"].items()))),
        ("target", f"{report['target']['name']} ({report['target']['source']} {report['target']['revision'][:12]})"),
        (
            "dimensions",
            f"hidden {report['target']['hidden_size']}, {report['target']['num_hidden_layers']} layers, "
            f"vocabulary {report['target']['vocab_size']:,}, states of layers {report['target']['aux_layers']}",
        ),
    ]
    serving = report["serving"]
    rows.append(("serving now", f"{serving['profile']} at {serving['base_url']}" if serving["profile"] else "nothing"))
    return rows


def settings(identity: dict[str, Any]) -> list[tuple[str, str]]:
    """A stage's identity by dotted name."""
    return [(name, brief(value)) for name, value in sorted(flatten(identity).items())]

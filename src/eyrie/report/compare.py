"""Runs side by side: which figures differ, and which settings may be why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyrie import __version__
from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import flatten, short
from eyrie.core.spec import nearest
from eyrie.report import lines, page, plots_compare
from eyrie.report.collect import SCHEMA

ROWS = (
    ("acceptance length, trained", "acceptance.trained", lines.figure),
    ("acceptance length, untrained", "acceptance.untrained", lines.figure),
    ("acceptance length, predicted", "acceptance.predicted", lines.figure),
    ("break-even acceptance length", "break_even_acceptance", lines.figure),
    ("draft tokens per step (k)", "acceptance.num_speculative_tokens", str),
    ("supervised tokens", "supervision.supervised", "{:,}".format),
    ("draft vocabulary coverage", "vocabulary.coverage", "{:.2%}".format),
    ("draft", "draft.version", str),
    ("promoted", "promotion.promoted", lambda value: "yes" if value else "no"),
    ("target", "target.name", str),
)
MACHINE = ("os", "kernel", "python", "cpu", "cores", "memory_bytes", "gpus", "driver", "versions")


def folder(root: Path) -> Path:
    """Where reports of other hosts are put, and the pages."""
    return root / "compare"


def find(root: Path, name: str) -> Path:
    """report.json of a name: one brought here from another host, or the newest of a run of this root."""
    brought = folder(root) / name / "report.json"
    if brought.is_file():
        return brought
    found = sorted((root / "runs" / name / "report").glob("*/report.json"), key=lambda path: path.stat().st_mtime)
    if found:
        return found[-1]
    known = sorted({path.parts[-4] for path in (root / "runs").glob("*/report/*/report.json")})
    known += sorted(path.parent.name for path in folder(root).glob("*/report.json"))
    raise EyrieError(
        f"there is no report of {name!r}.{nearest(name, known)}",
        where=str(root),
        code="no-report",
        why=f"There are reports of: {', '.join(known) or 'nothing'}.",
        todo="Name runs of this host, or hosts whose report.json is in artifacts/ on the controller.",
    )


def read(root: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """{name: report}, at least two."""
    if len(set(names)) < 2:
        raise EyrieError("comparing needs two different names at least.", code="compare-one", todo="-e compare=a,b")
    found = {}
    for name in names:
        path = find(root, name)
        value = atomic.read_json(path)
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            raise EyrieError("this report is torn or of another version.", where=str(path), code="report-torn")
        found[name] = value
    return found


def table(reports: dict[str, dict[str, Any]]) -> list[list[str]]:
    """One row per figure, one column per run. Pure."""
    rows = []
    for title, path, show in ROWS:
        values = [at(report, path) for report in reports.values()]
        if any(value is not None for value in values):
            rows.append([title, *["-" if value is None else show(value) for value in values]])
    for name in dict.fromkeys(name for report in reports.values() for name in report["sets"]):
        lengths = [at(report, f"sets.{name}.acceptance.length") for report in reports.values()]
        rows.append([f"acceptance length on {name}", *[lines.figure(value) for value in lengths]])
    counts = sorted({line["concurrency"] for report in reports.values() for line in report["throughput"]})
    for count in counts:
        for key, title in (("baseline_tok_s", "baseline tok/s"), ("eagle3_tok_s", "EAGLE3 tok/s"), ("ratio", "ratio")):
            values = [
                next((line[key] for line in report["throughput"] if line["concurrency"] == count), None)
                for report in reports.values()
            ]
            rows.append([f"{title}, {count} in flight", *[lines.figure(value) for value in values]])
    return rows


def at(value: Any, path: str) -> Any:
    """A value by its dotted path, None where it is not there."""
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def differing(reports: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Settings, versions and contents that are not the same in all runs: [stage, name, value per run]. Pure."""
    flat = [
        {
            (item["stage"], name): value
            for item in report["provenance"]
            for name, value in flatten(item["identity"]).items()
        }
        for report in reports.values()
    ]
    names = list(dict.fromkeys(name for values in flat for name in values))
    return [
        [name[0].replace("_", " "), name[1], *[page.brief(values.get(name)) for values in flat]]
        for name in names
        if any(values.get(name) != flat[0].get(name) for values in flat)
    ]


def machines(reports: dict[str, dict[str, Any]]) -> list[list[str]]:
    rows = [["host", *[report["host"] or "-" for report in reports.values()]]]
    for key in MACHINE:
        values = [report["environment"].get(key) for report in reports.values()]
        if any(values):
            rows.append([key.replace("_", " "), *[shown(key, value) for value in values]])
    return rows


def shown(key: str, value: Any) -> str:
    if not value:
        return "-"
    if key == "memory_bytes":
        return lines.size(value)
    if key == "versions":
        return ", ".join(f"{name} {version}" for name, version in sorted(value.items()))
    if key == "gpus":
        return f"{len(value)}x {value[0]}"
    return str(value)


def build(reports: dict[str, dict[str, Any]]) -> str:
    """The page of runs side by side."""
    plots = [plots_compare.speed(reports), plots_compare.positions(reports), plots_compare.times(reports)]
    return page.fill(
        "compare.html.jinja",
        title=" against ".join(reports),
        eyrie=__version__,
        names=list(reports),
        runs=[
            (name, f"{report['target']['name']}, {page.subtitle(report)}", page.headline(report), report["decision"])
            for name, report in reports.items()
        ],
        figures=table(reports),
        plots=[page.drawing(plot) for plot in plots if plot],
        differing=differing(reports),
        machines=machines(reports),
        drafts=[short(report["draft"]["fingerprint"]) for report in reports.values()],
    )

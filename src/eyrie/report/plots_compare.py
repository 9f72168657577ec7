"""Plots of runs side by side."""

from __future__ import annotations

from typing import Any

from eyrie.report.figure import Plot, axes_of, colour, legend_above, only_grid
from eyrie.report.lines import seconds

Reports = dict[str, dict[str, Any]]


def tint(number: int) -> str:
    return colour(f"series{number % 4 + 1}")


def speed(reports: Reports) -> Plot | None:
    """EAGLE3's tokens a second, and its ratio to the baseline of the same host, per concurrency."""
    counts = sorted({line["concurrency"] for report in reports.values() for line in report["throughput"]})
    if not counts:
        return None
    found = {name: {line["concurrency"]: line for line in report["throughput"]} for name, report in reports.items()}

    def draw(figure: Any, narrow: bool) -> None:
        left, right = axes_of(figure, 2, narrow)
        for number, (name, lines) in enumerate(found.items()):
            known = [place for place, count in enumerate(counts) if count in lines]
            chosen = [lines[counts[place]] for place in known]
            left.plot(known, [line["eagle3_tok_s"] for line in chosen], "o-", color=tint(number), label=name)
            left.plot(known, [line["baseline_tok_s"] for line in chosen], "o--", color=tint(number), alpha=0.5, ms=4)
            shift = (number - (len(found) - 1) / 2) * 0.12
            for place, line in zip(known, chosen, strict=True):
                low, high = line["ratio_ci"] or [line["ratio"]] * 2
                error = [[line["ratio"] - low], [high - line["ratio"]]]
                right.errorbar(place + shift, line["ratio"], error, fmt="o", color=tint(number), capsize=3)
        right.axhline(1.0, color=colour("baseline"), linewidth=1.4, linestyle=(0, (4, 3)))
        left.set_title("EAGLE3 tok/s (dashed: baseline)", pad=20)
        right.set_title("EAGLE3 over baseline, 95% interval", pad=20)
        legend_above(left, 2 if narrow else 3)
        right.margins(x=0.2)
        for axes in (left, right):
            axes.set_xticks(range(len(counts)), [str(count) for count in counts])
            axes.set_xlabel("requests in flight")
            only_grid(axes, "y")

    rows = [
        [
            name,
            str(count),
            f"{line['baseline_tok_s']:,.1f}",
            f"{line['eagle3_tok_s']:,.1f}",
            f"{line['ratio']:.3f}",
            f"{line['ratio_ci'][0]:.3f} to {line['ratio_ci'][1]:.3f}" if line["ratio_ci"] else "measured once",
        ]
        for name, lines in found.items()
        for count, line in sorted(lines.items())
    ]
    words = [f"{row[0]} at {row[1]} in flight: {row[3]} tok/s, {row[4]} times its baseline" for row in rows]
    head = ["run", "in flight", "baseline tok/s", "EAGLE3 tok/s", "ratio", "95%"]
    return Plot("speeds", "Throughput", "; ".join(words) + ".", draw, [head, *rows], 3.2, 5.8)


def positions(reports: Reports) -> Plot | None:
    """Acceptance per position of each run's deciding prompts."""
    series = {name: report["acceptance"]["per_position"] for name, report in reports.items()}
    series = {name: values for name, values in series.items() if values}
    if not series:
        return None
    count = max(len(values) for values in series.values())

    def draw(figure: Any, narrow: bool) -> None:
        (axes,) = axes_of(figure, 1, narrow)
        width = 0.8 / len(series)
        for number, (name, values) in enumerate(series.items()):
            places = [place + (number - (len(series) - 1) / 2) * width for place in range(len(values))]
            axes.bar(places, [100 * value for value in values], width * 0.92, color=tint(number), label=name)
        axes.set_xticks(range(count), [f"token {place + 1}" for place in range(count)])
        axes.set_ylabel("accepted, % of drafts")
        legend_above(axes, 2 if narrow else 4)
        only_grid(axes, "y")

    words = [f"{name}: " + ", ".join(f"{100 * value:.0f} %" for value in values) for name, values in series.items()]
    rows = [[name, *[f"{100 * value:.1f} %" for value in values]] for name, values in series.items()]
    head = ["run", *[f"token {place + 1}" for place in range(count)]]
    return Plot("positions", "Acceptance per position", "; ".join(words) + ".", draw, [head, *rows])


def times(reports: Reports) -> Plot | None:
    """Time of each stage in each run."""
    names = list(dict.fromkeys(entry["name"] for report in reports.values() for entry in report["stages"]))
    taken = {run: {entry["name"]: entry["seconds"] for entry in report["stages"]} for run, report in reports.items()}
    if not names:
        return None
    longest = max(value for values in taken.values() for value in values.values())

    def draw(figure: Any, narrow: bool) -> None:
        (axes,) = axes_of(figure, 1, narrow)
        width = 0.8 / len(taken)
        for number, (run, values) in enumerate(taken.items()):
            places = [place + (number - (len(taken) - 1) / 2) * width for place in range(len(names))]
            axes.barh(places, [values.get(name, 0.0) for name in names], width * 0.9, color=tint(number), label=run)
        axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter(
            lambda value, _: f"{value:,.0f} s" if longest < 200 else f"{value / 60:,.3g} min"
        )
        axes.xaxis.get_major_locator().set_params(nbins=4 if narrow else 7)
        legend_above(axes, 2 if narrow else 4)
        only_grid(axes, "x")

    rows = [[name, *[seconds(values[name]) if name in values else "-" for values in taken.values()]] for name in names]
    words = [f"{run}: {seconds(sum(values.values()))} in all" for run, values in taken.items()]
    height = 1.0 + 0.2 * len(names) * (1 + len(taken))
    return Plot("times", "Time per stage", "; ".join(words) + ".", draw, [["stage", *taken], *rows], height, height)

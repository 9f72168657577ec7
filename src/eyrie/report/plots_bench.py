"""Plots of the benchmark: speed, break-even, acceptance per position, number of draft tokens."""

from __future__ import annotations

from typing import Any

from eyrie.report.figure import Plot, axes_of, colour, legend_above, only_grid
from eyrie.report.lines import figure as shown

#: colour of what the interval says; everything else is no difference beyond noise
TINTS = {"win": "good", "loss": "bad"}


def speed(report: dict[str, Any]) -> Plot | None:
    """Tokens a second and their ratio over concurrency, headline set."""
    lines = report["throughput"]
    if not lines:
        return None
    words = [f"at concurrency {line['concurrency']} {line['ratio']:.2f} times the baseline" for line in lines]

    def draw(figure: Any, narrow: bool) -> None:
        left, right = axes_of(figure, 2, narrow)
        places = list(range(len(lines)))
        width = 0.38
        for shift, key, name in ((-1, "baseline_tok_s", "baseline"), (1, "eagle3_tok_s", "eagle3")):
            values = [line[key] for line in lines]
            bars = left.bar([p + shift * width / 2 for p in places], values, width * 0.94, color=colour(name))
            bars.set_label("EAGLE3" if name == "eagle3" else "baseline")
            left.bar_label(bars, [f"{value:,.0f}" for value in values], padding=2, fontsize=9, color=colour("ink"))
        if max(line["eagle3_tok_s"] for line in lines) > 12 * min(line["baseline_tok_s"] for line in lines):
            left.set_yscale("log")
        left.margins(y=0.14)
        left.set_title("Output tokens a second", pad=20)
        legend_above(left, 2)
        only_grid(left, "y")
        for place, line in zip(places, lines, strict=True):
            tint = TINTS.get(line["outcome"], "muted")
            low, high = line["ratio_ci"] or [line["ratio"]] * 2
            right.errorbar(
                place,
                line["ratio"],
                [[line["ratio"] - low], [high - line["ratio"]]],
                fmt="o",
                color=colour(tint),
                capsize=4,
                elinewidth=1.6,
            )
            right.annotate(
                f"{line['ratio']:.2f}x", (place, line["ratio"]), (9, 0), textcoords="offset points", va="center"
            )
        right.axhline(1.0, color=colour("baseline"), linewidth=1.4, linestyle=(0, (4, 3)))
        right.set_title("EAGLE3 over baseline, 95% interval", pad=20)
        right.margins(x=0.25, y=0.2)
        only_grid(right, "y")
        for axes in (left, right):
            axes.set_xticks(places, [str(line["concurrency"]) for line in lines])
            axes.set_xlabel("requests in flight")

    return Plot(
        "speed",
        "Throughput, baseline against EAGLE3",
        f"EAGLE3 is {', '.join(words)}.",
        draw,
        [
            ["requests in flight", "baseline tok/s", "EAGLE3 tok/s", "ratio", "95% interval"],
            *[
                [
                    str(line["concurrency"]),
                    f"{line['baseline_tok_s']:,.1f}",
                    f"{line['eagle3_tok_s']:,.1f}",
                    f"{line['ratio']:.3f}",
                    f"{line['ratio_ci'][0]:.3f} to {line['ratio_ci'][1]:.3f}" if line["ratio_ci"] else "measured once",
                ]
                for line in lines
            ],
        ],
        height=3.1,
        narrow_height=5.6,
        caption="Green: faster beyond noise; red: slower beyond noise; grey: no difference beyond noise.",
    )


def break_even(report: dict[str, Any]) -> Plot | None:
    """The acceptance length that was measured, beside the one that would break even, per concurrency."""
    lines = report["throughput"]
    rows = []
    for name, found in report["sets"].items():
        if not found["acceptance"]:
            continue
        for line in found["throughput"]:
            rows.append((f"{name}, {line['concurrency']} in flight", found["acceptance"]["length"], line))
    if not lines or not rows:
        return None
    rows.reverse()

    def draw(figure: Any, narrow: bool) -> None:
        (axes,) = axes_of(figure, 1, narrow)
        for place, (_, length, line) in enumerate(rows):
            need = line["break_even_acceptance"]
            tint = TINTS.get(line["outcome"], "muted")
            axes.plot(
                [need, length], [place, place], color=colour(tint), linewidth=5, alpha=0.35, solid_capstyle="butt"
            )
            axes.plot(
                need, place, marker="|", markersize=15, markeredgewidth=2.4, color=colour("ink"), linestyle="none"
            )
            axes.plot(length, place, marker="o", color=colour(tint), linestyle="none")
            axes.annotate(f"{length:.2f}", (length, place), (0, 8), textcoords="offset points", ha="center", fontsize=9)
        axes.set_yticks(range(len(rows)), [name.replace(", ", "\n") if narrow else name for name, _, _ in rows])
        axes.set_xlabel("tokens per step" if narrow else "acceptance length (tokens per step)")
        axes.set_ylim(-0.6, len(rows) - 0.3)
        axes.margins(x=0.12)
        only_grid(axes, "x")

    words = [
        f"{name}: measured {length:.2f}, break-even {line['break_even_acceptance']:.2f}"
        for name, length, line in rows[::-1]
    ]
    return Plot(
        "break-even",
        "Acceptance length measured, and needed to break even",
        "; ".join(words) + ".",
        draw,
        [
            ["prompts and load", "measured", "break-even"],
            *[[name, f"{length:.3f}", f"{line['break_even_acceptance']:.3f}"] for name, length, line in rows[::-1]],
        ],
        height=0.9 + 0.5 * len(rows),
        narrow_height=1.0 + 0.58 * len(rows),
        caption="The dot is what was measured, the bar what would equal the baseline: the step cost at that load.",
    )


def percent(share: float) -> str:
    """'52', and '0.3' where rounding would make nothing of something."""
    value = 100 * share
    return f"{value:.1f}" if 0 < value < 1 else f"{value:.0f}"


def positions(report: dict[str, Any]) -> Plot | None:
    """Share of drafts whose token at each position was accepted, per set, and the untrained control."""
    series: list[tuple[str, str, list[float]]] = []
    for name, found in report["sets"].items():
        if found["acceptance"] and found["acceptance"]["per_position"]:
            series.append((name, f"series{len(series) % 3 + 1}", found["acceptance"]["per_position"]))
    head = report["sets"].get(report["acceptance"]["set"], {}).get("untrained")
    if not series:
        return None
    if head and head["per_position"]:
        series.append(("untrained control", "untrained", head["per_position"]))
    count = max(len(values) for _, _, values in series)

    def draw(figure: Any, narrow: bool) -> None:
        (axes,) = axes_of(figure, 1, narrow)
        width = 0.8 / len(series)
        for number, (name, tint, values) in enumerate(series):
            places = [place + (number - (len(series) - 1) / 2) * width for place in range(len(values))]
            bars = axes.bar(places, [100 * value for value in values], width * 0.92, color=colour(tint), label=name)
            if len(series) * count <= (9 if narrow else 16):
                axes.bar_label(bars, [percent(value) for value in values], padding=2, fontsize=9)
        axes.set_xticks(range(count), [f"token {place + 1}" for place in range(count)])
        axes.set_ylabel("accepted, % of drafts")
        axes.margins(y=0.12)
        axes.set_ylim(0, max(10.0, axes.get_ylim()[1]))
        legend_above(axes, 2 if narrow else 4)
        only_grid(axes, "y")

    words = [f"{name}: " + ", ".join(f"{100 * value:.0f} %" for value in values) for name, _, values in series]
    return Plot(
        "positions",
        "Acceptance per position",
        "Share of drafts whose first, second and later token was accepted. " + "; ".join(words) + ".",
        draw,
        [
            ["prompts", *[f"token {place + 1}" for place in range(count)]],
            *[[name, *[f"{100 * value:.1f} %" for value in values]] for name, _, values in series],
        ],
        height=3.0,
        narrow_height=3.2,
        caption="Of all drafts, how many had their first, second and later token accepted.",
    )


def sweep(report: dict[str, Any]) -> Plot | None:
    """Speed over the number of draft tokens, where more than one was measured."""
    best = {int(key): value for key, value in report["best_k"].items()}
    measured = {concurrency: value for concurrency, value in best.items() if len(value["of"]) > 1}
    if not measured:
        return None
    speeds: dict[int, dict[int, float]] = {}
    head = report["acceptance"]["set"]
    for cell in report["cells"]:
        drafting = cell["variant"] in ("eagle3", "sweep") and cell["concurrency"] in measured
        if drafting and cell["set"] == head and cell["temperature"] == 0 and cell["end"] == "natural":
            speeds.setdefault(cell["concurrency"], {})[cell["k"]] = cell["tok_s"]
    base = {line["concurrency"]: line["baseline_tok_s"] for line in report["throughput"]}

    def draw(figure: Any, narrow: bool) -> None:
        (axes,) = axes_of(figure, 1, narrow)
        for number, (concurrency, found) in enumerate(sorted(speeds.items())):
            tint = colour(f"series{number % 3 + 1}")
            ks = sorted(found)
            ratios = [found[k] / base[concurrency] for k in ks]
            axes.plot(ks, ratios, marker="o", color=tint, label=f"{concurrency} in flight")
            top = max(ks, key=lambda k: found[k])
            axes.plot(top, found[top] / base[concurrency], marker="o", markersize=13, fillstyle="none", color=tint)
        axes.axhline(1.0, color=colour("baseline"), linewidth=1.4, linestyle=(0, (4, 3)))
        axes.set_xticks(sorted({k for found in speeds.values() for k in found}))
        axes.set_xlabel("draft tokens per step (k)")
        axes.set_ylabel("speed over baseline")
        legend_above(axes, 2 if narrow else 4)
        only_grid(axes, "y")

    words = [f"at {c} in flight k={best[c]['k']} is fastest" for c in sorted(measured)]
    return Plot(
        "sweep",
        "How many tokens to draft",
        "; ".join(words) + ".",
        draw,
        [
            ["requests in flight", "k", "tok/s", "over baseline"],
            *[
                [str(c), str(k), shown(found[k], 1), shown(found[k] / base[c], 3)]
                for c, found in sorted(speeds.items())
                for k in sorted(found)
            ],
        ],
        caption=f"{'; '.join(words)}.".capitalize(),
    )

"""Plots of the run: what became of the samples, supervision, vocabulary, forecasts, training."""

from __future__ import annotations

from typing import Any

from eyrie.report import curves
from eyrie.report.figure import Plot, axes_of, colour, legend_above, only_grid, size_axis, time_axis
from eyrie.report.lines import seconds, size

TINY = 1e-9


def waterfall(report: dict[str, Any]) -> Plot | None:
    """Per stage: the share kept, dropped and failed of what came in."""
    stages = [entry for entry in report["stages"] if entry["in"]]
    if not stages:
        return None
    shares = [
        (
            entry["name"].replace("_", " "),
            entry,
            entry["kept"] / entry["in"],
            sum(entry["dropped"].values()) / entry["in"],
            sum(entry["failed"].values()) / entry["in"],
        )
        for entry in stages
    ][::-1]

    def draw(figure: Any, narrow: bool) -> None:
        (axes,) = axes_of(figure, 1, narrow)
        left = [0.0] * len(shares)
        for part, (name, tint) in enumerate((("kept", "eagle3"), ("dropped", "soft"), ("failed", "bad"))):
            values = [100 * share[2 + part] for share in shares]
            axes.barh(range(len(shares)), values, 0.62, left=left, color=colour(tint), label=name)
            left = [a + b for a, b in zip(left, values, strict=True)]
        for place, (_, entry, *_rest) in enumerate(shares):
            axes.annotate(
                f"{entry['in']:,} → {entry['kept']:,}", (100, place), (6, 0), textcoords="offset points", va="center"
            )
        axes.set_yticks(range(len(shares)), [share[0] for share in shares])
        axes.set_xlim(0, 100)
        axes.set_xlabel("% of what came in")
        legend_above(axes, 3)
        only_grid(axes, "x")

    words = [f"{entry['name']}: {entry['in']:,} in, {entry['kept']:,} kept" for _, entry, *_ in shares[::-1]]
    return Plot(
        "waterfall",
        "What became of the samples",
        "; ".join(words) + ".",
        draw,
        [
            ["stage", "in", "kept", "dropped", "failed"],
            *[
                [
                    entry["name"],
                    f"{entry['in']:,}",
                    f"{entry['kept']:,}",
                    reasons(entry["dropped"]),
                    reasons(entry["failed"]),
                ]
                for _, entry, *_ in shares[::-1]
            ],
        ],
        height=1.1 + 0.34 * len(shares),
        narrow_height=1.2 + 0.36 * len(shares),
        caption="Dropped: a rule excluded it; failed: work on it broke. Units differ from stage to stage.",
    )


def reasons(counts: dict[str, int]) -> str:
    """'duplicate 1,167, held_out 40', the commonest first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in ordered) or "-"


def supervised(report: dict[str, Any]) -> Plot | None:
    """Supervised tokens (they teach) and context (it does not), per source."""
    known = report["supervision"]
    if not known or not known["tokens"]:
        return None
    sources = sorted(known["sources"].items(), key=lambda item: item[1]["tokens"])

    def draw(figure: Any, narrow: bool) -> None:
        (axes,) = axes_of(figure, 1, narrow)
        taught = [value["supervised"] for _, value in sources]
        rest = [value["tokens"] - value["supervised"] for _, value in sources]
        places = range(len(sources))
        axes.barh(places, taught, 0.62, color=colour("eagle3"), label="supervised")
        axes.barh(places, rest, 0.62, left=taught, color=colour("soft"), label="context")
        for place, (_, value) in enumerate(sources):
            share = f"{100 * value['supervised'] / max(1, value['tokens']):.0f} %"
            axes.annotate(share, (value["tokens"], place), (5, 0), textcoords="offset points", va="center")
        axes.set_yticks(places, [name for name, _ in sources])
        axes.set_xlabel("tokens")
        axes.margins(x=0.12)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:g} M")
        axes.xaxis.get_major_locator().set_params(nbins=4 if narrow else 7)
        legend_above(axes, 2)
        only_grid(axes, "x")

    share = 100 * known["supervised"] / known["tokens"]
    return Plot(
        "supervised",
        "Supervised share of the tokens",
        f"{known['supervised']:,} of {known['tokens']:,} tokens ({share:.1f} %) are supervised: "
        "the target's own answers.",
        draw,
        [
            ["source", "rows", "tokens", "supervised", "share"],
            *[
                [
                    name,
                    f"{value['rows']:,}",
                    f"{value['tokens']:,}",
                    f"{value['supervised']:,}",
                    f"{100 * value['supervised'] / max(1, value['tokens']):.1f} %",
                ]
                for name, value in sources[::-1]
            ],
        ],
        height=1.1 + 0.4 * len(sources),
        narrow_height=1.2 + 0.42 * len(sources),
        caption=f"{share:.1f} % of {known['tokens']:,} tokens teach: the target's own answers. The rest is context.",
    )


def vocabulary(report: dict[str, Any]) -> Plot | None:
    """Coverage of the supervised tokens over the size of the draft vocabulary, with the chosen size."""
    known, curve = report["vocabulary"], report.get("vocabulary_curve") or []
    if not known or len(curve) < 3:
        return None
    chosen = known["draft_vocab_size"]

    def draw(figure: Any, narrow: bool) -> None:
        (axes,) = axes_of(figure, 1, narrow)
        axes.plot([point[0] for point in curve], [100 * point[1] for point in curve], color=colour("eagle3"))
        axes.axvline(chosen, color=colour("ink"), linewidth=1.2, linestyle=(0, (4, 3)))
        label = f"  {chosen:,} chosen: {100 * known['coverage']:.2f} %  "
        side = "right" if chosen > curve[-1][0] / 20 else "left"
        axes.annotate(label, (chosen, 8), ha=side, fontsize=9.5)
        axes.set_xscale("log")
        axes.set_ylim(0, 104)
        axes.set_xlabel(
            "tokens in the draft vocabulary" if narrow else "tokens in the draft vocabulary, commonest first"
        )
        axes.set_ylabel("% of supervised tokens")
        only_grid(axes, "y")

    by_source = known.get("coverage_by_source", {})
    return Plot(
        "vocabulary",
        "Draft vocabulary and what it covers",
        f"A draft vocabulary of {chosen:,} tokens covers {100 * known['coverage']:.2f} % of the supervised tokens; "
        f"{known.get('distinct_supervised', 0):,} distinct tokens occur.",
        draw,
        [
            ["source", "covered"],
            *[[name, f"{100 * value:.2f} %"] for name, value in sorted(by_source.items())],
            ["all", f"{100 * known['coverage']:.2f} %"],
        ],
        caption=f"{known.get('distinct_supervised', 0):,} distinct tokens are supervised. A token outside of the draft "
        "vocabulary is never accepted.",
    )


def forecast(report: dict[str, Any]) -> Plot | None:
    """Time and bytes, as forecast before the stage ran and as they came out."""
    rows = [entry for entry in report["stages"] if entry["forecast"].get("seconds")][::-1]
    if not rows:
        return None

    def draw(figure: Any, narrow: bool) -> None:
        for axes, key, title in zip(axes_of(figure, 2, narrow), ("seconds", "bytes"), ("Time", "Disk"), strict=True):
            for place, entry in enumerate(rows):
                planned, real = max(entry["forecast"].get(key) or 0, TINY), max(entry[key] or 0, TINY)
                if TINY in (planned, real):
                    continue
                axes.plot([planned, real], [place, place], color=colour("soft"), linewidth=3, solid_capstyle="butt")
                axes.plot(
                    planned, place, marker="|", markersize=13, markeredgewidth=2.2, color=colour("muted"), ls="none"
                )
                axes.plot(real, place, marker="o", color=colour("eagle3"), linestyle="none")
            axes.set_xscale("log")
            axes.margins(x=0.1)
            axes.set_title(title, pad=20 if axes is figure.axes[0] or not narrow else 6)
            if key == "seconds":
                time_axis(axes)
            else:
                size_axis(axes, 3 if narrow else 4)
            axes.set_yticks(range(len(rows)), [entry["name"].replace("_", " ") for entry in rows])
            only_grid(axes, "x")
        first = figure.axes[0]
        first.plot(
            [], [], marker="|", markersize=11, markeredgewidth=2.2, color=colour("muted"), ls="none", label="forecast"
        )
        first.plot([], [], marker="o", color=colour("eagle3"), linestyle="none", label="actual")
        legend_above(first, 2)

    return Plot(
        "forecast",
        "Forecast against actual",
        "; ".join(
            f"{entry['name']}: forecast {seconds(entry['forecast']['seconds'])}, took {seconds(entry['seconds'])}"
            for entry in rows[::-1]
        )
        + ".",
        draw,
        [
            ["stage", "time forecast", "time", "disk forecast", "disk", "basis of the forecast"],
            *[
                [
                    entry["name"],
                    seconds(entry["forecast"]["seconds"]),
                    seconds(entry["seconds"]),
                    size(entry["forecast"].get("bytes") or 0),
                    size(entry["bytes"] or 0),
                    str(entry["forecast"].get("basis", "")),
                ]
                for entry in rows[::-1]
            ],
        ],
        height=1.2 + 0.32 * len(rows),
        narrow_height=1.6 + 0.6 * len(rows),
        caption=f"In all: forecast {seconds(sum(entry['forecast']['seconds'] for entry in rows))}, "
        f"took {seconds(sum(entry['seconds'] for entry in rows))}. Both axes are logarithmic.",
    )


def training(report: dict[str, Any], points: int) -> Plot | None:
    """Training loss, and validation accuracy per position after each epoch."""
    known = report["training"]
    loss = curves.finite(known["loss"])
    epochs = known["epochs"]
    if len(loss) < 2 and not epochs:
        return None

    def draw(figure: Any, narrow: bool) -> None:
        left, right = axes_of(figure, 2, narrow)
        if loss:
            window = max(1, len(loss) // 50)
            thin = curves.thin(loss, points)
            left.plot(*zip(*thin, strict=True), color=colour("soft"), linewidth=1.0)
            mean = curves.thin(curves.smooth(loss, window), points)
            left.plot(*zip(*mean, strict=True), color=colour("eagle3"))
        marked = [
            (epoch["step"], epoch["loss"])
            for epoch in epochs
            if epoch["step"] is not None and epoch["loss"] is not None
        ]
        if marked:
            left.plot(*zip(*marked, strict=True), "o", color=colour("series2"), label="validation")
            legend_above(left, 2)
        left.set_title("Loss", pad=20)
        left.set_xlabel("step")
        left.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        left.xaxis.get_major_locator().set_params(nbins=4 if narrow else 5)
        count = max((len(epoch["accuracy"]) for epoch in epochs), default=0)
        for place in range(min(count, 3)):
            values = [
                (epoch["epoch"], 100 * epoch["accuracy"][place]) for epoch in epochs if len(epoch["accuracy"]) > place
            ]
            right.plot(
                *zip(*values, strict=True), marker="o", color=colour(f"series{place + 1}"), label=f"token {place + 1}"
            )
        right.set_title("Validation accuracy, %", pad=20)
        right.set_xlabel("epoch")
        right.xaxis.get_major_locator().set_params(integer=True)
        if len(epochs) == 1:
            right.set_xticks([epochs[0]["epoch"]])
        if count:
            legend_above(right, 3)
        for axes in (left, right):
            only_grid(axes, "y")

    first, last = (loss[0][1], loss[-1][1]) if loss else (None, None)
    words = f"Training loss went from {first:.3f} to {last:.3f} in {len(loss):,} recorded steps. " if loss else ""
    if epochs and epochs[-1]["accuracy"]:
        shares = ", ".join(f"{100 * value:.1f} %" for value in epochs[-1]["accuracy"])
        words += f"Validation accuracy per position after the last epoch: {shares}."
    return Plot(
        "training",
        "Loss and accuracy",
        words,
        draw,
        [
            ["epoch", "validation loss", "accuracy per position"],
            *[
                [
                    f"{epoch['epoch']:g}",
                    "-" if epoch["loss"] is None else f"{epoch['loss']:.4f}",
                    ", ".join(f"{100 * value:.1f} %" for value in epoch["accuracy"]),
                ]
                for epoch in epochs
            ],
        ],
        height=3.1,
        narrow_height=5.6,
        caption=words,
    )

"""Matplotlib figures as inline SVG that takes its colours and its font from the page.

The page is one file that is read on a phone, on a desk, in the dark and on paper. So every plot is drawn twice, wide
and narrow, with text that stays text; colours are placeholders that become CSS variables.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: placeholder colour in the drawing -> CSS variable of the page
COLOURS = {
    "ink": "#010101",
    "muted": "#020202",
    "grid": "#030303",
    "paper": "#040404",
    "baseline": "#050505",
    "eagle3": "#060606",
    "untrained": "#070707",
    "ngram": "#080808",
    "good": "#090909",
    "bad": "#0a0a0a",
    "predicted": "#0b0b0b",
    "soft": "#0c0c0c",
    "series1": "#111111",
    "series2": "#0d0d0d",
    "series3": "#0e0e0e",
    "series4": "#0f0f0f",
}
WIDE, NARROW = (7.6, 1.0), (3.7, 1.0)  # inches: 72 units to the inch; the page shows a unit as about a pixel
STYLE = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.7,
    "lines.linewidth": 2.0,
    "lines.markersize": 6.5,
    "text.color": COLOURS["ink"],
    "axes.titlecolor": COLOURS["ink"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.edgecolor": COLOURS["grid"],
    "grid.color": COLOURS["grid"],
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


@dataclass
class Plot:
    """A plot with its words.

    draw(figure, narrow) draws into an empty figure. text: what a reader who cannot see it needs to know.
    caption: the line below it, for those who see it. rows: the same figures as a table, headings first.
    """

    name: str
    title: str
    text: str
    draw: Callable[[Any, bool], None]
    rows: list[list[str]]
    height: float = 3.0
    narrow_height: float = 3.2
    caption: str = ""


def render(plot: Plot) -> dict[str, str]:
    """{'wide', 'narrow'}: two drawings as inline SVG."""
    return {
        "wide": svg(plot, False, (WIDE[0], plot.height)),
        "narrow": svg(plot, True, (NARROW[0], plot.narrow_height)),
    }


def svg(plot: Plot, narrow: bool, size: tuple[float, float]) -> str:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    name = f"{plot.name}-{'n' if narrow else 'w'}"
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        plot.draw(figure, narrow)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    return inline(stream.getvalue(), name, plot)


def inline(text: str, name: str, plot: Plot) -> str:
    """An SVG document made fit to stand inside a page: own ids, page colours, words for those who cannot see it."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(xlink:href|href)="#([^"]+)"', rf'href="#{name}-\2"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r"'DejaVu Sans'(?:, '[^']*'|, [a-z-]+)*", "var(--font)", text)
    for variable, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{variable})")
    text = re.sub(r"(\d\.\d{2})\d+", r"\1", text)
    box = re.search(r'viewBox="([^"]+)"', text)
    words = f"<title>{html.escape(plot.title)}</title><desc>{html.escape(plot.text)}</desc>"
    head = f'<svg class="{(name[-1] == "n" and "narrow") or "wide"}" role="img" xmlns="http://www.w3.org/2000/svg"'
    head += f' viewBox="{box.group(1) if box else ""}" aria-label="{html.escape(plot.title)}">{words}'
    return head + re.sub(r">\s+<", "><", text[text.index(">") + 1 :].strip())


def colour(name: str) -> str:
    return COLOURS[name]


def axes_of(figure: Any, count: int, narrow: bool, shares: list[float] | None = None) -> list[Any]:
    """`count` axes beside each other, below each other on a narrow page."""
    shape = (count, 1) if narrow else (1, count)
    ratios = {"height_ratios" if narrow else "width_ratios": shares} if shares else {}
    found = figure.subplots(*shape, squeeze=False, gridspec_kw=ratios)
    return [axes for row in found for axes in row]


def only_grid(axes: Any, which: str) -> None:
    """Grid lines across one direction; the axis line stays where bars stand on it."""
    axes.grid(False)
    axes.grid(True, axis=which)
    axes.spines["left" if which == "x" else "bottom"].set_visible(True)
    axes.spines["bottom" if which == "x" else "left"].set_visible(False)


#: where a logarithmic time axis is marked, in seconds
TIME_MARKS = (1, 10, 60, 600, 3600, 36000, 360000, 3600000)


def time_axis(axes: Any) -> None:
    """A logarithmic axis of seconds, marked at round times."""
    low, high = axes.get_xlim()
    marks = [mark for mark in TIME_MARKS if low <= mark <= high]
    axes.set_xticks(marks, [round_time(mark) for mark in marks])
    axes.set_xticks([], minor=True)


def round_time(value: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if value >= size:
            return f"{value / size:,.0f} {unit}"
    return f"{value:.0f} s"


def size_axis(axes: Any, most: int) -> None:
    """A logarithmic axis of bytes, marked at powers of ten, at most `most` of them."""
    low, high = axes.get_xlim()
    powers = [power for power in range(0, 16) if low <= 10**power <= high]
    step = max(1, -(-len(powers) // most))
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    marks = powers[(len(powers) - 1) % step :: step]
    axes.set_xticks([10**power for power in marks], [f"{10 ** (power % 3)} {units[power // 3]}" for power in marks])
    axes.set_xticks([], minor=True)


def legend_above(axes: Any, columns: int) -> None:
    """A legend between title and plot, where it covers nothing."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=columns,
        borderaxespad=0.2,
        handlelength=1.2,
        columnspacing=1.2,
        handletextpad=0.5,
    )

"""report.html as a reader has it: in a browser, without a network, on a phone and a desk, in the dark, on paper."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import made_report as made
import pytest
from browser import Browser

from eyrie.report import compare, page

pytestmark = pytest.mark.node

PLOTS = ["speed", "break-even", "positions", "sweep", "waterfall", "supervised", "vocabulary", "training", "forecast"]
VIEWS = [(390, 844, False), (390, 844, True), (1280, 900, False), (1280, 900, True), (820, 1180, False)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    first, second = made.report(), made.report(0.7)
    second["provenance"][5]["identity"]["settings"]["learning_rate"] = 0.001
    from eyrie.report import previous

    second["changes"] = previous.between(first, second)
    (folder / "win.html").write_text(page.build(first, made.masked(), 400), "utf-8")
    (folder / "changed.html").write_text(page.build(second, made.masked(), 400), "utf-8")
    (folder / "compare.html").write_text(compare.build({"main": first, "b200nvl8": second}), "utf-8")
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.mark.parametrize("name", ["win.html", "changed.html", "compare.html"])
@pytest.mark.parametrize(("width", "height", "dark"), VIEWS)
def test_renders_without_complaint_request_or_sideways_scroll(
    browser: Browser, folder: Path, name: str, width: int, height: int, dark: bool
) -> None:
    browser.size(width, height, dark)
    browser.open(folder / name)
    assert browser.complaints() == []
    assert browser.requests() == []
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value("document.querySelector('h1').textContent.length") > 5
    shown = "Array.from(document.querySelectorAll('figure svg')).filter(s => s.getBoundingClientRect().height > 0)"
    figures = browser.value("document.querySelectorAll('figure').length")
    assert browser.value(f"{shown}.length") == figures
    assert browser.value(f"{shown}.every(s => s.classList.contains('{'narrow' if width <= 704 else 'wide'}'))")
    # text of a plot stays readable: drawn at 9 to 10.5 units, never shown smaller than 8 pixels
    smallest = f"Math.min(...{shown}.map(s => s.getBoundingClientRect().width / s.viewBox.baseVal.width))"
    assert browser.value(smallest) * 9 >= 8
    background = browser.value("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(17, 21, 27)" if dark else "rgb(255, 255, 255)")


def test_plots_take_the_page_s_colours(browser: Browser, folder: Path) -> None:
    colours = []
    for dark in (False, True):
        browser.size(1280, 900, dark)
        browser.open(folder / "win.html")
        colours.append(browser.value("getComputedStyle(document.querySelector('figure svg text')).fill"))
    assert colours[0] != colours[1]
    drawings = "Array.from(document.querySelectorAll('figure svg'))"
    assert browser.value(f"{drawings}.map(s => s.outerHTML).join('').match(/#[0-9a-f]{{6}}/g)") is None
    texts = f"{drawings}.flatMap(s => Array.from(s.querySelectorAll('text'), t => getComputedStyle(t).fill))"
    assert "rgb(0, 0, 0)" not in browser.value(texts)


def test_labels_stay_inside_their_plots(browser: Browser, folder: Path) -> None:
    """No text of a plot is cut off at the plot's edge (legends and labels grow with the words)."""
    script = """
    (() => { const out = [];
      for (const svg of document.querySelectorAll('figure svg')) {
        const box = svg.getBoundingClientRect(); if (!box.width) continue;
        for (const text of svg.querySelectorAll('text')) {
          const t = text.getBoundingClientRect();
          const inside = t.left >= box.left - 4 && t.right <= box.right + 4;
          if (!inside) out.push(svg.getAttribute('aria-label') + ': ' + text.textContent);
        } } return out; })()
    """
    for width in (390, 1280):
        browser.size(width, 900)
        for name in ("win.html", "compare.html"):
            browser.open(folder / name)
            assert browser.value(script) == []


def test_prints_on_white_with_all_plots(browser: Browser, folder: Path) -> None:
    browser.size(1280, 900, dark=True)
    browser.open(folder / "win.html")
    data = browser.pdf()
    assert data.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", data)) >= 3


class Words(HTMLParser):
    """What a screen reader gets: headings, alternatives, tables; and every address in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self._inside: list[str] = []
        self.descriptions: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        if values.get("id"):
            self.ids.append(str(values["id"]))
        if tag == "svg":
            self.images.append(values)
        self.links += [str(values[key]) for key in ("href", "src", "xlink:href") if values.get(key)]
        self._inside.append(tag)

    def handle_data(self, data: str) -> None:
        if self._inside and self._inside[-1] == "desc":
            self.descriptions.append(data)


@pytest.fixture(scope="module")
def words(folder: Path) -> Words:
    found = Words()
    found.feed((folder / "win.html").read_text("utf-8"))
    return found


def test_every_plot_has_words_and_a_table(words: Words, folder: Path) -> None:
    assert len(words.images) == 2 * len(PLOTS)
    assert all(image["role"] == "img" and image["aria-label"] for image in words.images)
    assert len(words.descriptions) == len(words.images)
    assert all(len(text) > 30 for text in words.descriptions)
    assert words.tags.count("figure") == len(PLOTS)
    text = (folder / "win.html").read_text("utf-8")
    assert [name for name in PLOTS if f'id="plot-{name}"' not in text] == []
    assert text.count("The same as a table") == len(PLOTS)


def test_the_file_is_whole_and_its_names_are_its_own(words: Words) -> None:
    assert len(words.ids) == len(set(words.ids))
    assert [link for link in words.links if not link.startswith(("#", "data:,"))] == []
    assert {link[1:] for link in words.links if link.startswith("#")} <= set(words.ids)
    assert "script" not in words.tags


def test_what_comes_from_data_is_text_not_markup(folder: Path) -> None:
    text = (folder / "win.html").read_text("utf-8")
    assert "&lt;b&gt;&amp;" in text
    assert "&lt;|im_start|&gt;user" in text
    assert "<mark>The Danube, the Rhine &amp; the Elbe." in text


def test_a_loss_says_so_where_it_is_seen_first(folder: Path) -> None:
    report = made.report(0.4)
    text = page.build(report, [], 400)
    assert report["decision"]["serve"] == "baseline"
    assert "<strong>Serve the baseline</strong>" in text
    assert "verdict win" not in text
    assert "It does not win against the baseline beyond noise." in text


def test_what_was_not_measured_is_left_out(folder: Path) -> None:
    report = made.report(
        supervision=None, audit=None, vocabulary=None, vocabulary_curve=[], training={"loss": [], "epochs": []}
    )
    report["sets"]["heldout"]["untrained"] = None
    report["acceptance"].update(untrained=None, predicted=None)
    text = page.build(report, [], 400)
    assert "plot-training" not in text
    assert "plot-supervised" not in text
    assert "plot-speed" in text


def test_the_same_run_gives_the_same_bytes() -> None:
    assert page.build(made.report(), made.masked(), 400) == page.build(made.report(), made.masked(), 400)


def test_a_large_run_is_small_and_fast() -> None:
    """100,000 samples and 50,000 steps: under 3 MB and, on an idle machine, under 5 s of the processor."""
    report = made.report(scale=280, steps=50_000)
    rows: list[Any] = made.masked() * 6
    begin = time.process_time()
    text = page.build(report, rows, 400)
    taken = time.process_time() - begin
    assert len(text.encode()) < 3_000_000
    assert taken < 5.0


def test_compare_needs_two_reports_and_names_what_is_there(tmp_path: Path) -> None:
    from eyrie.core import atomic
    from eyrie.core.errors import EyrieError

    atomic.write_json(tmp_path / "runs" / "main" / "report" / "abc" / "report.json", made.report())
    atomic.write_json(tmp_path / "compare" / "b200nvl8" / "report.json", made.report(0.7))
    assert list(compare.read(tmp_path, ["main", "b200nvl8"])) == ["main", "b200nvl8"]
    with pytest.raises(EyrieError, match="two different names"):
        compare.read(tmp_path, ["main", "main"])
    with pytest.raises(EyrieError, match=r"Did you mean 'main'\?.*There are reports of: main, b200nvl8"):
        compare.read(tmp_path, ["mian", "b200nvl8"])
    (tmp_path / "compare" / "b200nvl8" / "report.json").write_text("{")
    with pytest.raises(EyrieError, match="torn or of another version"):
        compare.read(tmp_path, ["main", "b200nvl8"])

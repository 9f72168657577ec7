"""Series, frequencies, lines and differences: the report's plain parts."""

from __future__ import annotations

import json
import math
import pickle
import zipfile
from pathlib import Path
from typing import Any

import made_report as made
import pytest

from eyrie.report import curves, frequencies, lines, masked, previous, training


def test_thinning_keeps_ends_and_extremes() -> None:
    points = [(float(x), math.sin(x / 300)) for x in range(50_000)]
    points[31_234] = (31_234.0, 9.0)
    points[12_345] = (12_345.0, -9.0)
    found = curves.thin(points, 400)
    assert len(found) <= 400
    assert found[0] == points[0]
    assert found[-1] == points[-1]
    assert {(31_234.0, 9.0), (12_345.0, -9.0)} <= set(found)
    assert [x for x, _ in found] == sorted(x for x, _ in found)


def test_few_points_stay_as_they_are() -> None:
    points = [(1.0, 2.0), (2.0, 1.0)]
    assert curves.thin(points, 10) == points
    assert curves.smooth([(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)], 2) == [(1.0, 2.0), (2.0, 3.0), (3.0, 5.0)]
    assert curves.finite([[1, 2.0, 0.5], [2, math.nan], [3, math.inf], [4, 1]]) == [(1.0, 2.0), (4.0, 1.0)]


def torch_file(path: Path, value: Any) -> Path:
    """What torch.save writes for plain values."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("token_freq/data.pkl", pickle.dumps(value, protocol=2))
        archive.writestr("token_freq/version", "3\n")
    return path


def test_coverage_is_the_share_of_the_commonest(tmp_path: Path) -> None:
    counts = frequencies.read(torch_file(tmp_path / "token_freq.pt", {7: 60, 1: 30, 3: 9, 4: 1, 5: 0}))
    assert counts == {7: 60, 1: 30, 3: 9, 4: 1, 5: 0}
    curve = dict(frequencies.coverage(counts))
    assert curve[1] == pytest.approx(0.6)
    assert curve[2] == pytest.approx(0.9)
    assert curve[4] == 1.0


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run",))


@pytest.mark.parametrize("content", [b"", b"not a zip", None])
def test_frequencies_that_cannot_be_read_are_none(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "token_freq.pt"
    if content is not None:
        path.write_bytes(content)
    assert frequencies.read(path) is None
    assert frequencies.coverage({}) == []


def test_nothing_in_a_frequency_file_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert frequencies.read(torch_file(tmp_path / "token_freq.pt", {1: Evil()})) is None
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (61_200_000, "61.2 MB"), (5.5e12, "5.50 TB"), (1000, "1.0 kB")]
)
def test_sizes(value: float, text: str) -> None:
    assert lines.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(4.23, "4.2 s"), (83, "83 s"), (715, "12 min"), (11_100, "3 h 05 min"), (3599, "1 h 00 min")]
)
def test_times(value: float, text: str) -> None:
    assert lines.seconds(value) == text


def test_the_summary_says_everything_that_was_asked_for() -> None:
    report = made.report()
    text = "\n".join(report["summary_lines"])
    assert "acceptance length = 1 + accepted/drafts, k = 3" in text
    for part in ("heldout", "open", "untrained", "verdict    Serve EAGLE3", "promotion  It wins", "hidden_states"):
        assert part in text
    row = next(line for line in report["summary_lines"] if line.startswith("dataset"))
    assert row.split() == ["dataset", "5,414", "350", "5,063", "1", "64.0", "kB", "2.1", "s"]
    assert all(len(line) < 200 for line in report["summary_lines"])


def test_columns_are_aligned() -> None:
    assert lines.table([["a", ">bb"], ["xyz", "1"], ["", "22"]]) == ["a    bb", "xyz   1", "     22"]


def test_what_changed_is_named_with_both_values() -> None:
    before, now = made.report(), made.report(0.9)
    now["provenance"][5]["identity"]["settings"]["learning_rate"] = 0.001
    found = previous.between(before, now)
    assert found["settings"] == [
        {"stage": "draft", "name": "settings.learning_rate", "current": 0.003, "desired": 0.001}
    ]
    figures = {item["name"]: item for item in found["figures"]}
    assert figures["EAGLE3 tok/s at concurrency 1"]["now"] < figures["EAGLE3 tok/s at concurrency 1"]["before"]
    assert figures["acceptance length, trained"]["before"] == figures["acceptance length, trained"]["now"]


def test_nothing_changed_is_nothing() -> None:
    assert previous.between(made.report(), made.report())["settings"] == []


def test_metrics_of_the_draft_become_series() -> None:
    found = training.read(made.metrics(steps=8, epochs=2))
    assert len(found["loss"]) == 8
    assert found["predicted"] == 2.01
    assert [(epoch["epoch"], epoch["step"], len(epoch["accuracy"])) for epoch in found["epochs"]] == [
        (1, 4, 3),
        (2, 8, 3),
    ]
    assert training.read({}) == {"loss": [], "recorded": 0, "epochs": [], "predicted": None}


def test_samples_are_taken_source_by_source() -> None:
    segments = [{"text": "ask", "supervised": False}, {"text": "say", "supervised": True}]
    listed = [{"source": name, "id": "0123456789abcdef", "turn": 1, "segments": segments} for name in "babab"]
    found = masked.samples({"samples": listed}, 2)
    assert [item["source"] for item in found] == ["a", "a", "b", "b"]
    assert found[0]["parts"] == [{"on": False, "text": "ask"}, {"on": True, "text": "say"}]
    assert found[0]["id"] == "0123456789ab"
    assert masked.samples({"samples": listed}, 0) == []
    assert masked.samples({}, 2) == []


def test_the_audit_s_books_show_cut_and_empty_masks() -> None:
    found = masked.figures(made.AUDIT)
    assert found is not None
    assert (found["clipped"], found["zero_mask"]) == (7, 6)
    assert masked.table(found) == [
        ["chatterbot", "68", "9,800", "53.4 %", "2", "4", "-"],
        ["generated", "313", "52,886", "68.1 %", "5", "0", "overlong 3"],
        ["silent", "0", "0", "-", "0", "2", "-"],
        ["all", "381", "62,686", "65.8 %", "7", "6", "overlong 3"],
    ]
    assert masked.figures({}) is None


def test_an_audit_of_an_earlier_version_has_no_sources() -> None:
    old = {"rows": 3, "supervised_share": {"a": 0.5}, "clipped": 1, "dropped": {}, "double_bos": 0, "warnings": []}
    found = masked.figures(old)
    assert found is not None
    assert found["sources"] == {}
    assert masked.table(found) == [["all", "0", "0", "-", "1", "0", "-"]]


def test_the_report_is_json_that_other_programs_read() -> None:
    value = made.report()
    again = json.loads(json.dumps(value, allow_nan=False))
    contract = [
        "run",
        "host",
        "target",
        "draft",
        "stages",
        "acceptance",
        "throughput",
        "break_even_acceptance",
        "verdict",
    ]
    assert set(contract) <= set(again)
    stage = {"name", "fingerprint", "seconds", "in", "kept", "dropped", "failed", "bytes"}
    assert all(stage <= set(entry) for entry in again["stages"])
    acceptance = {"formula", "num_speculative_tokens", "trained", "untrained", "predicted", "per_position"}
    assert acceptance <= set(again["acceptance"])
    line = {"concurrency", "baseline_tok_s", "eagle3_tok_s", "ratio"}
    assert all(line <= set(entry) for entry in again["throughput"])

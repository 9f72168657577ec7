"""Which servers are started, in which order, for which cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from eyrie.benchmark import cells, forecast
from eyrie.benchmark.settings import Settings
from eyrie.core import spec
from eyrie.core.errors import SpecError

HEAD = {"set": "heldout", "concurrency": [1, 8], "prompts": 4, "output_tokens": 64}


def settings(grid: list[dict], **more: object) -> Settings:
    return spec.load(Settings, {"grid": grid, **more}, "benchmark")


def test_baseline_and_eagle3_take_turns_and_eagle3_is_last() -> None:
    found = cells.sessions(settings([{**HEAD, "variants": ["baseline", "eagle3", "untrained"]}]), 3)
    assert [session.key for session in found] == [
        "untrained k=3 round=0",
        "baseline k=0 round=1",
        "eagle3 k=3 round=1",
        "baseline k=0 round=2",
        "eagle3 k=3 round=2",
    ]


def test_the_predecessor_is_measured_in_every_turn_in_the_same_cells() -> None:
    found = cells.sessions(settings([HEAD], rounds=1), 3, predecessor=True)
    assert [session.variant for session in found] == ["baseline", "predecessor", "eagle3"]
    assert found[1].cells == found[2].cells


def test_the_sweep_leaves_out_the_k_that_is_measured_anyway() -> None:
    grid = [HEAD, {**HEAD, "concurrency": [1], "variants": ["sweep"]}]
    found = cells.sessions(settings(grid, k_sweep=[1, 2, 3, 4], rounds=1), 3)
    assert [(session.variant, session.k) for session in found][:3] == [("sweep", 1), ("sweep", 2), ("sweep", 4)]
    assert [cell.concurrency for cell in found[0].cells] == [1]


def test_each_stream_gets_prompts_enough_and_doubles_are_measured_once() -> None:
    found = cells.cells_of(settings([{**HEAD, "concurrency": [1, 32, 32]}, HEAD], streams=3), "eagle3")
    assert [(cell.concurrency, cell.prompts) for cell in found] == [(1, 4), (32, 96), (8, 24)]


def test_prompts_needed_are_the_most_that_any_cell_asks_for() -> None:
    grid = [HEAD, {**HEAD, "set": "open", "concurrency": [1]}]
    assert cells.prompt_counts(cells.sessions(settings(grid), 3)) == {"heldout": 16, "open": 4}


@pytest.mark.parametrize(
    ("grid", "more", "message"),
    [
        ([], {}, "nothing would be measured"),
        ([{**HEAD, "end": "fixed"}], {}, "the first grid entry decides"),
        ([{**HEAD, "variants": ["eagle3"]}], {}, "the first grid entry decides"),
        ([{**HEAD, "set": "mt_bench"}], {}, "there are heldout, open"),
        ([{**HEAD, "concurrency": [0]}], {}, "at least 1"),
        ([{**HEAD, "output_tokens": 1}], {}, "output_tokens"),
        ([HEAD], {"k_sweep": [1, 2]}, "belong together"),
        ([HEAD, {**HEAD, "variants": ["sweep"]}], {}, "belong together"),
        ([HEAD], {"rounds": 0}, "at least 1"),
        ([HEAD], {"prompt_files": [{"name": "open", "src": "/x"}]}, "distinct names"),
        ([{**HEAD, "concurency": [1]}], {}, "Did you mean 'concurrency'"),
        ([{**HEAD, "variants": ["eagle"]}], {}, "eagle3"),
    ],
)
def test_settings_that_make_no_sense_are_refused(grid: list[dict], more: dict, message: str) -> None:
    with pytest.raises(SpecError, match="benchmark") as caught:
        settings(grid, **more)
    assert message in str(caught.value)


def test_a_set_of_ones_own_file_is_known() -> None:
    found = settings(
        [HEAD, {**HEAD, "set": "mt_bench"}],
        prompt_files=[{"name": "mt_bench", "src": "files/q.jsonl"}],
        prompt_folder="/srv/p",
    )
    assert cells.prompt_counts(cells.sessions(found, 3))["mt_bench"] == 16
    assert found.path(found.prompt_files[0]) == Path("/srv/p/q.jsonl")
    assert spec.identity(found)["prompt_files"] == [{"name": "mt_bench", "limit": 0}]


def test_forecast_counts_server_starts_and_tokens() -> None:
    planning = {"decode_tok_s": 400.0, "server_start_s": 30.0}
    one = forecast.forecast(settings([HEAD], rounds=1), 3, planning)
    two = forecast.forecast(settings([HEAD], rounds=2), 3, planning)
    assert two["seconds"] == pytest.approx(2 * one["seconds"], abs=0.2)
    # 2 starts; 4 x 64 tokens at 17 % of the full rate and 16 x 64 at 17 % + 7/31 of the rest, on either server
    single, eight = 256 / 68.0, 1024 / (400 * (0.17 + 0.83 * 7 / 31))
    assert one["seconds"] == pytest.approx(2 * (30 + single + eight), abs=0.2)
    assert "2 server starts, 40 requests" in one["basis"]

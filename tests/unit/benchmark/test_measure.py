"""One cell's sample: figures from the load and the counters, and what makes it doubtful."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eyrie.benchmark import measure, prompts
from eyrie.benchmark.cells import Cell
from eyrie.core.errors import EyrieError
from eyrie.serve import metrics

CELL = Cell("heldout", 4, 0.0, "natural", 32, 8)


def counters(**values: float) -> dict[str, float]:
    names = {
        "success": 'vllm:request_success_total{finished_reason="stop"}',
        "length": 'vllm:request_success_total{finished_reason="length"}',
        "queue": "vllm:request_queue_time_seconds_sum{}",
        "latency": "vllm:e2e_request_latency_seconds_sum{}",
        "preempted": "vllm:num_preemptions_total{}",
        "drafts": 'vllm:spec_decode_num_drafts_total{engine="0"}',
        "drafted": 'vllm:spec_decode_num_draft_tokens_total{engine="0"}',
        "accepted": 'vllm:spec_decode_num_accepted_tokens_total{engine="0"}',
        "first": 'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"}',
        "second": 'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"}',
    }
    return {names[key]: value for key, value in values.items()}


def result(**changes: Any) -> dict[str, Any]:
    latency = {f"{part}_{name}_ms": 10.0 for part in ("mean", "p50", "p99") for name in ("ttft", "tpot", "e2el")}
    value = {
        "duration": 2.0,
        "completed": 8,
        "total_output_tokens": 240,
        "total_input_tokens": 400,
        "output_throughput": 120.0,
        "output_lens": [30] * 8,
        "latencies": [1.0] * 8,
        "chunks": [20] * 8,
        "digests": ["a"] * 8,
        "errors": [""] * 8,
        **latency,
    }
    return {**value, **changes}


BEFORE = counters(
    success=2, length=1, queue=0.5, latency=9.0, preempted=3, drafts=5, drafted=15, accepted=6, first=5, second=1
)
AFTER = counters(
    success=6, length=5, queue=0.6, latency=17.0, preempted=3, drafts=157, drafted=471, accepted=94, first=75, second=19
)


def sample(run: dict[str, Any], cell: Cell = CELL) -> dict[str, Any]:
    return measure.sample(run, cell, metrics.acceptance(run["before"], run["after"]))


def run_of(**changes: Any) -> dict[str, Any]:
    after = changes.pop("after", AFTER)
    repeated, foreign = changes.pop("repeated", False), changes.pop("foreign", 0.02)
    return {"result": result(**changes), "before": BEFORE, "after": after, "repeated": repeated, "foreign": foreign}


def test_figures_come_from_differences() -> None:
    found = sample(run_of())
    assert found["drafts"] == 152
    assert found["accepted"] == 88
    assert found["per_position"] == pytest.approx([70 / 152, 18 / 152])
    assert found["tokens_per_step"] == pytest.approx(240 / 152)
    assert found["tokens_per_message"] == pytest.approx(29 / 19)
    assert found["in_flight"] == pytest.approx(4.0)
    assert found["queue_share"] == pytest.approx(0.1 / 8.0)
    assert found["flags"] == []


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"after": {**AFTER, **counters(queue=2.5)}}, "capacity-limited"),
        ({"after": {**AFTER, **counters(preempted=4)}}, "capacity-limited"),
        ({"after": {**AFTER, **counters(success=7)}}, "other traffic"),
        ({"latencies": [0.5] * 8}, "under-filled"),
        ({"past_end": 60}, "past the end"),
        ({"repeated": True}, "prompts repeat"),
        ({"foreign": 0.3}, "busy machine"),
    ],
)
def test_doubtful_cells_are_marked(changes: dict[str, Any], flag: str) -> None:
    assert sample(run_of(**changes))["flags"] == [flag]
    assert flag in measure.FLAGS


def test_failed_requests_are_counted_by_their_last_line() -> None:
    trace = "Traceback (most recent call last):\n  ...\naiohttp.ServerDisconnectedError: Server disconnected\n"
    found = sample(run_of(completed=6, errors=["", trace, trace, *[""] * 5], output_lens=[30] * 6 + [0, 0]))
    assert found["failed"] == {"aiohttp.ServerDisconnectedError: Server disconnected": 2}
    assert "failed requests" in found["flags"]


def test_a_cell_without_an_answer_is_an_error_that_says_why() -> None:
    with pytest.raises(EyrieError, match=r"Connection refused \(8x\)") as caught:
        sample(run_of(completed=0, total_output_tokens=0, errors=["OSError: Connection refused"] * 8))
    assert caught.value.code == "cell-empty"


def test_a_restarted_server_is_an_error() -> None:
    with pytest.raises(EyrieError, match="restarted"):
        sample(run_of(after=counters(success=8, drafts=2, drafted=6, accepted=1)))


class Recorded:
    """Stands for the generator: remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self.requests.append(request)
        return result()


def bench(tmp_path: Path, scrapes: list[dict[str, float]]) -> tuple[measure.Bench, Recorded]:
    recorded, found = Recorded(), prompts.PromptSet("heldout", "eval.parquet")
    prompts.take(found, [{"text": f"p{n}", "tokens": 3} for n in range(8)], 8, 100)
    given = measure.Bench(
        recorded, {"heldout": found}, tmp_path, Path("/model"), False, [2], 7, 10.0, lambda url: scrapes.pop(0)
    )  # type: ignore[arg-type]
    return given, recorded


def test_metrics_are_read_again_until_all_requests_are_booked(tmp_path: Path) -> None:
    late = {**AFTER, **counters(success=4)}
    given, _ = bench(tmp_path, [BEFORE, late, AFTER])
    assert given.run("http://127.0.0.1:1", "m", CELL, "salt")["after"] is AFTER


@pytest.mark.parametrize(
    ("cell", "present", "absent"),
    [
        (
            CELL,
            ["--max-concurrency 4", "--num-prompts 8", "--custom-output-len 32", "--temperature 0"],
            ["--ignore-eos"],
        ),
        (Cell("heldout", 1, 1.0, "fixed", 16, 4), ["--ignore-eos", "--temperature 1"], []),
    ],
)
def test_the_command_line_is_that_of_vllm_bench_serve(
    tmp_path: Path, cell: Cell, present: list[str], absent: list[str]
) -> None:
    given, recorded = bench(tmp_path, [BEFORE, AFTER])
    given.run("http://127.0.0.1:1", "m", cell, "salt 1")
    words = recorded.requests[0]["argv"]
    text = " ".join(words)
    assert all(part in text for part in ["--dataset-name custom", "--skip-chat-template", *present])
    assert not any(part in text for part in absent)
    body = json.loads(words[words.index("--extra-body") + 1])
    assert body["cache_salt"] == "salt 1"
    assert body["add_special_tokens"] is False
    assert ("seed" in body) == (cell.temperature > 0)
    assert recorded.requests[0]["eos"] == ([2] if cell.end == "fixed" else [])

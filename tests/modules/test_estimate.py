"""Forecasts from settings alone: bytes by the shapes, seconds by whichever of GPUs and disk is slower, a price."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible.module_utils.eyrie.estimate import estimate, states_bytes, token_bytes
from ansible.module_utils.eyrie.text import plan_lines

SPEC: dict[str, Any] = {
    "target": {"hidden_size": 7168, "aux_layers": [2, 30, 58]},
    "stages": {"dataset": {"samples": 1000}, "hidden_states": {"storage": "fp8"}, "draft": {"epochs": 3}},
    "planning": {
        "prompt_tokens": 400.0,
        "answer_tokens": 1900.0,
        "prefill_tok_s": 7300.0,
        "train_tok_s": 57000.0,
        "disk_bytes_s": 1e9,
        "server_start_s": 900.0,
    },
}
TOKENS = 1000 * 2300


def spec(**planning: float) -> dict[str, Any]:
    made = copy.deepcopy(SPEC)
    made["planning"].update(planning)
    return made


def test_a_tokens_states_by_the_shapes() -> None:
    assert token_bytes(7168, 4) == 57_344
    assert token_bytes(7168, 4, "fp8") == 28_672 + 16
    assert states_bytes(2, 1, 7168, 4) == 2 * (57_344 + 8) + 200


@pytest.mark.parametrize(
    ("disk", "slower"),
    [
        (1e9, TOKENS / 7300),  # 419 MB/s at most: the GPUs are slower
        (1e8, (TOKENS * 28_696 + 200_000) / 1e8),
    ],
)
def test_a_capture_waits_for_gpus_or_disk(disk: float, slower: float) -> None:
    assert estimate("hidden_states", spec(disk_bytes_s=disk))["seconds"] == pytest.approx(900 + slower, rel=1e-3)


@pytest.mark.parametrize(
    ("disk", "each"),
    [
        (7e9, TOKENS / 57000),
        (1e9, (TOKENS * 28_696 + 200_000) / 1e9),  # every epoch reads every state
    ],
)
def test_an_epoch_waits_for_gpus_or_disk(disk: float, each: float) -> None:
    assert estimate("draft", spec(disk_bytes_s=disk))["seconds"] == pytest.approx(15 + 3 * each, rel=1e-3)


def test_a_window_bounds_the_bytes_and_not_the_time() -> None:
    made = spec(disk_bytes_s=1e8)
    made["stages"]["hidden_states"] = {"storage": "window", "window_bytes": 10**9, "window_dtype": "bf16"}
    found = estimate("hidden_states", made)
    assert found["bytes"] == 10**9
    assert found["seconds"] > TOKENS * 57_344 / 1e8


def test_a_plan_names_its_cost_where_the_host_has_a_price() -> None:
    plan = {"stage": "draft", "up_to_date": False, "status": "absent", "gates": [], "differences": []}
    plan["forecast"] = {"bytes": 1, "seconds": 7200}
    assert "costs 48.00 at 24.00 an hour" in plan_lines([plan], price=24.0)[-1]
    assert "costs" not in "".join(plan_lines([plan]))

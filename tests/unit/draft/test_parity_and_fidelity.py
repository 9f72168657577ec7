"""Predicted against served, and fp8 against bf16: a gap has a name and causes."""

import json

import pytest

from eyrie.core.errors import GateError
from eyrie.draft import fidelity, parity, view
from eyrie.draft.evaluate import evaluate
from eyrie.draft.view import Sample


@pytest.mark.parametrize(
    ("predicted", "served", "untrained", "code"),
    [
        (1.83, 1.75, 1.0, ""),
        (1.83, 1.48, 1.0, ""),
        (2.80, 1.90, 1.0, "parity-gap"),
        (2.80, 1.00, 1.0, "served-like-untrained"),
        (2.80, 1.01, 1.006, "served-like-untrained"),
        (1.05, 1.00, 1.0, ""),
        (1.50, 1.90, 1.0, ""),
    ],
)
def test_a_gap_beyond_the_bound_is_named(predicted, served, untrained, code):
    found = parity.check(predicted, served, 0.6, 3, 3, untrained)
    assert (found["code"], found["ok"]) == (code, not code)
    assert bool(found["causes"]) == bool(code)
    assert found["gap"] == pytest.approx(predicted - served, abs=1e-4)


def test_more_draft_tokens_than_training_steps_are_among_the_causes_only_where_it_is_so():
    assert not any("num_speculative_tokens" in cause for cause in parity.check(3.0, 1.5, 0.6, 3, 3)["causes"])
    assert any("num_speculative_tokens" in cause for cause in parity.check(3.0, 1.5, 0.6, 3, 5)["causes"])


def test_the_prediction_is_for_as_many_tokens_as_are_drafted():
    assert parity.predicted_for([0.5, 0.25, 0.1], 2) == 1.75
    assert parity.predicted_for([0.5, 0.25, 0.1], 5) == pytest.approx(1.85)


def test_what_fp8_is_compared_on_is_held_out():
    samples = [Sample(row, f"c{row // 2}", 10, 5) for row in range(40)]
    train, val = view.split(samples, 0.1, 3, frozenset({0, 17}))
    held = {sample.conversation for sample in val}
    assert {"c0", "c8"} <= held
    assert len(held) == 2
    assert not {sample.row for sample in train} & {0, 1, 16, 17}


@pytest.fixture
def draft(tiny, tmp_path):
    """An untrained draft of the tiny target, as speculators builds and saves it."""
    import numpy as np
    import torch
    from speculators.models.eagle3 import Eagle3DraftModel
    from speculators.train.cli import create_transformer_layer_config

    torch.manual_seed(1)
    decoder = create_transformer_layer_config(str(tiny.target), 1, "llama", "silu", 2048, [])
    model = Eagle3DraftModel.from_training_args(
        decoder,
        t2d=torch.from_numpy(np.load(tiny.tokens / "vocab/t2d.npy")),
        d2t=torch.from_numpy(np.load(tiny.tokens / "vocab/d2t.npy")),
        draft_vocab_size=48,
        norm_before_residual=True,
        norm_before_fc=True,
        norm_output=True,
        target_layer_ids=[2, 4, 5],
        verifier_name_or_path=str(tiny.target),
        ttt_steps=3,
        draft_attn_impl="eager",
    )
    model.save_pretrained(tmp_path / "draft")
    return tmp_path / "draft"


def samples_of(tiny, count=4):
    lines = [json.loads(line) for line in (tiny.out / "manifest.jsonl").read_text().splitlines()][:count]
    return [
        {
            "ids": tiny.rows[line["row"]][1],
            "mask": tiny.rows[line["row"]][2],
            "file": str(tiny.out / f"states/hs_{line['row']}.safetensors"),
        }
        for line in lines
    ]


def test_a_draft_is_evaluated_on_both_forms_of_the_same_samples(tiny, draft, tmp_path):
    import shutil

    from eyrie.hidden_states import convert

    exact, quantized = samples_of(tiny), []
    for number, sample in enumerate(exact):
        path = tmp_path / f"{number}.safetensors"
        shutil.copy(sample["file"], path)
        convert.to_fp8(path)
        quantized.append({**sample, "file": str(path)})
    found = evaluate(
        {
            "checkpoint": str(draft),
            "verifier": str(tiny.target),
            "ttt_steps": 3,
            "threads": 1,
            "sets": {"bf16": exact, "fp8": quantized},
        }
    )
    for figures in found.values():
        assert len(figures["full_acc"]) == 3
        assert figures["full_acc"] == sorted(figures["full_acc"], reverse=True)
        assert figures["predicted"] == pytest.approx(1 + sum(figures["full_acc"]))
    assert abs(found["bf16"]["predicted"] - found["fp8"]["predicted"]) < 0.2


@pytest.mark.parametrize(("fp8", "refused"), [(1.84, False), (1.70, True)])
def test_too_much_acceptance_lost_to_fp8_is_refused(house, monkeypatch, fp8, refused):
    asked = []

    def answer(request):
        asked.append(request)
        return {"bf16": {"predicted": 1.85, "full_acc": []}, "fp8": {"predicted": fp8, "full_acc": []}}

    monkeypatch.setattr(fidelity, "run", answer)
    exact = {0: house.tmp / "a", 3: house.tmp / "b"}
    rows = {0: "x", 3: "y"}
    if refused:
        with pytest.raises(GateError, match=r"cost 0\.150 of predicted acceptance") as caught:
            fidelity.check(house.context(), rows, exact, 1)
        assert caught.value.code == "fp8-acceptance"
    else:
        assert fidelity.check(house.context(), rows, exact, 1)["lost"] == pytest.approx(0.01)
    assert [sample["file"] for sample in asked[0]["sets"]["fp8"]] == ["x", "y"]
    assert asked[0]["sets"]["bf16"][1]["ids"] == house.tiny.rows[3][1]

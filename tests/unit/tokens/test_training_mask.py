"""What the trainer sees of our masks: borders after its shift, the same loss whatever is padded, no empty mask unseen.

Three faults of the field, each with its kind: a mask that is shifted otherwise than ids and targets (the first token of
an answer is never learnt), a loss that is divided by all positions (it falls when padding grows), and a processor that
loses the mask as soon as content is not plain text.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "responses"))
import small_run
from harness import said, user

from eyrie.core import runner
from eyrie.core.errors import EyrieError
from eyrie.core.pipeline import Pipeline
from eyrie.tokens import arrow, build
from eyrie.tokens.settings import Settings
from eyrie.tokens.template import Template
from eyrie.tokens.tokenizer import Tokenizer
from eyrie.tokens.verify import data_rows

pytestmark = pytest.mark.node


# borders


def batch_of(mask: list[int]) -> dict[str, Any]:
    """A row whose ids and states are their own position: what belongs together can be read off after the shift."""
    import torch

    places = torch.arange(len(mask))
    return {
        "input_ids": places,
        "hidden_states": places.reshape(-1, 1).float(),
        "verifier_last_hidden_states": places.reshape(-1, 1).float(),
        "loss_mask": torch.tensor(mask, dtype=torch.bool),
        "lengths": torch.tensor([len(mask)]),
        "position_ids": places,
    }


def learnt(mask: list[int], steps: int) -> list[set[int]]:
    """Per draft step, the positions whose next token the loss looks at, by speculators' own shift and alignment."""
    import torch
    from speculators.models.eagle3.data import shift_batch
    from speculators.models.eagle3.metrics import align_for_step

    shifted = shift_batch(batch_of(mask))
    assert torch.equal(shifted["input_ids"], shifted["verifier_last_hidden_states"].flatten().long())
    assert torch.equal(shifted["input_ids"] - 1, shifted["hidden_states"].flatten().long())
    targets = shifted["verifier_last_hidden_states"].reshape(1, -1, 1)
    loss_mask = shifted["loss_mask"].reshape(1, -1)
    found = []
    for step in range(steps):
        logits, wanted, seen, _ = align_for_step(targets, targets, loss_mask, None, step)
        assert logits.shape == wanted.shape
        # the draft that starts at a position predicts, `step` tokens on, what follows the target's own token there
        assert torch.equal(wanted - logits, torch.full_like(wanted, step))
        found.append({int(place) for place in wanted[seen.bool()].flatten()})
    return found


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=4), st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_every_answered_token_is_drafted_from_and_no_other(turns: list[tuple[int, int]], tail: int) -> None:
    """The first token of an answer is the target's own (prefill); from it on, the draft continues each token."""
    spans, at = [], 0
    for prompt, answer in turns:
        spans += [at + prompt, at + prompt + answer]
        at += prompt + answer
    mask = build.mask_of(tuple(spans), at + tail).tolist()
    answered = {place for start, end in zip(spans[::2], spans[1::2], strict=True) for place in range(start, end)}
    for step, places in enumerate(learnt(mask, 3)):
        assert places == {place for place in answered if place >= 1 + step}
    first = spans[0]
    assert first in learnt(mask, 1)[0]
    assert first - 1 not in learnt(mask, 1)[0]


@pytest.mark.parametrize(
    ("conversation", "answers"),
    [
        ([user("Q"), said("A")], ["A<|e|>"]),
        ([user("Q"), said("A"), user("Q2"), said("B")], ["A<|e|>", "B<|e|>"]),
        ([{"role": "system", "content": "S"}, user("Q"), said("AB")], ["AB<|e|>"]),
    ],
)
def test_the_written_rows_keep_both_borders(tmp_path: Path, conversation: list[Any], answers: list[str]) -> None:
    """From the conversation to what `datasets` hands the trainer: the first and the last token of each answer count."""
    from datasets import load_from_disk

    model = toy.make_model(tmp_path / "model")
    tokenizer, template = Tokenizer.load(model), Template.load(model)
    table = toy.table_of(tmp_path / "responses.parquet", toy.rows_of(conversation))
    turns = build.merge(build.rendered_turns(table, template, tokenizer))
    rows, _ = build.collect(turns, Settings(), 300, tmp_path / "ids")
    ids = np.fromfile(rows.path, dtype="<i4")
    with arrow.DatasetWriter(tmp_path / "data", len(ids)) as writer:
        for row, length in enumerate(rows.lengths):
            start = rows.offsets[row]
            writer.add(ids[start : start + length], build.mask_of(rows.spans[row], length))
    item = load_from_disk(str(tmp_path / "data"))[len(rows) - 1]
    tokens, mask = item["input_ids"].tolist(), item["loss_mask"].tolist()
    edges = np.flatnonzero(np.diff(mask, prepend=0, append=0)).reshape(-1, 2).tolist()
    assert [tokenizer.decode(tokens[start:end]) for start, end in edges] == answers
    [places] = learnt(mask, 1)
    for start, end in edges:
        assert {start, end - 1} <= places
        assert start - 1 not in places
        assert end not in places


# padding


@pytest.mark.parametrize("kind", ["kl_div", "ce"])
@pytest.mark.parametrize("padding", [0, 1, 7, 100])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_the_loss_does_not_depend_on_how_much_is_padded(kind: str, padding: int, step: int) -> None:
    import torch
    from speculators.losses import resolve_loss_config
    from speculators.models.eagle3.metrics import compute_metrics

    torch.manual_seed(0)
    size, vocab = 12, 9
    logits, targets = torch.randn(1, size, vocab), torch.randn(1, size, vocab)
    mask = torch.tensor([[0] * 4 + [1] * 6 + [0] * 2])
    junk = 50 * torch.randn(2, 1, padding, vocab)
    config = resolve_loss_config(kind, "eager")

    def loss(extra: int) -> tuple[float, float, float]:
        wide = torch.cat([logits, junk[0][:, :extra]], dim=1).requires_grad_()
        goal = torch.cat([targets, junk[1][:, :extra]], dim=1)
        seen = torch.cat([mask, torch.zeros(1, extra, dtype=mask.dtype)], dim=1)
        value, figures = compute_metrics(wide, goal, seen, seen.bool().clone(), step, 1.0, config)
        value.backward()
        grad = wide.grad
        assert grad is not None
        share = figures[f"full_acc_{step}_sum"] / figures[f"full_acc_{step}_total"]
        return float(value.detach()), float(share), float(grad[:, size:].abs().sum())

    alone, padded = loss(0), loss(padding)
    assert padded == pytest.approx(alone, rel=1e-5)
    assert padded[2] == 0.0  # nothing is learnt from padding


def test_more_context_in_a_row_changes_no_loss_either() -> None:
    """Divided by all positions, the same answer would count less behind a longer question."""
    import torch
    from speculators.losses import resolve_loss_config
    from speculators.models.eagle3.metrics import compute_metrics

    torch.manual_seed(1)
    logits, targets = torch.randn(1, 6, 9), torch.randn(1, 6, 9)
    config = resolve_loss_config("kl_div", "eager")

    def loss(context: int) -> float:
        before = torch.randn(1, context, 9)
        mask = torch.tensor([[0] * context + [1] * 6])
        wide, goal = torch.cat([before, logits], dim=1), torch.cat([before.flip(1), targets], dim=1)
        return float(compute_metrics(wide, goal, mask, mask.bool().clone(), 0, 1.0, config)[0])

    assert loss(1) == pytest.approx(loss(40), rel=1e-5)


# content that is no plain text


IMAGE = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]


def go(tmp_path: Path, monkeypatch: Any, conversations: list[Any], template: str = toy.PLAIN) -> tuple[Any, Any]:
    """Both stages over conversations as they are, with masks from the template; (record, context) of tokens."""
    small_run.serve_with(monkeypatch, [])
    pipeline = Pipeline(small_run.spec(tmp_path, responses={"regenerate": False}))
    small_run.ready(pipeline, conversations, template)
    model = pipeline.context("target").out
    toy.write(model / "preprocessor_config.json", {"image_processor_type": "Qwen2VLImageProcessor"})
    toy.write(model / "processor_config.json", {"processor_class": "Qwen2_5_VLProcessor"})
    runner.run(pipeline, "responses")
    return runner.run(pipeline, "tokens"), pipeline.context("tokens")


def test_a_target_with_an_image_processor_keeps_its_masks(tmp_path: Path, monkeypatch: Any) -> None:
    """Borders come from the chat template and the tokenizer's own file: a processor has no say."""
    record, ctx = go(tmp_path, monkeypatch, [[user(f"Q{n}"), said(f"A{n}")] for n in range(4)])
    assert record["figures"]["rows"] == 4
    assert all(mask.sum() == len(f"A{n}") + 1 for n, (_, mask, _) in enumerate(data_rows(ctx.out / "data")))


def test_a_row_with_an_image_is_counted_and_the_others_keep_their_masks(tmp_path: Path, monkeypatch: Any) -> None:
    picture = [{"role": "user", "content": IMAGE}, said("A cat.")]
    strict = toy.PLAIN.replace("{{ m.content }}", "{{ m.content + '' }}")
    record, ctx = go(tmp_path, monkeypatch, [[user("Q"), said("A")], picture, [user("R"), said("B")]], strict)
    assert record["account"]["kept"] == 2
    assert sum(record["account"]["dropped"].values()) == 1
    assert all(mask.any() for _, mask, _ in data_rows(ctx.out / "data"))


def test_only_images_is_a_failure_that_says_why_not_an_empty_success(tmp_path: Path, monkeypatch: Any) -> None:
    strict = toy.PLAIN.replace("{{ m.content }}", "{{ m.content + '' }}")
    pictures = [[{"role": "user", "content": IMAGE}, said("A cat.")] for _ in range(3)]
    with pytest.raises(EyrieError) as caught:
        go(tmp_path, monkeypatch, pictures, strict)
    assert caught.value.code == "zero-kept"
    assert "template_error 3" in caught.value.why


def test_the_dataset_leaves_rows_with_images_out_by_name() -> None:
    """A draft is trained on text: such rows do not reach the stages behind the dataset at all."""
    from eyrie.dataset import canonical
    from eyrie.dataset.values import Reject

    with pytest.raises(Reject, match="multimodal"):
        canonical.build([{"role": "user", "content": IMAGE}, said("A cat.")], [])

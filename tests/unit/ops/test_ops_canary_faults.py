"""Faults are seeded into what a healthy canary leaves, one at a time, and the canary names each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import small_canary
from small_canary import Canary

from eyrie.core.errors import GateError
from eyrie.ops.canary import judge

pytestmark = pytest.mark.node
Seed = Callable[[Canary], object]

SEEDED: dict[str, tuple[Seed, str, str]] = {}


def seed(name: str, probe: str, said: str) -> Callable[[Seed], Seed]:
    """Register a fault: the probe that must name it, and words of its message."""

    def register(act: Seed) -> Seed:
        SEEDED[name] = (act, probe, said)
        return act

    return register


@seed("method EAGLE for an EAGLE3 draft", "method", "method 'eagle'")
def _(canary: Canary) -> None:
    canary.gates.append({"name": "method", "ok": False, "message": "method 'eagle' does not serve an EAGLE3 draft"})


@seed("one layer's states instead of three and the last", "states", "one layer of 32 instead of 4 x 32")
def _(canary: Canary) -> None:
    canary.write_states(lambda states: states[:, 3])


@seed("three layers without the last", "states", "3 layers, expected 4")
def _(canary: Canary) -> None:
    canary.write_states(lambda states: states[:, :3])


@seed("last layer off by one", "last-layer", "predicts only")
def _(canary: Canary) -> None:
    canary.write_states(lambda states: np.concatenate([states[:, :3], np.roll(states[:, 3:], 1, axis=0)], axis=1))


@seed("last layer is another layer", "last-layer", "predicts only")
def _(canary: Canary) -> None:
    canary.write_states(lambda states: states[:, [3, 1, 2, 0]])


@seed("one auxiliary layer twice", "states", "hold equal states")
def _(canary: Canary) -> None:
    canary.write_states(lambda states: states[:, [0, 0, 2, 3]])


@seed("auxiliary ids shifted in serving", "layer-ids", "shifted by a constant")
def _(canary: Canary) -> None:
    canary.draft_config["eagle_aux_hidden_state_layer_ids"] = [3, 5, 6]
    canary.write_draft()


@seed("captured with other ids than declared", "layer-ids", "auxiliary layer ids differ")
def _(canary: Canary) -> None:
    canary.write_states(layers=[1, 3, 4, 8])


@seed("last layer named n-1", "layer-ids", "the last captured layer is 7")
def _(canary: Canary) -> None:
    canary.write_states(layers=[2, 4, 5, 7])


@seed("states of other tokens", "states", "token ids differ")
def _(canary: Canary) -> None:
    canary.write_states(ids_of=lambda ids: [*ids[:-1], 9])


@seed("states shorter than their tokens", "states", "prefix caching or chunked prefill on")
def _(canary: Canary) -> None:
    canary.write_states(lambda states: states[4:])


@seed("NaN in the states", "states", "not finite")
def _(canary: Canary) -> None:
    def spoil(states: np.ndarray) -> np.ndarray:
        states[3, 1, 5] = np.nan
        return states

    canary.write_states(spoil)


@seed("server renders another template", "template", "differs from the template's")
def _(canary: Canary) -> None:
    canary.write_tokenizer(small_canary.TEMPLATE.replace("assistant", "w60"))


@seed("begin-of-text twice", "template", "two begin-of-text tokens")
def _(canary: Canary) -> None:
    for row in canary.rows:
        row["prompt"] = [1, 1, *row["prompt"]]
    rewrite(canary)


@seed("tokenizer without a template", "template", "no chat template")
def _(canary: Canary) -> None:
    canary.write_tokenizer("")


@seed("mask is all zero", "mask", "no token is supervised")
def _(canary: Canary) -> None:
    canary.write_tokens(lambda row: [0] * len(canary.ids(row)))


@seed("mask covers the user's text", "mask", "text that the model did not say")
def _(canary: Canary) -> None:
    canary.write_tokens(lambda row: [1] * len(canary.ids(row)))


@seed("mask shifted by one", "mask", "less than the answer")
def _(canary: Canary) -> None:
    canary.write_tokens(lambda row: [0] * (len(row["prompt"]) + 1) + [1] * (len(row["output"]) - 1))


@seed("turns end with another token than eos", "end-of-turn", "no supervised end token")
def _(canary: Canary) -> None:
    canary.config["eos_token_id"] = 5
    for row in canary.rows:
        row["output"] = [*row["output"][:-1], 6]
    canary.write_target()
    rewrite(canary)


@seed("every answer is the same", "answers", "different answers to")
def _(canary: Canary) -> None:
    for row in canary.rows:
        row["output"] = canary.rows[0]["output"]
    rewrite(canary)


@seed("answers repeat one token", "answers", "repeat one or two tokens")
def _(canary: Canary) -> None:
    for number, row in enumerate(canary.rows):
        row["output"] = [6 + number] * 10
    rewrite(canary)


@seed("d2t holds absolute ids", "vocabulary", "absolute ids")
def _(canary: Canary) -> None:
    offsets = canary.d2t()
    absolute = offsets + np.arange(len(offsets))
    t2d = np.zeros(small_canary.VOCAB, dtype=bool)
    t2d[absolute] = True
    canary.write_vocab(absolute, t2d)


@seed("draft vocabulary is the lowest ids", "vocabulary", "all offsets are zero")
def _(canary: Canary) -> None:
    canary.write_vocab(np.zeros(small_canary.DRAFT_VOCAB, dtype=np.int64))


@seed("d2t and t2d of different runs", "vocabulary", "contradict")
def _(canary: Canary) -> None:
    t2d = np.zeros(small_canary.VOCAB, dtype=bool)
    t2d[:39] = True
    t2d[50] = True
    canary.write_vocab(canary.d2t(), t2d)


@seed("end token outside the draft vocabulary", "vocabulary", "could never end an answer")
def _(canary: Canary) -> None:
    chosen = np.array([0, 1, *range(3, 33), *range(48, 56)], dtype=np.int64)
    canary.write_vocab(chosen - np.arange(len(chosen)))


@seed("draft built with another vocabulary", "vocabulary", "another vocabulary")
def _(canary: Canary) -> None:
    chosen = np.array([*range(33), *range(49, 56)], dtype=np.int64)
    canary.write_vocab(chosen - np.arange(len(chosen)))


@seed("draft without a head", "draft", "lm_head.weight is missing")
def _(canary: Canary) -> None:
    del canary.draft_tensors["lm_head.weight"]
    canary.write_draft()


@seed("draft with random embeddings", "draft", "embeddings are not the target's")
def _(canary: Canary) -> None:
    noise = canary.random.standard_normal((small_canary.VOCAB, small_canary.HIDDEN))
    canary.draft_tensors["embed_tokens.weight"] = ("BF16", small_canary.bf16(noise))
    canary.write_draft()


@seed("draft of EAGLE-1", "draft", "one layer instead of 3")
def _(canary: Canary) -> None:
    canary.draft_tensors["fc.weight"] = ("BF16", np.zeros((32, 32), dtype=np.uint16))
    canary.write_draft()


@seed("draft with too few positions", "draft", "max_position_embeddings 256 is below")
def _(canary: Canary) -> None:
    canary.draft_config["transformer_layer_config"]["max_position_embeddings"] = 256
    canary.write_draft()


@seed("draft of another architecture", "draft", "does not take this draft")
def _(canary: Canary) -> None:
    canary.draft_config["transformer_layer_config"]["model_type"] = "mamba"
    canary.write_draft()


@seed("vLLM moved between capture and serving", "versions", "different versions")
def _(canary: Canary) -> None:
    canary.tools["benchmark"]["vllm"] = "0.33.0"


@seed("speculators moved after the canary", "versions", "is installed, the canary ran with")
def _(canary: Canary) -> None:
    canary.installed["speculators"] = "0.9.1"


@seed("loss is zero", "training", "the loss is zero")
def _(canary: Canary) -> None:
    canary.write_metrics([0.0] * 40, 1.0)


@seed("loss is NaN", "training", "not finite")
def _(canary: Canary) -> None:
    canary.write_metrics([2.0, float("nan")] * 20, 1.0)


@seed("nothing is learnt", "training", "should be learnt by heart")
def _(canary: Canary) -> None:
    canary.write_metrics([2.0] * 40, 2.6)


@seed("nothing is accepted", "acceptance", "served acceptance 1.00 is below")
def _(canary: Canary) -> None:
    canary.write_results(1.0, 1.0)


@seed("serving is far below training", "acceptance", "far below the predicted")
def _(canary: Canary) -> None:
    canary.write_results(1.6, 1.0)


@seed("speculation was not in force", "acceptance", "the server drafted nothing")
def _(canary: Canary) -> None:
    canary.write_results(0.0, 1.0, drafts=0)


@seed("the control is trained", "acceptance", "it is not untrained")
def _(canary: Canary) -> None:
    canary.write_results(2.8, 2.4)


@seed("a stage did not finish", "stages", "the canary's draft is failed")
def _(canary: Canary) -> None:
    canary.status["draft"] = "failed"


@seed("versions moved since a stage ran", "stages", "absent since it ran: tools.vllm 0.32.0 -> 0.33.0")
def _(canary: Canary) -> None:
    canary.status["draft"] = "absent"
    canary.moved["draft"] = "tools.vllm 0.32.0 -> 0.33.0"


@seed("a table is torn", "template", "could not be checked")
def _(canary: Canary) -> None:
    path = canary.folders["responses"] / "responses.parquet"
    path.write_bytes(path.read_bytes()[:-20])


def rewrite(canary: Canary) -> None:
    """Everything that follows from the rows."""
    canary.write_responses()
    canary.write_tokens()
    canary.write_states()


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    return Canary(tmp_path)


def test_healthy_canary_has_no_fault(canary: Canary) -> None:
    verdict = judge.judge(canary.look())
    assert verdict["faults"] == []
    assert verdict["ok"]
    assert verdict["acceptance"]["trained"] == 2.8
    judge.refuse(verdict)


def test_there_are_at_least_twelve_seeded_faults() -> None:
    assert len(SEEDED) >= 12


@pytest.mark.parametrize("name", sorted(SEEDED))
def test_seeded_fault_is_named(canary: Canary, name: str) -> None:
    act, probe, said = SEEDED[name]
    act(canary)
    verdict = judge.judge(canary.look())
    assert not verdict["ok"]
    named = [fault for fault in verdict["faults"] if fault["probe"] == probe]
    assert said in " ".join(fault["what"] for fault in named), verdict["faults"]
    assert all(fault["todo"] for fault in named)
    with pytest.raises(GateError) as caught:
        judge.refuse(verdict)
    assert f"[{probe}]" in str(caught.value)
    assert "Nothing of the run itself was started" in str(caught.value)

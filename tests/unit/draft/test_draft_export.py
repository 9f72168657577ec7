"""What the server will ask of a draft, asked before it is put up: layers, widths, vocabulary, keys, versions."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from eyrie.core.errors import GateError
from eyrie.draft import export

HIDDEN, VOCAB, DRAFT = 16, 40, 24


def config(**changes):
    decoder = {
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": 32, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 4, "num_hidden_layers": 1, "vocab_size": VOCAB,
        "max_position_embeddings": 512,
    }  # fmt: skip
    decoder.update(changes.pop("decoder", {}))
    base = {
        "speculators_model_type": "eagle3",
        "draft_vocab_size": DRAFT,
        "eagle_aux_hidden_state_layer_ids": [2, 6, 9],
        "norm_before_residual": True,
        "norm_before_fc": True,
        "fc_norm": False,
        "norm_output": True,
        "dtype": "float32",
        "transformer_layer_config": decoder,
        "speculators_config": {"verifier": {"name_or_path": "somewhere/else"}},
    }
    return {**base, **changes}


def tensors(**changes):
    made = {name: torch.randn(shape) for name, shape in export.expected_tensors(config(), 3).items()}
    kept = torch.arange(10, 10 + DRAFT)
    made["d2t"] = kept - torch.arange(DRAFT)
    made["t2d"] = torch.zeros(VOCAB, dtype=torch.bool)
    made["t2d"][kept] = True
    made.update(changes)
    return {name: tensor for name, tensor in made.items() if tensor is not None}


@pytest.fixture
def draft(tmp_path):
    def make(weights=None, **changes):
        shutil.rmtree(tmp_path / "draft", ignore_errors=True)
        (tmp_path / "draft").mkdir()
        (tmp_path / "draft/config.json").write_text(json.dumps(config(**changes)))
        save_file(tensors(**(weights or {})), tmp_path / "draft/model.safetensors")
        return tmp_path / "draft"

    return make


def check(folder, layers=(2, 6, 9), max_model_len=512):
    return export.check(folder, list(layers), HIDDEN, VOCAB, max_model_len)


def refused(folder, **options):
    with pytest.raises(GateError) as caught:
        check(folder, **options)
    assert caught.value.code == "draft-export"
    return str(caught.value)


def test_a_whole_draft_passes_and_is_described(draft):
    found = check(draft())
    assert found["architecture"] == "Eagle3LlamaForCausalLM"
    assert found["layers"] == [2, 6, 9]
    assert found["tensors"] == len(tensors())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [3, 7, 10]}, "the +1 convention"),
        (
            {"eagle_aux_hidden_state_layer_ids": [2, 6, 8]},
            "captured [2, 6, 9], trained [2, 6, 9], serving config [2, 6, 8]",
        ),
        ({"eagle_aux_hidden_state_layer_ids": None}, "none is guessed"),
        ({"speculators_model_type": "eagle"}, "the method is 'eagle3'"),
        ({"draft_vocab_size": 0}, "must lie in 1..40"),
        ({"draft_vocab_size": 41}, "must lie in 1..40"),
        ({"decoder": {"hidden_size": 8}}, "hidden_size 8, the target's is 16"),
        ({"decoder": {"vocab_size": 39}}, "vocab_size 39, the target's is 40"),
        ({"decoder": {"max_position_embeddings": 256}}, "256 is below the served max_model_len 512"),
        ({"decoder": {"model_type": "gemma"}}, "Unsupported model_type gemma"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(draft, changes, told):
    assert told in refused(draft(**changes))


@pytest.mark.parametrize(
    "name", ["fc.weight", "lm_head.weight", "embed_tokens.weight", "d2t", "t2d", "input_norm.weight"]
)
def test_a_missing_tensor_is_named(draft, name):
    """Servers fill a missing head or mapping with random or default values and say nothing."""
    assert f"tensor {name} is missing" in refused(draft({name: None}))


def test_an_eagle_1_draft_is_told_from_an_eagle_3_one(draft):
    told = refused(draft({"fc.weight": torch.randn(HIDDEN, HIDDEN)}))
    assert "an EAGLE-1 draft, method 'eagle'" in told


def test_weights_that_are_not_finite_are_refused(draft):
    bad = torch.randn(HIDDEN)
    bad[3] = float("nan")
    assert "tensor norm.weight holds values that are not finite" in refused(draft({"norm.weight": bad}))


@pytest.mark.parametrize(
    ("d2t", "told"),
    [
        (torch.arange(DRAFT), "within the vocabulary"),  # absolute ids read as offsets: 2 * i
        (torch.full((DRAFT,), -1), "within the vocabulary"),
        (torch.zeros(DRAFT, dtype=torch.long), "different target ids"),  # the identity slice
        (torch.arange(10, 10 + DRAFT).flip(0) - torch.arange(DRAFT), "ascending"),
    ],
    ids=["absolute", "negative", "identity", "descending"],
)
def test_vocabulary_tables_that_contradict_are_refused(draft, d2t, told):
    assert told in refused(draft({"d2t": d2t}))


def test_a_key_that_the_installed_server_ignores_is_refused(draft, monkeypatch):
    """An older translation that does not know norm_output serves a draft that drifts, without a word."""

    def update(config_dict, pre_trained_config):
        for name in ("draft_vocab_size", "norm_before_residual", "norm_before_fc", "eagle_aux_hidden_state_layer_ids"):
            pre_trained_config[name] = config_dict[name]
        pre_trained_config["architectures"] = ["Eagle3LlamaForCausalLM"]

    older = SimpleNamespace(SUPPORTED_SPECULATORS_TYPES={"eagle3": update})
    monkeypatch.setattr(export, "_translation", lambda: older)
    assert "ignores norm_output=True" in refused(draft())


def test_three_equal_lists_of_layers_are_no_difference():
    assert export.layers_differ([2, 18, 33], [2, 18, 33], [2, 18, 33]) == ""


def test_export_rounds_to_bf16_and_makes_the_targets_path_absolute(draft, tmp_path, monkeypatch):
    source = draft()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "target").mkdir()
    export.export(source, tmp_path / "out", Path("target"))
    made = json.loads((tmp_path / "out/config.json").read_text())
    assert made["dtype"] == "bfloat16"
    assert made["speculators_config"]["verifier"]["name_or_path"] == str(tmp_path / "target")
    kinds = {name: dtype for name, (dtype, _) in export.tensors_of(tmp_path / "out").items()}
    assert kinds["fc.weight"] == "BF16"
    assert (kinds["d2t"], kinds["t2d"]) == ("I64", "BOOL")
    check(tmp_path / "out")


def test_an_adopted_draft_points_at_this_hosts_target(draft, tmp_path):
    source = draft()
    export.point_at(source, tmp_path)
    assert json.loads((source / "config.json").read_text())["speculators_config"]["verifier"]["name_or_path"] == str(
        tmp_path
    )

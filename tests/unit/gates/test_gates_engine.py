"""What the installed vLLM reads of a draft's config, from its source."""

import pytest
from checkpoints import draft_config

from eyrie.gates import engine

SOURCE = """
@register_speculator("eagle3")
def update_eagle3(config_dict, pre_trained_config):
    pre_trained_config["draft_vocab_size"] = config_dict.get("draft_vocab_size")
    if config_dict.get("target_hidden_size") is not None:
        pre_trained_config["target_hidden_size"] = config_dict["target_hidden_size"]
    pre_trained_config["norm_before_residual"] = config_dict.get("norm_before_residual", True)
    eagle3_arch_map = {"llama": "Eagle3LlamaForCausalLM"}
    ids = config_dict["eagle_aux_hidden_state_layer_ids"]


def unrelated(config_dict):
    return config_dict["nothing"]
"""
REGISTRY = '_SPECULATIVE_DECODING_MODELS = {"Eagle3LlamaForCausalLM": ("a", "b"), "LlamaForCausalLMEagle3": ("a", "b")}'


@pytest.fixture
def known(tmp_path, monkeypatch):
    """An engine of the year before: it knows neither norm_output nor fc_norm."""
    import importlib.machinery

    root = tmp_path / "vllm"
    for name, text in (
        ("transformers_utils/configs/speculators/algos.py", SOURCE),
        ("model_executor/models/registry.py", REGISTRY),
    ):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    spec = importlib.machinery.ModuleSpec("vllm", None, is_package=True)
    spec.submodule_search_locations = [str(root)]
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(engine, "_version", lambda: "0.13.0")
    engine.installed.cache_clear()
    yield engine.installed()
    engine.installed.cache_clear()


def test_the_source_is_read(known):
    assert known.keys == {
        "eagle3": {
            "draft_vocab_size", "target_hidden_size", "norm_before_residual", "eagle_aux_hidden_state_layer_ids",
        }
    }  # fmt: skip
    assert known.bases == {"eagle3": {"llama"}}
    assert "LlamaForCausalLMEagle3" in known.architectures


def test_a_config_of_known_keys_passes(known):
    assert engine.keys(draft_config(norm_output=False, fc_norm=False), known) is None


def test_keys_that_ask_for_what_it_cannot_do_are_named(known):
    said = engine.keys(draft_config(norm_output=True, fc_norm=True), known)
    assert "vLLM 0.13.0 does not read fc_norm, norm_output" in said


def test_unknown_types_and_layers(known):
    assert "no draft of type 'eagle9'" in engine.keys(draft_config(speculators_model_type="eagle9"), known)
    assert "no eagle3 draft of 'qwen3' layers" in engine.keys(draft_config(layer={"model_type": "qwen3"}), known)


@pytest.mark.parametrize("name", ["LlamaForCausalLMEagle3", "LlamaForCausalLM", "Eagle3LlamaForCausalLM"])
def test_plain_checkpoints_of_known_classes(known, name):
    assert engine.keys({"architectures": [name]}, known) is None
    assert engine.architecture({"architectures": [name]}, known) is None


def test_a_class_that_does_not_exist_lists_those_that_do(known):
    said = engine.architecture({"architectures": ["EagleQwen2ForCausalLM"]}, known)
    assert "no draft class for EagleQwen2ForCausalLM" in said
    assert "Eagle3LlamaForCausalLM" in said


def test_without_vllm_nothing_is_claimed(monkeypatch):
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: None)
    engine.installed.cache_clear()
    assert engine.installed() is None
    engine.installed.cache_clear()


@pytest.mark.node
def test_the_pinned_vllm_is_understood():
    engine.installed.cache_clear()
    found = engine.installed()
    assert {"draft_vocab_size", "norm_output", "fc_norm"} <= found.keys["eagle3"]
    assert {"llama", "qwen3"} <= found.bases["eagle3"]
    assert "Eagle3LlamaForCausalLM" in found.architectures
    assert engine.keys(draft_config(), found) is None

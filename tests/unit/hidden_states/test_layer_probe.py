"""The probe before the bulk: a wrong server is found out before it has written anything that stays."""

import json

import pytest
import toy_states
from capture_house import ROWS

from eyrie.core.errors import EyrieError, GateError
from eyrie.hidden_states import weights


def test_the_probe_reports_agreement_and_a_rate(house):
    probe = house.run()["figures"]["probe"]
    assert probe["agreement"] == 1.0
    assert probe["tok_s"] > 0
    assert probe["samples"] == 2


def refused(house, code):
    with pytest.raises(GateError) as caught:
        house.run()
    assert caught.value.code == code
    assert house.files() == []
    assert not list(house.server.folder.glob("*.safetensors"))
    return str(caught.value)


def test_a_server_that_dies_under_the_probe_is_brought_back_once(house):
    house.on_revive = lambda: setattr(house.server, "forever", None)
    house.server.faults[tuple(ROWS[0])] = ["cut"]
    record = house.run()
    assert record["account"]["kept"] == len(ROWS)
    assert len(house.revived) == 1


def test_a_server_that_dies_under_every_probe_ends_the_run(house):
    house.server.faults[tuple(ROWS[0])] = ["cut"] * 50
    with pytest.raises(EyrieError) as caught:
        house.run()
    assert caught.value.code == "server-gone"
    assert len(house.revived) == 1


def test_a_server_with_one_layer_less_is_refused(house):
    house.server.layers = 3
    assert "3 layers, expected 4 = 3 aux + last" in refused(house, "probe-layers")


def test_a_last_state_that_does_not_predict_the_served_token_is_refused(house, monkeypatch):
    monkeypatch.setattr(toy_states, "served_token", lambda folder, last: 3)
    assert "does not predict the served token" in refused(house, "probe-last-layer")


def test_layers_in_the_wrong_order_are_named(house, monkeypatch):
    """The last layer handed out first: another slot predicts the served tokens."""
    straight = toy_states.states

    def turned(ids, layers=4, hidden=toy_states.HIDDEN):
        return straight(ids, layers, hidden)[:, ::-1]

    served = toy_states.served_token
    monkeypatch.setattr(toy_states, "states", turned)
    monkeypatch.setattr(
        toy_states, "served_token", lambda folder, last: served(folder, _last_of(straight, last, house))
    )
    told = refused(house, "probe-last-layer")
    assert "Slot 0 (declared as layer 1) does: the order is wrong." in told


def _last_of(straight, turned_last, house):
    """The true last state whose reversed form the server wrote (slot 0 of what it wrote)."""
    for ids in map(list, house.server.requests):
        values = straight(ids)
        if (values[-1, 0] == turned_last).all():
            return values[-1, -1]
    raise AssertionError("not asked for")


def test_prefix_caching_is_found_by_the_second_request(house):
    """Alone the states are whole; asked for again, the server writes only what was not cached."""
    for ids in map(tuple, ROWS):
        house.server.faults[ids] = ["", "short"]
    assert "prefix caching or chunked prefill on?" in refused(house, "probe-length")


def test_states_that_depend_on_the_batch_are_refused(house, monkeypatch):
    straight, calls = toy_states.states, {}

    def drifting(ids, layers=4, hidden=toy_states.HIDDEN):
        calls[tuple(ids)] = calls.get(tuple(ids), 0) + 1
        return straight(ids, layers, hidden) * (1.0 + 0.5 * (calls[tuple(ids)] > 2))

    monkeypatch.setattr(toy_states, "states", drifting)
    assert "other states in a batch than alone" in refused(house, "probe-batch")


def test_another_model_is_refused_by_name(house):
    house.server.model = "someone-elses"
    assert "serves ['someone-elses'], not 'toy'" in refused(house, "endpoint-wrong-model")


@pytest.mark.parametrize("nested", [False, True])
def test_sizes_are_read_from_where_a_config_keeps_them(nested):
    text = {"hidden_size": 64, "num_hidden_layers": 12, "vocab_size": 500}
    config = {"hidden_size": 999, "text_config": text} if nested else text
    found = weights.dimensions(config)
    assert (found.hidden_size, found.num_hidden_layers, found.vocab_size) == (64, 12, 500)
    assert weights.default_aux_layers(found.num_hidden_layers) == [2, 6, 9]


@pytest.mark.parametrize("layers", [4, 5, 6])
def test_usual_layers_that_collide_are_not_used(layers):
    from eyrie.core.errors import EyrieError

    with pytest.raises(EyrieError, match="collide"):
        weights.default_aux_layers(layers)


@pytest.mark.parametrize(
    ("ids", "fits"),
    [
        ([2, 6, 9], True),
        ([2, 6, 13], False),
        ([-1, 6, 9], False),
        ([2, 6, 6], False),
        ([2, 6, 12], False),
        ([9, 6, 2], False),
    ],
    ids=["ok", "beyond", "negative", "double", "the last layer", "unsorted"],
)
def test_layer_ids_are_checked_where_they_are_declared(ids, fits):
    from eyrie.core import spec
    from eyrie.core.errors import SpecError
    from eyrie.core.target import Target

    data = {
        "name": "t",
        "source": {"kind": "path", "path": "/x"},
        "hidden_size": 64,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "vocab_size": 500,
        "aux_layers": ids,
    }
    if fits:
        assert spec.load(Target, data, "target").captured_layers == [2, 6, 9, 12]
    else:
        with pytest.raises(SpecError, match="aux_layers"):
            spec.load(Target, data, "target")


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory):
    """A random Llama of four layers, with its own forward pass as the server."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("llama")
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    model.save_pretrained(folder)
    return folder, model


def captured_like(tiny_llama, folder, layers, shift=0):
    """A states file as vLLM hands it out for `layers`, or for ids shifted by `shift`."""
    import torch
    from safetensors.torch import save_file

    _, model = tiny_llama
    ids = [3, 9, 27, 17, 51, 25, 11]
    before_norm = []
    hook = model.model.norm.register_forward_pre_hook(lambda module, args: before_norm.append(args[0]))
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_hidden_states=True)
    hook.remove()
    every = [*out.hidden_states[:-1], before_norm[0]]
    states = torch.stack([every[min(layer + shift, 8)][0] for layer in layers], dim=1)
    path = folder / f"{shift}.safetensors"
    save_file({"hidden_states": states.contiguous(), "token_ids": torch.tensor(ids)}, path)
    return {"ids": ids, "file": str(path)}


def test_the_reference_forward_pass_proves_the_declared_ids(tiny_llama, tmp_path):
    from eyrie.hidden_states.reference import compare

    layers = [2, 4, 5, 8]
    sample = captured_like(tiny_llama, tmp_path, layers)
    slots = compare({"model": str(tiny_llama[0]), "layers": layers, "samples": [sample]})["slots"]
    assert [slot["nearest"] for slot in slots] == layers
    assert max(slot["error"] for slot in slots) < 0.02


def test_the_reference_forward_pass_finds_ids_shifted_by_one(tiny_llama, tmp_path):
    """'Output of layer L' against 'input of layer L': every shape is right, every layer is wrong."""
    from eyrie.hidden_states.reference import compare

    layers = [2, 4, 5, 8]
    sample = captured_like(tiny_llama, tmp_path, layers, shift=1)
    slots = compare({"model": str(tiny_llama[0]), "layers": layers, "samples": [sample]})["slots"]
    assert [slot["nearest"] for slot in slots] == [3, 5, 6, 8]


def test_the_captured_last_state_is_before_the_final_norm(tiny_llama, tmp_path):
    """With the normed state instead, the head's argmax check and the reference both have something to say."""
    from safetensors.torch import load_file, save_file

    from eyrie.hidden_states.reference import compare

    layers = [2, 4, 5, 8]
    sample = captured_like(tiny_llama, tmp_path, layers)
    tensors = load_file(sample["file"])
    tensors["hidden_states"][:, 3] = tiny_llama[1].model.norm(tensors["hidden_states"][:, 3])
    save_file(tensors, sample["file"])
    slots = compare({"model": str(tiny_llama[0]), "layers": layers, "samples": [sample]})["slots"]
    assert slots[3]["error"] > 0.1


def test_head_and_norm_are_found_in_shards_and_tied_embeddings(tmp_path):
    import numpy as np

    head = toy_states.to_bf16(np.ones((32, 8)))
    toy_states.write(tmp_path / "model-1.safetensors", {"model.embed_tokens.weight": ("BF16", head)})
    toy_states.write(
        tmp_path / "model-2.safetensors",
        {
            "model.layers.0.self_attn.q_norm.weight": ("BF16", head[0]),
            "model.norm.weight": ("BF16", head[0]),
        },
    )
    index = {"model.embed_tokens.weight": "model-1.safetensors", "model.norm.weight": "model-2.safetensors"}
    index["model.layers.0.self_attn.q_norm.weight"] = "model-2.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    norm, found = weights.Checkpoint(tmp_path).head()
    assert norm[1].shape == (8,)
    assert found[1].shape == (32, 8)

"""Whatever a draft has wrong, the server that runs is not touched."""

import json

import checkpoints
import pytest

from eyrie.core.errors import GateError
from eyrie.serve import execute, switch

pytestmark = pytest.mark.node


def broken(config=None, tensors=None):
    return (checkpoints.draft_config(**(config or {})), checkpoints.draft_tensors(**(tensors or {})))


CASES = {
    "method": broken(tensors={"fc.weight": checkpoints.noise(8, 16)}),
    "fc-width": broken(tensors={"fc.weight": checkpoints.noise(8, 32)}),
    "layer-ids": broken({"eagle_aux_hidden_state_layer_ids": [2, 4, 6]}),
    "dimensions": broken({"layer": {"hidden_size": 12, "head_dim": 6}}),
    "positions": broken({"layer": {"max_position_embeddings": 64}}),
    "dtype": broken(tensors={"fc.weight": ("I64", [8, 24], [1] * 192)}),
    "draft-vocabulary": broken(tensors={"lm_head.weight": None}),
    "embeddings": broken(tensors={"embed_tokens.weight": checkpoints.noise(32, 8)}),
    "config-keys": broken({"speculators_model_type": "eagle9"}),
    "tensor-parallel": broken({"layer": {"num_attention_heads": 4, "num_key_value_heads": 3, "vocab_size": 40}}),
}


@pytest.fixture
def serving(run):
    it = run()
    it.ensure("baseline")
    return it


def test_each_gate_refuses_and_leaves_the_server_alone(serving):
    pid = execute.launched(serving.root, "baseline")["pid"]
    serving.pipeline.server["args"] = {"tensor_parallel_size": 2}
    for name, (config, tensors) in CASES.items():
        checkpoints.write_draft(serving.root / "draft" / "checkpoint", config, tensors)
        with pytest.raises(GateError) as caught:
            serving.ensure("eagle3")
        assert f"[{name}]" in caught.value.what, name
        assert caught.value.todo == "The server that runs was not touched."
        refused = [gate["name"] for gate in switch.plan(serving.pipeline, "eagle3")["gates"] if not gate["ok"]]
        assert name in refused
    assert execute.launched(serving.root, "baseline")["pid"] == pid


def test_a_draft_that_is_not_made_yet_is_pending_in_the_plan(serving):
    checkpoint = serving.root / "draft" / "checkpoint"
    (checkpoint / "config.json").unlink()
    gates = switch.plan(serving.pipeline, "eagle3")["gates"]
    assert [gate["name"] for gate in gates if gate["pending"]] == ["draft"]
    with pytest.raises(GateError):
        serving.ensure("eagle3")


def test_a_model_that_is_not_what_the_inventory_says(serving):
    for key, value in (("hidden_size", 16), ("num_hidden_layers", 4), ("vocab_size", 41)):
        checkpoints.write_target(serving.model, **{key: value})
        with pytest.raises(GateError) as caught:
            serving.ensure("baseline")
        assert f"target.{key}" in caught.value.what
    (serving.model / "config.json").write_text("{")
    with pytest.raises(GateError, match="no model yet"):
        serving.ensure("extract")


def test_tensor_parallelism_of_the_target(serving):
    serving.pipeline.server["args"] = {"tensor_parallel_size": 3}
    with pytest.raises(GateError, match="does not divide the target's 2 heads"):
        serving.ensure("extract")


def test_the_plan_is_plain_data(serving):
    assert json.loads(json.dumps(switch.plan(serving.pipeline, "eagle3")))["profile"] == "eagle3"

"""A draft against its target: family and method, fc width, layers, sizes, positions, dtype, parallelism."""

import pytest
from checkpoints import AUX, HIDDEN, draft_config, draft_tensors, noise, target_config, write_draft, write_target

from eyrie.core.errors import EyrieError
from eyrie.gates import draft, tensors, weights

TARGET = draft.shape_of(target_config())
EAGLE1 = {"architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "vocab_size": 40, "num_hidden_layers": 1}


@pytest.fixture
def entries(tmp_path):
    """entries(**tensor changes): headers of a draft as written to disk."""

    def make(**changes):
        return tensors.folder(write_draft(tmp_path / "draft", None, draft_tensors(**changes)))

    return make


def test_a_right_draft_passes_all(entries):
    own, config = entries(), draft_config()
    assert draft.method("eagle3", config, own, HIDDEN) is None
    assert draft.fc_width(config, own, HIDDEN, AUX) is None
    assert draft.layer_ids(config, AUX, 8) is None
    assert draft.dimensions(config, own, TARGET) is None
    assert draft.positions(config, 128, TARGET) is None
    assert draft.precision(own, "bfloat16") is None


def test_an_eagle1_draft_is_told_from_an_eagle3_draft(entries):
    old = entries(**{"fc.weight": noise(HIDDEN, 2 * HIDDEN)})
    assert draft.family(EAGLE1, old, HIDDEN) == "EAGLE-1/2"
    said = draft.method("eagle3", EAGLE1, old, HIDDEN)
    assert "this is an EAGLE-1/2 draft (no draft_vocab_size, fc takes 2 x 8): it needs method eagle" in said
    said = draft.method("eagle", draft_config(), entries(), HIDDEN)
    assert "EAGLE-3 draft" in said
    assert "not eagle." in said


def test_something_that_is_no_draft(entries):
    none = entries(**{"fc.weight": None})
    assert "no EAGLE draft" in draft.method("eagle3", {"architectures": ["LlamaForCausalLM"]}, none, HIDDEN)
    assert draft.fc_width(draft_config(), none, HIDDEN, AUX) == "the checkpoint holds no fc.weight."


def test_a_draft_of_one_layers_states_is_refused_with_the_numbers(entries):
    narrow = entries(**{"fc.weight": noise(HIDDEN, HIDDEN)})
    said = draft.fc_width(draft_config(), narrow, HIDDEN, AUX)
    assert "[8, 8]" in said
    assert "3 x 8 = 24 columns" in said


@pytest.mark.parametrize("ids", [[2, 4, 6], [4, 2, 5], [2, 4], [2, 4, 5, 8], [1, 3, 4]])
def test_other_layers_are_refused(ids):
    said = draft.layer_ids(draft_config(eagle_aux_hidden_state_layer_ids=ids), AUX, 8)
    assert str(ids) in said
    assert str(AUX) in said


def test_a_draft_that_names_no_layers_gets_the_engines_default():
    plain = {"hidden_size": 8}
    assert draft.layer_ids(plain, [2, 4, 5], 8) is None
    assert "default for 61 layers: [2, 30, 58]" in draft.layer_ids(plain, [2, 15, 27], 61)
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}
    assert draft.layer_ids(nested, [1, 2, 3], 8) is None


def test_another_hidden_size_needs_a_bridge_and_own_embeddings(entries):
    other = draft_config(layer={"hidden_size": 12, "num_attention_heads": 2, "head_dim": 6})
    said = draft.dimensions(other, entries(), TARGET)
    assert "12, the target's is 8: target_hidden_size must say 8, it is missing" in said
    bridged = {**other, "target_hidden_size": 8}
    assert draft.dimensions(bridged, entries(), TARGET) is None
    assert "no embed_tokens.weight" in draft.dimensions(bridged, entries(**{"embed_tokens.weight": None}), TARGET)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ({"vocab_size": 39}, "vocab_size 39, the target's is 40"),
        ({"num_attention_heads": 3, "head_dim": None}, "not a multiple of its 3 heads"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "4 heads are not a multiple of 3"),
    ],
)
def test_sizes_that_do_not_fit(entries, layer, said):
    assert said in draft.dimensions(draft_config(layer=layer), entries(), TARGET)


def test_a_target_with_a_text_part():
    multimodal = {"architectures": ["X"], "text_config": target_config()}
    assert draft.shape_of(multimodal).hidden_size == HIDDEN


@pytest.mark.parametrize(
    ("served", "target_positions", "ok"),
    [(2048, 4096, True), (8192, 8192, False), (None, 40960, False), (None, 2048, True)],
)
def test_positions_reach_as_far_as_the_server(served, target_positions, ok):
    config = draft_config(layer={"max_position_embeddings": 2048})
    target = draft.shape_of(target_config(max_position_embeddings=target_positions))
    said = draft.positions(config, served, target)
    assert (said is None) is ok
    if not ok:
        assert f"2048 < served max_model_len {served or target_positions}" in said


def test_dtypes(entries):
    half = entries(**{"fc.weight": ("F32", [8, 24], [0.1] * 192)})
    assert draft.precision(half, "bfloat16") is None  # full precision is converted
    assert "BF16, F32, served as float16" in draft.precision(half, "float16")
    odd = entries(**{"fc.weight": ("I64", [8, 24], [1] * 192)})
    assert "I64" in draft.precision(odd, "bfloat16")


@pytest.mark.parametrize(
    ("size", "heads", "kv", "said"),
    [
        (2, 4, 2, None),
        (4, 4, 2, None),
        (8, 64, 8, None),
        (3, 4, 2, "does not divide"),
        (4, 12, 3, "key-value heads"),
        (8, 8, 1, None),
    ],
)
def test_tensor_parallelism_divides_the_heads(size, heads, kv, said):
    target = draft.shape_of(target_config(num_attention_heads=heads, num_key_value_heads=kv))
    found = draft.parallel(size, None, target)
    assert found is None if said is None else said in found


def test_the_draft_may_be_split_differently():
    target, own = draft.shape_of(target_config(num_attention_heads=8)), draft.shape_of(draft_config())
    assert "the draft's 2 heads" in draft.parallel(8, own, target)
    assert draft.parallel(8, own, target, draft_parallel=1) is None


@pytest.fixture
def pair(tmp_path):
    def make(**changes):
        own = tensors.folder(write_draft(tmp_path / "draft", None, draft_tensors(**changes)))
        return own, tensors.folder(write_target(tmp_path / "target"))

    return make


IDS = list(range(8))


def test_a_missing_or_short_head(pair):
    own, base = pair(**{"lm_head.weight": None})
    assert "no lm_head.weight" in weights.head(own, base, IDS)
    own, base = pair(**{"lm_head.weight": noise(6, HIDDEN)})
    assert "has 6 rows" in weights.head(own, base, IDS)


def test_heads_and_embeddings_that_were_never_filled(pair):
    zeros = ("BF16", [8, HIDDEN], [0.0] * 64)
    own, base = pair(**{"lm_head.weight": zeros})
    assert "all zeros" in weights.head(own, base, IDS)
    own, base = pair(**{"lm_head.weight": ("BF16", [8, HIDDEN], [float("nan")] * 64)})
    assert "no numbers" in weights.head(own, base, IDS)
    own, base = pair(**{"embed_tokens.weight": noise(32, HIDDEN)})
    assert "has 32 rows" in weights.embeddings(own, base, 40)


def test_fresh_random_numbers_are_told_from_trained_ones(tmp_path):
    """Wide rows, as real ones are: 256 wide, 200 tokens."""
    from checkpoints import write_tensors

    base = {"lm_head.weight": noise(200, 256, seed=1), "model.embed_tokens.weight": noise(200, 256, seed=2)}
    write_tensors(tmp_path / "t" / "model.safetensors", base)
    target = tensors.folder(tmp_path / "t")

    def own(name, tensor):
        write_tensors(tmp_path / "d" / "model.safetensors", {name: tensor})
        return tensors.folder(tmp_path / "d")

    ids = list(range(0, 200, 2))
    assert "fresh random" in weights.head(own("lm_head.weight", noise(100, 256, seed=9, scale=0.02)), target, ids)
    assert "fresh random" in weights.embeddings(own("embed_tokens.weight", noise(200, 256, seed=9)), target, 200)
    dtype, shape, flat = noise(200, 256, seed=2)
    assert weights.embeddings(own("embed_tokens.weight", (dtype, shape, flat)), target, 200) is None
    # trained on its own, unlike the target: rows of quite different lengths
    scaled = [value * (1 + (index // 256) % 7) for index, value in enumerate(noise(100, 256, seed=5)[2])]
    assert weights.head(own("lm_head.weight", ("BF16", [100, 256], scaled)), target, ids) is None


def test_torn_files_are_errors_that_name_the_file(tmp_path):
    path = write_draft(tmp_path / "draft") / "model.safetensors"
    whole = path.read_bytes()
    for torn in (whole[:-1], whole[:5], b"", b"\xff" * 64):
        path.write_bytes(torn)
        with pytest.raises(EyrieError) as caught:
            tensors.folder(path.parent)
        assert str(path) in str(caught.value)
    path.unlink()
    with pytest.raises(EyrieError, match="no safetensors"):
        tensors.folder(path.parent)


def test_values_come_back_as_written(tmp_path):
    from checkpoints import write_tensors

    written = {
        "a": ("I64", [3], [-1, 0, 2**40]),
        "b": ("BOOL", [2], [True, False]),
        "c": ("BF16", [2, 2], [1.0, -2.0, 0.5, 3.0]),
        "d": ("F32", [1], [0.25]),
    }
    write_tensors(tmp_path / "x.safetensors", written)
    found = tensors.header(tmp_path / "x.safetensors")
    assert {name: tensors.values(entry) for name, entry in found.items()} == {
        name: list(flat) for name, (_, _, flat) in written.items()
    }
    assert tensors.rows(found["c"], [1]) == [[0.5, 3.0]]
    with pytest.raises(EyrieError, match="too many"):
        tensors.values(found["c"], limit=3)

"""Tiny checkpoints as bytes: a target, and drafts in speculators' format. Standard library only."""

import json
import random
import struct
from pathlib import Path

FORMATS = {"I64": "q", "BOOL": "?", "F32": "f", "BF16": "H"}
HIDDEN, LAYERS, HEADS, VOCAB, DRAFT_VOCAB = 8, 8, 2, 40, 8
AUX = [2, 4, 5]
TARGETS = [0, 2, 3, 7, 11, 20, 31, 39]  # the target ids that the draft can say


def write_tensors(path, tensors):
    """tensors: {name: (dtype, shape, flat values)}; BF16 values are floats."""
    table, parts, offset = {}, [], 0
    for name, (dtype, shape, flat) in tensors.items():
        if dtype == "BF16":
            flat = [struct.unpack("<I", struct.pack("<f", value))[0] >> 16 for value in flat]
        data = struct.pack(f"<{len(flat)}{FORMATS[dtype]}", *flat)
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        parts.append(data)
        offset += len(data)
    head = json.dumps(table).encode()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(struct.pack("<Q", len(head)) + head + b"".join(parts))


def noise(*shape, seed=0, scale=0.1):
    """('BF16', shape, values) of seeded Gaussian noise."""
    count = 1
    for size in shape:
        count *= size
    source = random.Random(seed)
    return "BF16", list(shape), [source.gauss(0, scale) for _ in range(count)]


def target_config(**changes):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    return config | changes


def write_target(folder, **changes):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(target_config(**changes)))
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": {"type": "WordLevel", "vocab": {}}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    write_tensors(
        folder / "model.safetensors",
        {
            "model.embed_tokens.weight": noise(VOCAB, HIDDEN, seed=1),
            "lm_head.weight": noise(VOCAB, HIDDEN, seed=2),
        },
    )
    return folder


def draft_config(**changes):
    """As speculators 0.9 writes it; `layer` changes keys of transformer_layer_config, a value of None drops a key."""
    layer = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 256,
        **changes.pop("layer", {}),
    }
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": DRAFT_VOCAB,
        "norm_before_residual": True,
        "norm_before_fc": False,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": AUX,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "toy"},
        },
        "transformer_layer_config": {key: value for key, value in layer.items() if value is not None},
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        **changes,
    }
    return config


def mapping(targets=TARGETS, vocab=VOCAB):
    """d2t (offsets) and t2d (mask) of a draft vocabulary."""
    return {
        "d2t": ("I64", [len(targets)], [token - index for index, token in enumerate(targets)]),
        "t2d": ("BOOL", [vocab], [token in set(targets) for token in range(vocab)]),
    }


def picked_rows(tensor, indices):
    """Rows of a matrix: a draft's head starts as the target's rows of its vocabulary."""
    dtype, (_, width), flat = tensor
    rows = [flat[index * width : (index + 1) * width] for index in indices]
    return dtype, [len(indices), width], [value for row in rows for value in row]


def draft_tensors(**changes):
    """A value of None drops a tensor."""
    tensors = {
        "fc.weight": noise(HIDDEN, 3 * HIDDEN, seed=3),
        "lm_head.weight": picked_rows(noise(VOCAB, HIDDEN, seed=2), TARGETS),
        "norm.weight": ("BF16", [HIDDEN], [1.1] * HIDDEN),
        "layers.0.self_attn.q_proj.weight": noise(HIDDEN, 2 * HIDDEN, seed=5),
        "layers.0.self_attn.k_proj.weight": noise(HIDDEN, 2 * HIDDEN, seed=6),
        "layers.0.input_layernorm.weight": ("BF16", [HIDDEN], [1.05] * HIDDEN),
        "embed_tokens.weight": noise(VOCAB, HIDDEN, seed=1),
        **mapping(),
        **changes,
    }
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def write_draft(folder, config=None, tensors=None):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config if config is not None else draft_config()))
    write_tensors(folder / "model.safetensors", tensors if tensors is not None else draft_tensors())
    return folder

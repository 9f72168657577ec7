"""A toy target (hidden 8, 3 auxiliary layers and the last, vocabulary 32) and files as a server would write them."""

import json
import struct

import numpy as np

from eyrie.hidden_states.keys import Shape

HIDDEN, LAYERS, VOCAB = 8, (1, 3, 5, 6), 32
SHAPE = Shape(LAYERS, HIDDEN, "bf16", "toy-weights", "toy-engine")


def to_bf16(values):
    """fp32 -> bf16 bits (truncated)."""
    return (np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def states(ids, layers=4, hidden=HIDDEN):
    """Deterministic, finite, different states per token prefix and layer: [seq, layers, hidden] fp32."""
    rows = []
    seed = 1
    for token in ids:
        seed = (seed * 31 + int(token) + 7) % (1 << 31)
        rows.append(np.random.default_rng(seed).standard_normal((layers, hidden)))
    return np.asarray(rows, dtype=np.float32).reshape(len(rows), layers, hidden)


def write(path, tensors, header_length=None, metadata=None):
    """A safetensors file from {name: (dtype, array of raw bits)}; `header_length` lies about the header."""
    header, blobs, offset = {}, [], 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (kind, array) in tensors.items():
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + len(data)]}
        blobs.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text) if header_length is None else header_length) + text + b"".join(blobs))
    return path


def states_file(path, ids, values=None, dtype="BF16"):
    """A states file for token ids; `values` [seq, layers, hidden] replaces the deterministic states."""
    values = states(ids) if values is None else np.asarray(values, dtype=np.float32)
    bits = to_bf16(values) if dtype == "BF16" else values
    tokens = np.asarray(ids, dtype=np.int64)
    return write(path, {"token_ids": ("I64", tokens), "hidden_states": (dtype, bits)})


def checkpoint(folder):
    """The toy target's checkpoint: config, final norm, output head."""
    rng = np.random.default_rng(0)
    config = {"hidden_size": HIDDEN, "num_hidden_layers": 6, "vocab_size": VOCAB, "rms_norm_eps": 1e-5}
    config["num_attention_heads"] = 2
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    norm = to_bf16(rng.uniform(0.5, 1.5, HIDDEN))
    head = to_bf16(rng.standard_normal((VOCAB, HIDDEN)))
    write(
        folder / "model.safetensors",
        {"model.norm.weight": ("BF16", norm), "lm_head.weight": ("BF16", head)},
    )
    return folder


def served_token(folder, last):
    """The greedy token of a last state [hidden], by the toy target's own head."""
    from eyrie.hidden_states.weights import Checkpoint, logits, to_float

    norm, head = Checkpoint(folder).head()
    rounded = to_float("BF16", to_bf16(last))
    return int(logits(rounded[None], norm, head, 1e-5).argmax())

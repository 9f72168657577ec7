"""A target small enough to be made in a second: 8 layers of width 64, tied embeddings, its own byte-level tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, LAYERS, HEADS, VOCAB, AUX = 64, 8, 4, 384, [2, 4, 5]
END = "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HIDDEN // HEADS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}


def make(folder: Path, texts: list[str]) -> None:
    """Write config, tokenizer and weights; the same texts give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    end = tokenizer(folder, texts)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "eos_token_id": end, "bos_token_id": end}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    weights(folder)


def tokenizer(folder: Path, texts: list[str]) -> int:
    """tokenizer.json and tokenizer_config.json; returns the id of the end token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<|im_start|>", END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    raw.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return int(raw.token_to_id(END))


def weights(folder: Path) -> None:
    """Seeded noise; embedding rows of length one, so that a row's own token is its nearest."""
    random = np.random.default_rng(11)

    def noise(*shape: int) -> Any:
        return random.standard_normal(shape).astype(np.float32) * 0.05

    embed = random.standard_normal((VOCAB, HIDDEN)).astype(np.float32)
    tensors = {"model.embed_tokens.weight": embed / np.linalg.norm(embed, axis=1, keepdims=True)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name in ("q", "k", "v", "o"):
            tensors[f"{prefix}self_attn.{name}_proj.weight"] = noise(HIDDEN, HIDDEN)
        for name, shape in (("gate", (128, HIDDEN)), ("up", (128, HIDDEN)), ("down", (HIDDEN, 128))):
            tensors[f"{prefix}mlp.{name}_proj.weight"] = noise(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = np.ones(HIDDEN, dtype=np.float32)
    tensors["model.norm.weight"] = np.ones(HIDDEN, dtype=np.float32)
    save(folder / "model.safetensors", {name: ("BF16", bf16(value)) for name, value in tensors.items()})


def bf16(values: Any) -> Any:
    """fp32 -> its upper 16 bits."""
    return (np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def save(path: Path, tensors: dict[str, tuple[str, Any]]) -> None:
    """A safetensors file of {name: (dtype as safetensors names it, array of raw bits)}."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts, offset = [], 0
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + len(raw)]}
        parts.append(raw)
        offset += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))

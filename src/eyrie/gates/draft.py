"""A draft's config and tensors held against the target: what an engine would accept without a word and draft nothing.

Pure functions over config.json (as a dict) and safetensors headers. Each returns None when all is well, else the
reason in one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eyrie.gates.tensors import Entry

#: fc input width in target hidden sizes -> the family of draft
FAMILIES = {2: "EAGLE-1/2", 3: "EAGLE-3"}
METHODS = {"EAGLE-1/2": "eagle", "EAGLE-3": "eagle3"}
FULL_PRECISION, HALF = "F32", {"BF16", "F16"}
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True)
class Shape:
    """The numbers of a model that must fit, wherever its config keeps them."""

    hidden_size: int
    vocab_size: int
    heads: int
    kv_heads: int
    layers: int
    max_positions: int | None
    architectures: tuple[str, ...]
    model_type: str


def shape_of(config: Mapping[str, Any]) -> Shape:
    """From a plain config, one with a text_config (multimodal), or a speculators one."""
    inner: Mapping[str, Any] = config.get("transformer_layer_config") or config.get("text_config") or config
    heads = int(inner.get("num_attention_heads") or 0)
    positions = inner.get("max_position_embeddings")
    return Shape(
        int(inner.get("hidden_size") or 0),
        int(inner.get("vocab_size") or 0),
        heads,
        int(inner.get("num_key_value_heads") or heads),
        int(inner.get("num_hidden_layers") or 0),
        int(positions) if positions else None,
        tuple(config.get("architectures") or ()),
        str(inner.get("model_type") or ""),
    )


def family(config: Mapping[str, Any], tensors: Mapping[str, Entry], target_hidden: int) -> str:
    """'EAGLE-1/2', 'EAGLE-3' or '' (unknown), from the width of fc, else from the config."""
    fc = tensors.get("fc.weight") or tensors.get("model.fc.weight")
    if fc is not None and len(fc.shape) == 2 and target_hidden and fc.shape[1] % target_hidden == 0:
        times = fc.shape[1] // target_hidden
        return FAMILIES.get(times, "EAGLE-3" if times > 3 else "")
    names = " ".join(config.get("architectures") or ()) + str(config.get("speculators_model_type") or "")
    if "eagle3" in names.lower() or "draft_vocab_size" in config:
        return "EAGLE-3"
    return "EAGLE-1/2" if "eagle" in names.lower() or fc is not None else ""


def method(wanted: str, config: Mapping[str, Any], tensors: Mapping[str, Entry], target_hidden: int) -> str | None:
    """The method a server is started with must be the one the draft was built for."""
    kind = family(config, tensors, target_hidden)
    if not kind:
        return "this is no EAGLE draft: it has neither fc.weight nor an EAGLE architecture."
    if METHODS[kind] == wanted:
        return None
    fc = tensors.get("fc.weight") or tensors.get("model.fc.weight")
    times = f"fc takes {fc.shape[1] // target_hidden} x {target_hidden}" if fc is not None else "no fc.weight"
    vocab = "has draft_vocab_size" if "draft_vocab_size" in config else "no draft_vocab_size"
    return f"this is an {kind} draft ({vocab}, {times}): it needs method {METHODS[kind]}, not {wanted}."


def fc_width(config: Mapping[str, Any], tensors: Mapping[str, Entry], target_hidden: int, aux: list[int]) -> str | None:
    """fc takes all auxiliary states side by side: [draft hidden, number of states x target hidden]."""
    fc = tensors.get("fc.weight") or tensors.get("model.fc.weight")
    if fc is None:
        return "the checkpoint holds no fc.weight."
    wanted = (shape_of(config).hidden_size, len(aux) * target_hidden)
    if fc.shape == wanted:
        return None
    return (
        f"fc.weight is {list(fc.shape)}, but {len(aux)} states of {target_hidden} make "
        f"{len(aux)} x {target_hidden} = {wanted[1]} columns and {wanted[0]} rows."
    )


def layer_ids(config: Mapping[str, Any], aux: list[int], target_layers: int) -> str | None:
    """The layers the draft was trained on are those the engine will hand it: equal as lists, order included."""
    ids = config.get("eagle_aux_hidden_state_layer_ids")
    source = "eagle_aux_hidden_state_layer_ids"
    if not ids:
        ids = (config.get("eagle_config") or {}).get(source)
    if not ids:
        ids = [2, target_layers // 2, target_layers - 3]
        source = f"the draft names no layers; the engine's default for {target_layers} layers"
    if list(ids) == list(aux):
        return None
    return f"{source}: {list(ids)}, but states were captured from {list(aux)}."


def dimensions(config: Mapping[str, Any], tensors: Mapping[str, Entry], target: Shape) -> str | None:
    """Hidden size, vocabulary and heads fit the target, or say how they are bridged."""
    own = shape_of(config)
    if own.heads and own.hidden_size % own.heads:
        head = (config.get("transformer_layer_config") or config).get("head_dim")
        if not head:
            return f"hidden_size {own.hidden_size} is not a multiple of its {own.heads} heads and head_dim is missing."
    if own.kv_heads and own.heads % own.kv_heads:
        return f"{own.heads} heads are not a multiple of {own.kv_heads} key-value heads."
    if own.vocab_size and own.vocab_size != target.vocab_size:
        return f"vocab_size {own.vocab_size}, the target's is {target.vocab_size}."
    if own.hidden_size == target.hidden_size:
        return None
    declared = config.get("target_hidden_size")
    if declared != target.hidden_size:
        return (
            f"hidden_size {own.hidden_size}, the target's is {target.hidden_size}: "
            f"target_hidden_size must say {target.hidden_size}, it is {declared or 'missing'}."
        )
    if not _has(tensors, "embed_tokens.weight"):
        return (
            f"hidden_size {own.hidden_size} differs from the target's {target.hidden_size}: the draft cannot share its "
            "embeddings and brings no embed_tokens.weight."
        )
    return None


def positions(config: Mapping[str, Any], max_model_len: int | None, target: Shape) -> str | None:
    """The draft reaches as far as the server: a shorter one ends in a device-side assert at a long prompt."""
    own = shape_of(config).max_positions
    served = max_model_len or target.max_positions
    if own is None or served is None or own >= served:
        return None
    return (
        f"max_position_embeddings {own} < served max_model_len {served}: "
        f"set the draft's max_position_embeddings to {served} or lower target.max_model_len."
    )


def precision(tensors: Mapping[str, Entry], dtype: str) -> str | None:
    """Weights of the served floating dtype, or in full precision (the engine converts those)."""
    found = {entry.dtype for name, entry in tensors.items() if name.endswith(".weight")}
    odd = found - HALF - {FULL_PRECISION}
    if odd:
        return f"weights of dtype {', '.join(sorted(odd))} in an unquantized draft."
    served = DTYPES.get(dtype)
    if served is None or found <= {served, FULL_PRECISION}:
        return None
    return f"weights are {', '.join(sorted(found))}, served as {dtype}: convert the draft."


def parallel(tensor_parallel: int, draft: Shape | None, target: Shape, draft_parallel: int | None = None) -> str | None:
    """Tensor parallelism divides the attention heads, and key-value heads divide it or are divided by it."""
    for name, shape, size in (
        ("target", target, tensor_parallel),
        ("draft", draft, draft_parallel or tensor_parallel),
    ):
        if shape is None or not shape.heads:
            continue
        if shape.heads % size:
            return f"tensor_parallel_size {size} does not divide the {name}'s {shape.heads} heads."
        if shape.kv_heads % size and size % shape.kv_heads:
            return f"tensor_parallel_size {size} does not fit the {name}'s {shape.kv_heads} key-value heads."
    return None


def _has(tensors: Mapping[str, Entry], name: str) -> bool:
    return name in tensors or f"model.{name}" in tensors

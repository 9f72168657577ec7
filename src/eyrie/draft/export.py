"""Export: the chosen checkpoint in bf16, as the server reads it, and checked against that server's own rules."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError, GateError
from eyrie.draft.trainer import fsync_tree

PASSED_ON = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "draft_vocab_size")
LAYERS = "eagle_aux_hidden_state_layer_ids"


def export(source: Path, target: Path, verifier: Path) -> None:
    """A checkpoint's weights (bf16) and config, under a name that appears when they are complete.

    The verifier's path in the config is absolute: a relative one means another folder to every reader.
    """
    import torch
    from safetensors.torch import load_file, save_file

    staged = target.with_name(f".{target.name}.new")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    for path in sorted(source.glob("*.safetensors")):
        tensors = {
            name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
            for name, tensor in load_file(path).items()
        }
        save_file(tensors, staged / path.name, metadata={"format": "pt"})
    for path in source.glob("*.index.json"):
        shutil.copy2(path, staged / path.name)
    config = json.loads((source / "config.json").read_text("utf-8"))
    for name in ("dtype", "torch_dtype"):
        if name in config:
            config[name] = "bfloat16"
    config["speculators_config"]["verifier"]["name_or_path"] = str(verifier.resolve())
    atomic.write_json(staged / "config.json", config)
    fsync_tree(staged)
    shutil.rmtree(target, ignore_errors=True)
    staged.rename(target)


def point_at(checkpoint: Path, verifier: Path) -> None:
    """Make an exported draft name this host's copy of the target."""
    path = checkpoint / "config.json"
    config = atomic.read_json(path)
    if config and config["speculators_config"]["verifier"].get("name_or_path") != str(verifier.resolve()):
        config["speculators_config"]["verifier"]["name_or_path"] = str(verifier.resolve())
        atomic.write_json(path, config)


def check(checkpoint: Path, layers: list[int], hidden_size: int, vocab_size: int, max_model_len: int) -> dict[str, Any]:
    """Everything the server will ask of the draft. Raises GateError with all faults; returns figures."""
    config = atomic.read_json(checkpoint / "config.json")
    if not isinstance(config, dict):
        raise EyrieError("the draft's config.json cannot be read.", where=str(checkpoint), code="draft-config")
    tensors = tensors_of(checkpoint)
    faults = config_faults(config, layers, hidden_size, vocab_size, max_model_len)
    faults += tensor_faults(config, tensors, len(layers))
    faults += vocabulary_faults(checkpoint, config, tensors)
    served, engine_faults = as_served(config)
    if faults + engine_faults:
        raise GateError(
            "the draft is not what the server can serve: " + "; ".join(faults + engine_faults),
            where=str(checkpoint),
            code="draft-export",
            todo="It is not put up for serving. See docs/training.md, 'Export'.",
        )
    parameters = sum(_count(shape) for _, shape in tensors.values())
    return {"tensors": len(tensors), "parameters": parameters, "architecture": served, "layers": config[LAYERS]}


def tensors_of(checkpoint: Path) -> dict[str, tuple[str, list[int]]]:
    """{name: (dtype, shape)} over all files of a checkpoint, from their headers."""
    import struct

    found: dict[str, tuple[str, list[int]]] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with open(path, "rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
        found.update(
            {name: (entry["dtype"], entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
        )
    return found


def config_faults(
    config: dict[str, Any], layers: list[int], hidden_size: int, vocab_size: int, max_model_len: int
) -> list[str]:
    """What is wrong between the draft's config and the target as captured and served."""
    faults = []
    if config.get("speculators_model_type") != "eagle3":
        faults.append(f"speculators_model_type is {config.get('speculators_model_type')!r}, the method is 'eagle3'")
    ids = config.get(LAYERS)
    if ids != layers:
        faults.append(layers_differ(capture=layers, training=layers, serving=ids))
    decoder = config.get("transformer_layer_config") or {}
    if decoder.get("hidden_size") != hidden_size:
        faults.append(f"hidden_size {decoder.get('hidden_size')}, the target's is {hidden_size}")
    if decoder.get("vocab_size") != vocab_size:
        faults.append(f"vocab_size {decoder.get('vocab_size')}, the target's is {vocab_size}")
    size = config.get("draft_vocab_size")
    if not isinstance(size, int) or not 0 < size <= vocab_size:
        faults.append(f"draft_vocab_size {size} must lie in 1..{vocab_size}")
    positions = int(decoder.get("max_position_embeddings") or 0)
    if positions < max_model_len:
        faults.append(f"max_position_embeddings {positions} is below the served max_model_len {max_model_len}")
    return faults


def layers_differ(capture: list[int] | None, training: list[int] | None, serving: list[int] | None) -> str:
    """The three lists of layer ids side by side, with the usual cause; '' when they are equal."""
    if capture == training == serving and capture is not None:
        return ""
    lists = f"auxiliary layer ids differ: captured {capture}, trained {training}, serving config {serving}"
    missing = [
        name for name, ids in (("capture", capture), ("training", training), ("serving", serving)) if ids is None
    ]
    if missing:
        return f"{lists} (no list in {', '.join(missing)}; none is guessed)"
    assert capture is not None
    assert serving is not None
    if len(capture) == len(serving) and len({b - a for a, b in zip(capture, serving, strict=True)}) == 1:
        lists += " (shifted by a constant: 'output of layer L' against 'input of layer L', the +1 convention)"
    return lists


def expected_tensors(config: dict[str, Any], aux: int) -> dict[str, list[int]]:
    """{tensor name: shape} of an EAGLE-3 draft in speculators format."""
    decoder = config["transformer_layer_config"]
    hidden, wide = int(decoder["hidden_size"]), int(decoder["intermediate_size"])
    heads = int(decoder["num_attention_heads"])
    groups = int(decoder.get("num_key_value_heads") or heads)
    head = int(decoder.get("head_dim") or hidden // heads)
    vocab, draft_vocab = int(decoder["vocab_size"]), int(config["draft_vocab_size"])
    shapes = {
        "embed_tokens.weight": [vocab, hidden],
        "fc.weight": [hidden, aux * hidden],
        "lm_head.weight": [draft_vocab, hidden],
        "norm.weight": [hidden],
        "layers.0.hidden_norm.weight": [hidden],
    }
    if draft_vocab != vocab:
        shapes.update({"d2t": [draft_vocab], "t2d": [vocab]})
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = [aux * hidden]
    if config.get("fc_norm"):
        shapes.update({f"fc_norm.{i}.weight": [hidden] for i in range(aux)})
    for layer in range(int(decoder["num_hidden_layers"])):
        width = 2 * hidden if layer == 0 else hidden  # the first layer reads embedding and state side by side
        prefix = f"layers.{layer}."
        shapes.update(
            {
                prefix + "self_attn.q_proj.weight": [heads * head, width],
                prefix + "self_attn.k_proj.weight": [groups * head, width],
                prefix + "self_attn.v_proj.weight": [groups * head, width],
                prefix + "self_attn.o_proj.weight": [hidden, heads * head],
                prefix + "mlp.gate_proj.weight": [wide, hidden],
                prefix + "mlp.up_proj.weight": [wide, hidden],
                prefix + "mlp.down_proj.weight": [hidden, wide],
                prefix + "input_layernorm.weight": [hidden],
                prefix + "post_attention_layernorm.weight": [hidden],
            }
        )
    return shapes


def tensor_faults(config: dict[str, Any], tensors: dict[str, tuple[str, list[int]]], aux: int) -> list[str]:
    """Missing tensors and wrong shapes. A missing head or mapping is filled at random or by default by servers."""
    try:
        wanted = expected_tensors(config, aux)
    except (KeyError, TypeError, ValueError) as error:
        return [f"transformer_layer_config lacks {error}"]
    faults = [f"tensor {name} is missing" for name in sorted(wanted.keys() - tensors.keys())]
    for name in sorted(wanted.keys() & tensors.keys()):
        found = list(tensors[name][1])
        if found != wanted[name]:
            hint = ""
            if name == "fc.weight" and found[-1:] == wanted[name][:1]:
                hint = f" (one layer instead of {aux}: an EAGLE-1 draft, method 'eagle')"
            faults.append(f"tensor {name} has shape {found}, expected {wanted[name]}{hint}")
    return faults


def vocabulary_faults(checkpoint: Path, config: dict[str, Any], tensors: dict[str, tuple[str, list[int]]]) -> list[str]:
    """d2t (offsets) and t2d (mask) must name the same, ascending target ids; weights must be finite."""
    import torch
    from safetensors.torch import load_file

    faults = []
    values: dict[str, Any] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        values.update(load_file(path))
    for name, tensor in values.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            faults.append(f"tensor {name} holds values that are not finite")
    if "d2t" not in values or "t2d" not in values:
        return faults
    targets = torch.arange(values["d2t"].numel()) + values["d2t"]
    vocab = values["t2d"].numel()
    if int(targets.min()) < 0 or int(targets.max()) >= vocab or bool((targets[1:] <= targets[:-1]).any()):
        faults.append(
            "d2t does not give ascending target ids within the vocabulary (offsets: target = draft + d2t[draft])"
        )
    elif not torch.equal(torch.nonzero(values["t2d"]).flatten(), targets):
        faults.append("d2t and t2d name different target ids: they were built in different runs")
    return faults


def as_served(config: dict[str, Any]) -> tuple[str, list[str]]:
    """(architecture, faults): the config through the installed vLLM's own translation, without importing vLLM."""
    module = _translation()
    if module is None:
        return "unchecked", []
    decoder = json.loads(json.dumps(config.get("transformer_layer_config") or {}))
    try:
        module.SUPPORTED_SPECULATORS_TYPES[config.get("speculators_model_type")](
            config_dict=config, pre_trained_config=decoder
        )
    except (KeyError, ValueError) as error:
        return "", [f"the installed vLLM does not take this draft: {error}"]
    ignored = [name for name in PASSED_ON if config.get(name) and decoder.get(name) != config.get(name)]
    faults = [f"the installed vLLM ignores {name}={config[name]!r}" for name in ignored]
    if decoder.get(LAYERS) != config.get(LAYERS):
        faults.append(f"the installed vLLM ignores {LAYERS}")
    return ", ".join(decoder.get("architectures") or []), faults


def _translation() -> Any:
    """vLLM's module that translates speculators configs, loaded by itself (it imports nothing); None without vLLM."""
    found = importlib.util.find_spec("vllm")
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder) / "transformers_utils" / "configs" / "speculators" / "algos.py"
        if path.exists():
            spec = importlib.util.spec_from_file_location("eyrie_vllm_speculators_algos", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    return None


def _count(shape: list[int]) -> int:
    count = 1
    for item in shape:
        count *= item
    return count

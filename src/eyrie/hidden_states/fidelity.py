"""What fp8 costs: a few samples are kept in bf16 too, and compared before anything is trained on fp8.

Here: does the target's head still name the same most likely token, and how far are the states off. The draft stage
adds the predicted acceptance length on both forms of the same samples (eyrie.draft.fidelity).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyrie.core.errors import GateError
from eyrie.core.pipeline import Context
from eyrie.hidden_states import files
from eyrie.hidden_states.capture import Originals
from eyrie.hidden_states.plan import Todo
from eyrie.hidden_states.store import Store
from eyrie.hidden_states.weights import Checkpoint, dimensions, logits, to_float

POSITIONS = 512  # the head is large: this many positions are enough for a share


def originals(ctx: Context, store: Store, todo: Todo) -> Originals:
    """The samples that are kept in bf16 too: those with the lowest keys, which no order of the data changes.

    Whichever of them lacks its copy is put back on the list of what is to be captured.
    """
    unique = {row.key: row for row in todo.rows}
    chosen = sorted(unique)[: ctx.settings.fidelity_samples]
    folder = store.path / "originals"
    listed = {row.key for row in todo.missing}
    for key in chosen:
        if key not in listed and not (folder / f"{key}.safetensors").exists():
            store.drop([key])
            todo.missing.append(unique[key])
    return Originals(folder, frozenset(chosen))


def check(ctx: Context, store: Store, todo: Todo, kept: Originals) -> dict[str, Any]:
    """Compare both forms; raises GateError when fp8 changes more than the settings allow."""
    import numpy as np

    checkpoint = Checkpoint(ctx.input("target").out)
    norm, head = checkpoint.head()
    eps = dimensions(checkpoint.config()).rms_norm_eps
    exact, quantized = [], []
    errors = np.zeros(len(todo.shape.layers))
    for key in sorted(kept.keys):
        a, b = read(kept.folder / f"{key}.safetensors"), read(store.file(key))
        error = np.linalg.norm(a - b, axis=(0, 2)) / np.maximum(np.linalg.norm(a, axis=(0, 2)), 1e-9)
        errors = np.maximum(errors, error)
        exact.append(a[:, -1])
        quantized.append(b[:, -1])
    last, last8 = np.concatenate(exact), np.concatenate(quantized)
    picked = np.linspace(0, len(last) - 1, min(POSITIONS, len(last)), dtype=int)
    top = logits(last[picked], norm, head, eps).argmax(axis=-1)
    top8 = logits(last8[picked], norm, head, eps).argmax(axis=-1)
    figures = {
        "samples": len(kept.keys),
        "positions": len(picked),
        "agreement": round(float((top == top8).mean()), 4),
        "relative_error": {
            str(layer): round(float(error), 4) for layer, error in zip(todo.shape.layers, errors, strict=True)
        },
    }
    if figures["agreement"] < ctx.settings.fidelity_agreement:
        raise GateError(
            f"under fp8 the target's most likely token is the same at {figures['agreement']:.3f} of positions, "
            f"{ctx.settings.fidelity_agreement:.3f} are asked for.",
            code="fp8-fidelity",
            todo="Use storage bf16 or window, or lower fidelity_agreement knowingly.",
        )
    return figures


def read(path: Path) -> Any:
    """States [seq, layers, hidden] in fp32 from a bf16 or an fp8 file, as the trainer sees them."""
    tensors = files.read_header(path)
    states = tensors["hidden_states"]
    if states.dtype == "F8_E4M3":
        from eyrie.hidden_states.convert import load

        return load(path)["hidden_states"].float().numpy()
    return to_float(states.dtype, files.read_array(path, states))

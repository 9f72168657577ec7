"""Which of the target's layers each captured slot is nearest to, by a transformers forward pass.

Reads {model, layers, samples: [{ids, file}]} as JSON on standard input, answers {slots: [{slot, declared, nearest,
error}]}: `error` is the relative error to the declared layer. Run as a process of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def compare(request: dict[str, Any]) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    from eyrie.hidden_states.convert import load

    model = AutoModelForCausalLM.from_pretrained(request["model"], dtype=torch.bfloat16).eval()
    pre_norm: list[Any] = []
    _final_norm(model).register_forward_pre_hook(lambda module, args: pre_norm.append(args[0].detach()))
    declared = request["layers"]
    errors = None
    for sample in request["samples"]:
        with torch.no_grad():
            out = model(torch.tensor([sample["ids"]]), output_hidden_states=True)
        # transformers norms the last entry of hidden_states; what is captured is its input
        layers = torch.stack([*out.hidden_states[:-1], pre_norm.pop()])[:, 0].float()  # [layers + 1, seq, hidden]
        states = load(Path(sample["file"]))["hidden_states"].float()  # [seq, slots, hidden]
        found = torch.stack(
            [
                (states[:, slot] - layers).flatten(1).norm(dim=1) / layers.flatten(1).norm(dim=1).clamp(min=1e-9)
                for slot in range(states.shape[1])
            ]
        )
        errors = found if errors is None else torch.maximum(errors, found)
    assert errors is not None
    return {
        "slots": [
            {
                "slot": slot,
                "declared": declared[slot],
                "nearest": int(errors[slot].argmin()),
                "error": round(float(errors[slot, declared[slot]]), 5),
            }
            for slot in range(len(declared))
        ]
    }


def _final_norm(model: Any) -> Any:
    """The decoder's final norm, wherever a multimodal wrapper nests it."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.model
    while not hasattr(decoder, "norm"):
        decoder = next(
            child for name, child in decoder.named_children() if name in ("model", "language_model", "decoder")
        )
    return decoder.norm


if __name__ == "__main__":
    sys.stdout.write(json.dumps(compare(json.load(sys.stdin))) + "\n")

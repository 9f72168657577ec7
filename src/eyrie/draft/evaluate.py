"""Predicted acceptance length of an exported draft on given states, in a process of its own.

Reads {checkpoint, verifier, ttt_steps, threads, sets: {name: [{file, ids, mask}]}} as JSON on standard input; answers
{name: {full_acc: [...], predicted}}. Samples are evaluated one by one: packing does not matter to the comparison.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def evaluate(request: dict[str, Any]) -> dict[str, Any]:
    import torch
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    if request.get("threads"):
        torch.set_num_threads(int(request["threads"]))
    config = Eagle3SpeculatorConfig.from_pretrained(request["checkpoint"])
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel.from_pretrained(request["checkpoint"], config=config, verifier=request["verifier"])
    model = model.to(torch.float32).eval()
    return {name: _accuracy(model, samples, int(request["ttt_steps"])) for name, samples in request["sets"].items()}


def _accuracy(model: Any, samples: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    """Share of positions reached and right, per position, over all supervised tokens of the samples."""
    import torch
    from speculators.losses import resolve_loss_config

    right, total = [0.0] * steps, [0.0] * steps
    loss = resolve_loss_config("kl_div", "eager")
    for sample in samples:
        with torch.no_grad():
            _, _, metrics = model(**_batch(sample), ttt_steps=steps, ttt_step_loss_decay=1.0, loss_config=loss)
        for at in range(steps):
            right[at] += float(metrics[f"full_acc_{at}_sum"])
            total[at] += float(metrics[f"full_acc_{at}_total"])
    accuracy = [a / b if b else 0.0 for a, b in zip(right, total, strict=True)]
    return {"full_acc": accuracy, "predicted": 1.0 + sum(accuracy)}


def _batch(sample: dict[str, Any]) -> dict[str, Any]:
    """One sample as the trainer's loader hands it to the model, without padding."""
    import torch
    from speculators.models.eagle3.data import shift_batch

    from eyrie.hidden_states.convert import load

    states = load(Path(sample["file"]))["hidden_states"].float()
    count = states.shape[0]
    shifted = shift_batch(
        {
            "input_ids": torch.tensor(sample["ids"]),
            "hidden_states": states[:, :-1].flatten(1),
            "verifier_last_hidden_states": states[:, -1],
            "loss_mask": torch.tensor(sample["mask"]),
            "lengths": torch.tensor([count]),
            "position_ids": torch.arange(count),
        }
    )
    shifted.pop("lengths")
    batch = {name: tensor.unsqueeze(0) for name, tensor in shifted.items()}
    batch["document_ids"] = torch.zeros(1, count - 1, dtype=torch.long)
    return batch


if __name__ == "__main__":
    sys.stdout.write(json.dumps(evaluate(json.load(sys.stdin))) + "\n")

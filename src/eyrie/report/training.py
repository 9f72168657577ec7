"""The draft stage's metrics.json in the form that the plots take. Pure."""

from __future__ import annotations

from typing import Any


def read(metrics: dict[str, Any]) -> dict[str, Any]:
    """{loss: [[step, value]], recorded, epochs: [{epoch, step, loss, accuracy: [share per position]}], predicted}.

    recorded: steps whose loss was recorded, however few points of it are kept later.
    """
    loss = [list(point) for point in metrics.get("loss_curve") or []]
    return {
        "loss": loss,
        "recorded": len(loss),
        "epochs": [epoch(item, number) for number, item in enumerate(metrics.get("epochs") or [])],
        "predicted": predicted(metrics),
    }


def epoch(item: dict[str, Any], number: int) -> dict[str, Any]:
    return {
        "epoch": item.get("epoch", number),
        "step": item.get("global_step"),
        "loss": item.get("val_loss"),
        "accuracy": list(item.get("full_acc") or []),
    }


def predicted(metrics: dict[str, Any]) -> float | None:
    """The acceptance length that the draft stage predicted from its validation."""
    value = metrics.get("predicted_acceptance")
    return float(value) if isinstance(value, (int, float)) else None

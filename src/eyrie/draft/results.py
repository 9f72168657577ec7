"""What a training run leaves in numbers: validation per epoch and position, predicted acceptance, loss curve."""

from __future__ import annotations

from typing import Any

from eyrie.draft.watch import Curve, Epoch

FORMULA = "1 + sum over positions of full_acc (share of positions reached and right)"
CURVE_POINTS = 400


def metrics(curve: Curve, chosen: Epoch, ttt_steps: int) -> dict[str, Any]:
    """The content of metrics.json."""
    records = [curve.steps[step] for step in sorted(curve.steps)]
    return {
        "formula": FORMULA,
        "ttt_steps": ttt_steps,
        "predicted_acceptance": round(chosen.predicted, 4),
        "per_position": [round(value, 4) for value in chosen.full_acc],
        "chosen_epoch": chosen.epoch + 1,
        "epochs": [epoch_figures(item) for item in sorted(curve.epochs.values(), key=lambda item: item.epoch)],
        "loss_curve": thinned(records, "loss"),
        "accuracy_curve": thinned(records, "full_acc_0"),
        "steps": len(records),
        "tokens_per_s": mean_rate(records),
        "input_wait_share": input_wait(records),
        "trainable_parameters": curve.plan.get("trainable"),
    }


def epoch_figures(epoch: Epoch) -> dict[str, Any]:
    return {
        "epoch": epoch.epoch + 1,
        "global_step": epoch.global_step,
        "val_loss": round(epoch.loss, 5),
        "full_acc": [round(value, 4) for value in epoch.full_acc],
        "cond_acc": [round(value, 4) for value in epoch.cond_acc],
        "predicted_acceptance": round(epoch.predicted, 4),
    }


def thinned(records: list[dict[str, Any]], name: str) -> list[list[float]]:
    """[[step, value], ...] of one training metric with at most CURVE_POINTS points, the last one always in."""
    if not records:
        return []
    stride = max(1, -(-len(records) // CURVE_POINTS))
    picked = records[::stride]
    if picked[-1] is not records[-1]:
        picked.append(records[-1])
    return [[int(item["global_step"]), round(float(item["train"].get(name, 0.0)), 5)] for item in picked]


def mean_rate(records: list[dict[str, Any]]) -> float:
    """Tokens per second over all timed steps (tokens that are not padding)."""
    timed = [item["profile"] for item in records if item.get("profile")]
    seconds = sum(item["step_ms"] for item in timed) / 1000
    tokens = sum(item["tokens_per_s"] * item["step_ms"] / 1000 for item in timed)
    return round(tokens / seconds, 1) if seconds else 0.0


def input_wait(records: list[dict[str, Any]]) -> float:
    """Share of the step time spent waiting for data."""
    timed = [item["profile"] for item in records if item.get("profile")]
    total = sum(item["step_ms"] for item in timed)
    return round(sum(item["fetch_ms"] for item in timed) / total, 4) if total else 0.0

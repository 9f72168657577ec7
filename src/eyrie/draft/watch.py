"""Watching a training run by its metrics: progress for the operator, and a stop with the reason when it goes wrong."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.draft.settings import DraftSettings


@dataclass
class Epoch:
    """Validation of one epoch (0-based): loss and accuracies per position, and the step it was measured after."""

    epoch: int
    global_step: int
    loss: float
    full_acc: list[float]
    cond_acc: list[float]

    @property
    def predicted(self) -> float:
        """Predicted acceptance length: 1 + the chance that each position is reached and right."""
        return 1.0 + sum(self.full_acc)


@dataclass
class Curve:
    """What the metrics file tells so far. steps: {global step: record}, a repeated step counts once."""

    plan: dict[str, Any] = field(default_factory=dict)
    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    epochs: dict[int, Epoch] = field(default_factory=dict)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    last_step: int = -1

    @property
    def best(self) -> Epoch | None:
        return min(self.epochs.values(), key=lambda item: (item.loss, -item.epoch), default=None)

    @property
    def last(self) -> Epoch | None:
        return max(self.epochs.values(), key=lambda item: item.epoch, default=None)


class Watch:
    """Reads metrics.jsonl as it grows."""

    def __init__(self, path: Path, settings: DraftSettings):
        self.path = path
        self.settings = settings
        self.curve = Curve()
        self._offset = 0
        self._skipped = 0.0
        self._records = 0

    def begin_attempt(self, saved: Path | None = None) -> None:
        """A trainer is about to start: until it says where it begins, what the file tells is of an earlier attempt.

        A torn line at the end would swallow the new attempt's first one: it is cut off. saved: the file as the
        checkpoint that training goes on from keeps it; where the file has lost some of that, it is brought back.
        """
        data = self.path.read_bytes() if self.path.exists() else b""
        known = saved.read_bytes() if saved and saved.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        mended = whole if whole.startswith(known) else known
        if mended != data:
            atomic.write_bytes(self.path, mended)
            self.curve, self._offset = Curve(), 0
            self.read()
        self.curve.plan = {}

    def read(self) -> bool:
        """Take in what was appended; True when there was something. Raises EyrieError on a run gone wrong."""
        try:
            with open(self.path, "rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return False
        end = data.rfind(b"\n") + 1
        self._offset += end
        for line in data[:end].splitlines():
            try:
                self._take(json.loads(line))
            except ValueError:
                continue  # the torn line of a killed run
        return end > 0

    def _take(self, record: dict[str, Any]) -> None:
        if "plan" in record:
            self.curve.plan = record["plan"]
            self._skipped, self._records = 0.0, 0
            # what the file tells of steps beyond the checkpoint that this attempt starts from did not happen
            start = int(record["plan"]["global_step"])
            self.curve.steps = {step: value for step, value in self.curve.steps.items() if step < start}
            self.curve.epochs = {key: value for key, value in self.curve.epochs.items() if value.global_step < start}
            self.curve.last_step = start - 1
        elif "checkpoint" in record:
            self.curve.checkpoints.append(record["checkpoint"])
        elif "val" in record:
            self._take_val(record)
        elif "train" in record:
            self._take_train(record)

    def _take_train(self, record: dict[str, Any]) -> None:
        step, train = int(record["global_step"]), record["train"]
        self.curve.steps[step] = record
        self.curve.last_step = step
        self._records += 1
        self._skipped += float(train.get("error_records") or 0.0)
        for name, value in train.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise EyrieError(
                    f"training went to {value} in {name} at step {step}.",
                    code="loss-nan",
                    why="Usual causes: a learning rate that is too high, fp16, states with values that are not finite.",
                    todo="Stopped; earlier checkpoints are kept. Run `eyrie verify hidden_states`, lower lr.",
                )
        if self._records >= self.settings.watch_steps:
            recent = list(self.curve.steps.values())[-self.settings.watch_steps :]
            if all(item["train"].get("loss") == 0.0 and not item["train"].get("full_acc_0") for item in recent):
                raise EyrieError(
                    f"loss and accuracy have been exactly 0 for {self.settings.watch_steps} steps.",
                    code="loss-zero",
                    why="All samples of these steps were skipped or unsupervised: the states are not the data's.",
                    todo="Stopped. Run `eyrie verify hidden_states`; look at the loss masks.",
                )
        self._check_skipped(step)

    def _check_skipped(self, step: int) -> None:
        total = max(1.0, float(self.curve.plan.get("samples_per_step") or 1.0) * self._records)
        share = self._skipped / total
        if share > self.settings.max_skipped_share:
            raise EyrieError(
                f"the trainer skipped {self._skipped:.0f} samples by step {step} (share {share:.3f}).",
                code="samples-skipped",
                why="Their states do not load or belong to other tokens.",
                todo="Stopped. Run `eyrie verify hidden_states`, then both stages again.",
            )

    def _take_val(self, record: dict[str, Any]) -> None:
        val, epoch = record["val"], int(record["epoch"])
        loss = float(val.get("loss_epoch", math.nan))
        if not math.isfinite(loss):
            raise EyrieError(f"validation loss of epoch {epoch + 1} is {loss}.", code="loss-nan", todo="Lower lr.")
        self.curve.epochs[epoch] = Epoch(
            epoch, self.curve.last_step + 1, loss, _series(val, "full_acc"), _series(val, "cond_acc")
        )

    def progress(self) -> dict[str, Any]:
        """Figures for `eyrie status`: epoch, loss, accuracy per position, tokens/s, the last checkpoint."""
        record = self.curve.steps.get(self.curve.last_step)
        if record is None:
            return {}
        train, profile = record["train"], record.get("profile") or {}
        shown: dict[str, Any] = {
            "epoch": int(record["epoch"]) + 1,
            "loss": round(float(train["loss"]), 4),
            "acc": [round(value, 3) for value in _series(train, "full_acc")],
            "tok/s": round(float(profile.get("tokens_per_s") or 0.0)),
        }
        if self.curve.last:
            shown["predicted"] = round(self.curve.last.predicted, 3)
        if self.curve.checkpoints:
            shown["saved at"] = self.curve.checkpoints[-1]["global_step"]
        return shown


def _series(metrics: dict[str, Any], name: str) -> list[float]:
    """[name_0, name_1, ...] (or name_0_epoch, ...)."""
    values = []
    for position in range(64):
        value = metrics.get(f"{name}_{position}", metrics.get(f"{name}_{position}_epoch"))
        if value is None:
            break
        values.append(float(value))
    return values

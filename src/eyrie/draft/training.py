"""One training attempt: from the newest whole checkpoint to the trainer's end, under watch."""

from __future__ import annotations

import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError, Interrupted
from eyrie.core.pipeline import Context
from eyrie.core.stage import Work
from eyrie.draft import backend_name, checkpoints, feeding, group, hardware, launch
from eyrie.draft.settings import DraftSettings
from eyrie.draft.trainer import STOPPED
from eyrie.draft.view import View
from eyrie.draft.watch import Watch

log = logging.getLogger(__name__)
POLL_S = 0.25


class Training:
    """Runs speculators' trainer for a stage context."""

    def __init__(self, ctx: Context, work: Work, built: View, choice: hardware.Choice, watch: Watch, windowed: bool):
        self.ctx, self.work, self.built, self.choice, self.watch = ctx, work, built, choice, watch
        self.settings: DraftSettings = group.numbered(ctx.settings, ctx.pipeline.host)
        self.folder = ctx.out / "train"
        self.windowed = windowed
        self.feeding: feeding.Feeding | None = None

    def run(self) -> dict[str, Any]:
        """Train to the end. Raises Interrupted after an orderly stop, EyrieError otherwise; returns figures."""
        figures: dict[str, Any] = {"continued_from": seed_from_fewer_epochs(self.ctx)}
        newest = arm(self.folder, self.settings)
        figures["resumed_from"] = None if newest is None else newest.global_step
        if self.windowed:
            self.feeding = feeding.Feeding(
                self.ctx,
                self.work,
                self.built,
                backend_name.reads_folder(self.built.index),
                newest.global_step if newest else 0,
            )
            figures["probe"] = self.feeding.proof
            self.feeding.start()
        self.watch.begin_attempt(newest.path / checkpoints.METRICS if newest else None)
        trainer = self._launch(newest.global_step if newest else 0)
        try:
            status = self._follow(trainer)
        finally:
            trainer.kill()
            if self.feeding:
                figures["window"] = self.feeding.stop()
        self.watch.read()
        if status == STOPPED or (status and group.stopped(trainer.last_lines(200))):  # torchrun's own status is 1 then
            asked = self.work.stop_requested
            raise Interrupted(
                "asked to stop" if asked else "a trainer was asked to stop, by SIGTERM or on another host of its group",
                code="interrupted",
                todo="Run again: it resumes.",
            )
        if status != 0:
            if self.work.stop_requested:
                raise Interrupted(
                    "asked to stop; the trainer had to be ended", code="interrupted", todo="Run again: it resumes."
                )
            if len(self.settings.hosts) > 1:
                raise group.broken(self.settings, trainer.last_lines(200), self.ctx.pipeline.host, status or 0)
            raise EyrieError(
                f"the trainer ended with status {status}.",
                where=str(trainer.log_path),
                why=trainer.last_lines(),
                code="trainer-failed",
                todo="Run again: it resumes from the last whole checkpoint.",
            )
        return figures

    def _launch(self, step: int) -> launch.Trainer:
        ctx, settings = self.ctx, self.settings
        threads = int(ctx.pipeline.execution.get("threads") or len(os.sched_getaffinity(0)))
        arguments = launch.arguments(
            settings,
            self.built,
            ctx.input("target").out,
            list(ctx.target.aux_layers),
            ctx.input("tokens").out / "vocab",
            self.folder,
            {"attention": self.choice.attention, "loss": self.choice.loss},
            wait_s=settings.window_wait_s if self.windowed else 0.0,
            trust_remote_code=ctx.target.trust_remote_code,
        )
        meeting = f"{ctx.fingerprint[:12]}-{step}"  # hosts of a group that stand at different steps never meet
        command = launch.command(settings, self.folder, arguments, threads, ctx.pipeline.host, meeting)
        atomic.write_json(self.folder / "command.json", launch.describe(command))
        self.work.progress.start("load", 0, "steps")
        env = {**launch.environment(threads, settings, self.choice.accelerator), **group.environment(settings)}
        return launch.Trainer(command, self.folder, self.folder / "log", env)

    def _follow(self, trainer: launch.Trainer) -> int | None:
        """Watch the trainer until it ends; its exit status."""
        heard = time.monotonic()
        planned = False
        follows = group.follows(self.settings, self.ctx.pipeline.host)  # only the leader hears of the steps
        while True:
            status = trainer.poll()
            if self.watch.read():
                heard = time.monotonic()
                planned = self._progress(planned)
            if self.feeding:
                self.feeding.follow(self.watch.curve)
            if status is not None:
                return status
            if self.work.stop_requested:
                return trainer.stop(self.settings.stop_grace_s)
            if time.monotonic() - heard > self.settings.stall_s and not follows:
                raise EyrieError(
                    f"the trainer has made no step for {self.settings.stall_s:.0f} s.",
                    where=str(trainer.log_path),
                    why=trainer.last_lines(),
                    code="training-stalled",
                    todo="It was ended. Run again: it resumes.",
                )
            time.sleep(POLL_S)

    def _progress(self, planned: bool) -> bool:
        curve = self.watch.curve
        if not curve.plan:
            return False
        if not planned:
            total = int(curve.plan["steps_per_epoch"]) * int(curve.plan["epochs"])
            self.work.progress.start("train", total, "steps", int(curve.plan["global_step"]))
        self.work.progress.update(curve.last_step + 1, **self.watch.progress())
        protect = {curve.best.global_step} if curve.best else set()
        checkpoints.prune(self.folder / "checkpoints", self.settings.keep_checkpoints, protect)
        return True


def arm(folder: Path, settings: DraftSettings) -> checkpoints.Checkpoint | None:
    """Lay out the newest whole checkpoint for the trainer; None when there is none (start from scratch)."""
    shutil.rmtree(folder / "resume", ignore_errors=True)
    whole = [item for item in checkpoints.find(folder / "checkpoints") if item.epoch < settings.epochs]
    if not whole:
        return None
    newest = whole[-1]
    checkpoints.arm(newest, folder / "resume")
    log.info("resuming at step %d (epoch %d)", newest.global_step, newest.epoch + 1)
    return newest


def seed_from_fewer_epochs(ctx: Context) -> str | None:
    """More epochs go on from a finished run that differs in nothing else; the fingerprint of that run, or None."""
    folder = ctx.out / "train" / "checkpoints"
    if checkpoints.find(folder):
        return None
    best: tuple[int, str, Path] | None = None
    for path in ctx.state.path.glob("*.json"):
        record = atomic.read_json(path, {}) or {}
        if record.get("status") != "done" or not _same_but_epochs(record, ctx):
            continue
        epochs = int(record["identity"]["settings"]["epochs"])
        source = ctx.base / str(record["fingerprint"])[:12] / "train"
        if (
            epochs < ctx.settings.epochs
            and checkpoints.find(source / "checkpoints")
            and (best is None or epochs > best[0])
        ):
            best = (epochs, str(record["fingerprint"]), source)
    if best is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    for item in checkpoints.find(best[2] / "checkpoints"):  # the newest, and the best epoch's if that is another
        shutil.copytree(item.path, folder / item.path.name, copy_function=_link)
    shutil.copy2(best[2] / "metrics.jsonl", ctx.out / "train" / "metrics.jsonl")
    if (best[2] / "untrained").exists():
        shutil.copytree(best[2] / "untrained", ctx.out / "train" / "untrained", dirs_exist_ok=True)
    log.info("going on from the run of %d epochs (%s)", best[0], best[1][:12])
    return best[1]


def _same_but_epochs(record: dict[str, Any], ctx: Context) -> bool:
    theirs, ours = record.get("identity") or {}, ctx.identity
    if record.get("inputs") != ctx.inputs or theirs.get("tools") != ours.get("tools"):
        return False
    drop = ("epochs", "select")
    left = {key: value for key, value in (theirs.get("settings") or {}).items() if key not in drop}
    right = {key: value for key, value in ours["settings"].items() if key not in drop}
    return bool(left == right)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target

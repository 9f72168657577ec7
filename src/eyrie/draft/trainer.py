"""The process that trains: speculators' own trainer with four things around it.

    python -m eyrie.draft.trainer TRAIN_DIR THREADS -- <speculators train arguments>

1. Metrics go to TRAIN_DIR/metrics.jsonl, one line per step, as the stage reads them.
2. Checkpoints are whole or not there: written aside in fp32, fsynced, then renamed to checkpoints/step_<n>. Upstream
   overwrites the epoch's folder in place and rounds weights and optimizer to bf16, which no resume can undo.
3. A stop (TRAIN_DIR/stop, SIGTERM, SIGINT) takes effect after a whole step and saves where it stands. Upstream raises
   in the middle of a step and saves to `interrupted/`, which its resume ignores.
4. The draft's initial weights are left in TRAIN_DIR/untrained: the control of the benchmark.

Exit status 0: trained to the end; 75: stopped and saved; anything else: failed.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

STOPPED = 75
_stop = False


def main(argv: list[str]) -> int:
    folder, threads, marker, *arguments = argv
    assert marker == "--"
    _die_with_parent()
    from eyrie.draft import backend, cpu_trainer, last_words

    backend.register()
    cpu_trainer.apply(int(threads))
    from speculators.train import cli
    from speculators.train.config import TrainConfig

    hooks = Hooks(Path(folder))
    hooks.install()
    try:
        cli.main(TrainConfig.resolve(arguments))
    except Exception as error:
        last_words.exchange(error)
        raise
    return STOPPED if hooks.stopped else 0


def _die_with_parent() -> None:
    """Ask the kernel to end this process when its parent dies: no trainer outlives its stage."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        return


class Hooks:
    """Everything that is put around speculators' Trainer."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.stopped = False
        self.rank = int(os.environ.get("RANK", "0"))

    def install(self) -> None:
        from speculators.train import cli, graceful_shutdown, trainer

        self._metrics(cli)
        self._signals(graceful_shutdown)
        self._trainer(trainer.Trainer)

    # -- metrics -------------------------------------------------------------------------------------------

    def _metrics(self, cli: Any) -> None:
        setup = cli.setup_metric_logger

        def setup_metric_logger(*args: Any, **kwargs: Any) -> None:
            setup(*args, **kwargs)
            if self.rank == 0:
                logging.getLogger("speculators.metrics").addHandler(MetricsHandler(self.folder / "metrics.jsonl"))
            logging.getLogger("speculators.metrics").propagate = False  # one line per step is enough

        cli.setup_metric_logger = setup_metric_logger

    # -- stopping ------------------------------------------------------------------------------------------

    def _signals(self, graceful_shutdown: Any) -> None:
        def handler(self: Any, number: int, frame: Any) -> None:
            global _stop
            _stop = True

        graceful_shutdown.GracefulShutdownHandler._handler = handler

    def wants_stop(self, distributed: bool) -> bool:
        """Whether to stop now; all ranks agree, or the next collective would hang."""
        asked = _stop or (self.folder / "stop").exists()
        if not distributed:
            return asked
        import torch
        import torch.distributed as dist

        device = "cpu" if dist.get_backend() == "gloo" else torch.accelerator.current_accelerator()
        flag = torch.tensor([int(asked)], device=device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    # -- the trainer ---------------------------------------------------------------------------------------

    def _trainer(self, cls: Any) -> None:
        hooks = self
        init, train_epoch = cls.__init__, cls.train_epoch
        from speculators.train.graceful_shutdown import TrainingInterruptedError

        def __init__(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
            hooks.save_untrained(model)
            init(self, model, *args, **kwargs)
            self.eyrie_step = 0
            hooks.announce(self)

        def train_epoch_(self: Any, epoch: int, *, step_callback: Any = None) -> None:
            resumed = self._resume_local_step if epoch == self.current_epoch else 0
            self.eyrie_step = resumed

            def after_step() -> None:
                self.eyrie_step += 1
                if hooks.wants_stop(self.is_distributed):
                    self.maybe_save_checkpoint(epoch, local_step=self.eyrie_step)
                    hooks.stopped = True
                    raise TrainingInterruptedError("asked to stop")

            train_epoch(self, epoch, step_callback=after_step)

        def maybe_save_checkpoint(self: Any, epoch: int | str, local_step: int = 0) -> None:
            if isinstance(epoch, int):  # 'interrupted' is upstream's; ours was saved at the step
                hooks.save(self, epoch, local_step or self.eyrie_step)

        cls.__init__ = __init__
        cls.train_epoch = train_epoch_
        cls.maybe_save_checkpoint = maybe_save_checkpoint
        # upstream's link to the best epoch points into folders that are not ours; the stage chooses from the metrics
        cls.maybe_update_best = lambda self, epoch, metrics: None

    def announce(self, trainer: Any) -> None:
        """Tell the stage how many steps there are, and where this run starts."""
        if self.rank == 0:
            line = {
                "plan": {
                    "steps_per_epoch": len(trainer.train_loader),
                    "val_steps": len(trainer.val_loader) if trainer.val_loader is not None else 0,
                    "epochs": trainer.config.num_epochs,
                    "epoch": trainer.current_epoch,
                    "global_step": trainer.global_step,
                    "samples_per_step": len(trainer.train_loader.dataset) / max(1, len(trainer.train_loader)),
                    "trainable": sum(p.numel() for p in trainer.model.parameters() if p.requires_grad),
                }
            }
            append(self.folder / "metrics.jsonl", line)

    def save_untrained(self, model: Any) -> None:
        """The draft as it is built, before a checkpoint is loaded: same seed, same weights in every attempt."""
        target = self.folder / "untrained"
        if self.rank != 0 or target.exists():
            return
        import torch
        from speculators.train.checkpointer import convert_float_dtype, patch_config_dtype

        staged = self.folder / ".untrained"
        model.save_pretrained(staged, state_dict=convert_float_dtype(model.state_dict(), torch.bfloat16))
        patch_config_dtype(staged / "config.json", torch.bfloat16)
        fsync_tree(staged)
        staged.rename(target)

    def save(self, trainer: Any, epoch: int, local_step: int) -> None:
        """One whole checkpoint: checkpoints/step_<global step>."""
        import torch

        keeper = trainer.checkpointer
        real = keeper.path
        staging = self.folder / "checkpoints" / ".saving"
        started = time.monotonic()
        if self.rank == 0:
            remove_tree(staging)
            staging.mkdir(parents=True)
        keeper.path = staging
        try:
            keeper.save_checkpoint(trainer.model, trainer.optimizers, epoch, float_dtype=torch.float32)
            if trainer.schedulers:
                keeper.save_scheduler_state_dict(trainer.schedulers, epoch)
            trainer._save_training_state(epoch, local_step)
        finally:
            keeper.path = real
        if self.rank == 0:
            final = self.folder / "checkpoints" / f"step_{trainer.global_step:08d}"
            shutil.copyfile(self.folder / "metrics.jsonl", staging / str(epoch) / "metrics.jsonl")
            seal(staging / str(epoch), final, epoch, local_step, trainer.global_step)
            line = {"checkpoint": {"epoch": epoch, "local_step": local_step, "global_step": trainer.global_step}}
            line["checkpoint"]["seconds"] = round(time.monotonic() - started, 2)
            append(self.folder / "metrics.jsonl", line)


def seal(staged: Path, final: Path, epoch: int, local_step: int, global_step: int) -> None:
    """Make a checkpoint whole: a list of its files and sizes, all fsynced, then its name."""
    sizes = {path.name: path.stat().st_size for path in sorted(staged.iterdir()) if path.is_file()}
    whole = {"epoch": epoch, "local_step": local_step, "global_step": global_step, "files": sizes}
    (staged / "whole.json").write_text(json.dumps(whole))
    fsync_tree(staged)
    if final.exists():  # saved again at the same step after a resume
        remove_tree(final)
    staged.rename(final)
    fsync(final.parent)


class MetricsHandler(logging.Handler):
    """Appends each metrics record as a JSON line."""

    def __init__(self, path: Path):
        super().__init__(logging.INFO)
        self.path = path

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.msg, dict) and ("train" in record.msg or "val" in record.msg):
            append(self.path, {**record.msg, "time": time.time(), "cpu": time.process_time()})


def append(path: Path, value: dict[str, Any]) -> None:
    """One JSON line. NaN is written as NaN: the stage must see it."""
    with open(path, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(value, default=float) + "\n")


def fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_tree(folder: Path) -> None:
    for path in folder.iterdir():
        fsync(path)
    fsync(folder)


def remove_tree(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

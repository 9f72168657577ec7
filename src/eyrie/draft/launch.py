"""Launching the trainer: its arguments, its process group, and its end."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from eyrie.core import children
from eyrie.draft.settings import DraftSettings
from eyrie.draft.view import View

log = logging.getLogger(__name__)


def arguments(
    settings: DraftSettings,
    view: View,
    target: Path,
    layers: list[int],
    vocab: Path,
    train_dir: Path,
    hardware: dict[str, str],
    wait_s: float = 0.0,
    trust_remote_code: bool = False,
) -> list[str]:
    """speculators' command line. hardware: {'attention', 'loss'} as resolved for this host."""
    out = [
        "--speculator-type", "eagle3",
        "--verifier-name-or-path", str(target.resolve()),
        "--data-path", str(view.data),
        "--hidden-states-backend", "eyrie",
        "--states-index", str(view.index),
        "--states-wait", str(wait_s),
        "--on-missing", "raise",
        "--save-path", str(train_dir / "resume"),
        "--log-dir", str(train_dir / "logs"),
        "--run-name", "draft",
        "--logger", ",".join(["tensorboard", *(name for name in settings.loggers if name != "tensorboard")]),
        "--train-data-ratio", repr(view.ratio),
        "--total-seq-len", str(settings.total_seq_len),
        "--hidden-states-dtype", settings.hidden_states_dtype,
        "--num-workers", str(settings.num_workers),
        "--prefetch-factor", str(settings.prefetch_factor),
        "--epochs", str(settings.epochs),
        "--checkpoint-freq", str(settings.checkpoint_freq),
        "--log-freq", str(settings.log_freq),
        "--seed", str(settings.seed),
        "--optimizer", settings.optimizer,
        "--lr", repr(settings.lr),
        "--weight-decay", repr(settings.weight_decay),
        "--muon-lr", repr(settings.lr if settings.muon_lr is None else settings.muon_lr),
        "--muon-momentum", repr(settings.muon_momentum),
        "--muon-weight-decay", repr(settings.muon_weight_decay),
        "--muon-ns-steps", str(settings.muon_ns_steps),
        "--scheduler-type", settings.scheduler_type,
        "--scheduler-num-cosine-cycles", repr(settings.scheduler_num_cosine_cycles),
        "--loss-fn", settings.loss_fn,
        "--loss-implementation", hardware["loss"],
        "--ttt-steps", str(settings.ttt_steps),
        "--ttt-step-loss-decay", repr(settings.ttt_step_loss_decay),
        "--draft-attn-impl", hardware["attention"],
        "--target-layer-ids", *map(str, layers),
        *_flag("norm-before-residual", settings.norm_before_residual),
        *_flag("norm-before-fc", settings.norm_before_fc),
        *_flag("norm-output", settings.norm_output),
        *_flag("embed-requires-grad", settings.embed_requires_grad),
    ]  # fmt: skip
    if settings.fc_norm:
        out.append("--fc-norm")
    if settings.scheduler_warmup_ratio is not None:
        out += ["--scheduler-warmup-ratio", repr(settings.scheduler_warmup_ratio)]
    if settings.gradient_checkpointing:
        out.append("--gradient-checkpointing")
    if settings.fsdp_shard:
        out.append("--fsdp-shard")
    if trust_remote_code:
        out.append("--trust-remote-code")
    return out + _shape(settings) + _vocabulary(vocab)


def _flag(name: str, value: bool) -> list[str]:
    return [f"--{name}" if value else f"--no-{name}"]


def _shape(settings: DraftSettings) -> list[str]:
    """The draft's decoder: from another draft, from a config, or by the shaping settings."""
    if settings.from_pretrained:
        return ["--from-pretrained", str(Path(settings.from_pretrained).resolve())]
    if settings.draft_config:
        return ["--draft-config", str(Path(settings.draft_config).resolve())]
    out = ["--num-layers", str(settings.num_layers), "--draft-arch", settings.draft_arch]
    out += ["--sliding-window", str(settings.sliding_window)]
    if settings.full_attention_indices:
        out += ["--full-attention-indices", *map(str, settings.full_attention_indices)]
    return out


def _vocabulary(vocab: Path) -> list[str]:
    """The draft vocabulary's tables, by name: nothing is picked up because it lies around."""
    d2t, t2d = vocab / "d2t.npy", vocab / "t2d.npy"
    if not d2t.exists():
        return []
    import numpy as np

    size = int(np.load(d2t, mmap_mode="r").shape[0])
    return ["--d2t-path", str(d2t), "--t2d-path", str(t2d), "--draft-vocab-size", str(size)]


def command(
    settings: DraftSettings, train_dir: Path, arguments_: list[str], threads: int, host: str, run_id: str
) -> list[str]:
    """The trainer's command: plain python for one process, torchrun for more."""
    module = [
        "-m",
        "eyrie.draft.trainer",
        str(train_dir),
        str(max(0, threads // settings.processes)),
        "--",
        *arguments_,
    ]
    nodes = max(1, len(settings.hosts))
    if settings.processes == 1 and nodes == 1:
        return [sys.executable, *module]
    from eyrie.draft import group

    run = [sys.executable, "-m", "eyrie.draft.meeting", group.listens_on(settings, host)]
    return [*run, "--nproc-per-node", str(settings.processes), *group.rendezvous(settings, host, run_id), *module]


class Trainer:
    """A running trainer and its process group."""

    def __init__(self, command_: list[str], train_dir: Path, log_path: Path, env: dict[str, str]):
        self.train_dir = train_dir
        self.log_path = log_path
        (train_dir / "stop").unlink(missing_ok=True)
        with open(log_path, "ab") as stream:
            self.begin = stream.tell()  # what stands before it was said by earlier attempts
            self.process = subprocess.Popen(
                command_,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=train_dir,
                env=env,
                start_new_session=True,
            )
        self.group = self.process.pid

    def poll(self) -> int | None:
        return self.process.poll()

    def stop(self, grace_s: float) -> int | None:
        """Ask for a stop after the current step, with a checkpoint; end the group when that takes too long."""
        (self.train_dir / "stop").touch()
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        self.kill()
        return self.process.poll()

    def kill(self) -> None:
        """End what is left of the group."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.group, number)
            except ProcessLookupError:
                break
            try:
                self.process.wait(timeout=5 if number == signal.SIGTERM else 30)
            except subprocess.TimeoutExpired:
                continue
        (self.train_dir / "stop").unlink(missing_ok=True)

    def last_lines(self, count: int = 15) -> str:
        try:
            with open(self.log_path, "rb") as stream:
                stream.seek(max(self.begin, self.log_path.stat().st_size - 16384))
                lines = stream.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return "\n".join(line for line in lines[-count:])


def environment(threads: int, settings: DraftSettings, has_accelerator: bool) -> dict[str, str]:
    """The trainer's environment: offline, no progress bars in the log, never a question to a terminal."""
    extra = {
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "WANDB_MODE": os.environ.get("WANDB_MODE", "offline"),
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }
    if not has_accelerator:
        extra["CUDA_VISIBLE_DEVICES"] = ""
        if threads:
            extra["OMP_NUM_THREADS"] = str(max(1, threads // settings.processes))
    return children.environment(**extra)


def describe(command_: list[str]) -> dict[str, Any]:
    """The command as data, for the record."""
    return {"program": Path(command_[0]).name, "arguments": command_[1:]}

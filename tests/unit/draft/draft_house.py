"""A run of the draft stage whose inputs are fixed folders, with speculators' real trainer."""

import json
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import forked_trainer
import tiny_target

from eyrie.core import planner, registry, runner
from eyrie.core.pipeline import Pipeline
from eyrie.core.stage import Stage, Work
from eyrie.draft import launch


@dataclass
class Tag:
    storage: str = "bf16"
    window_bytes: int = 0


class Fixed(Stage):
    """An input that is there already."""

    settings_type = Tag

    def __init__(self, name, inputs, path):
        self.name, self.inputs, self.path = name, inputs, Path(path)

    def folder(self, ctx):
        return self.path

    def run(self, ctx, work):
        raise AssertionError("inputs are not run")


class House:
    def __init__(self, tiny, tmp_path, monkeypatch):
        self.tiny, self.tmp, self.patch = tiny, tmp_path, monkeypatch
        self.settings = {"epochs": 3, "total_seq_len": 96, "lr": 5e-3, "val_ratio": 0.15, "checkpoint_freq": 0.34}
        self.settings.update(stop_grace_s=60, keep_checkpoints=3)
        self.host = "here"
        self.states = {}
        self.inputs = {
            "target": Fixed("target", (), tiny.target),
            "tokens": Fixed("tokens", ("target",), tiny.tokens),
            "hidden_states": Fixed("hidden_states", ("target", "tokens"), tiny.out),
        }
        real = registry.get
        monkeypatch.setattr(registry, "get", lambda name: self.inputs.get(name) or real(name))
        planned = planner.plan
        monkeypatch.setattr(
            planner, "plan", lambda ctx: {"up_to_date": True} if ctx.name in self.inputs else planned(ctx)
        )
        judged = planner.is_up_to_date
        monkeypatch.setattr(planner, "is_up_to_date", lambda ctx: ctx.name in self.inputs or judged(ctx))
        monkeypatch.setattr("eyrie.draft.stage.prepare_the_host", lambda ctx, work, windowed: None)
        self.forked = True
        forked_trainer.preload()
        real_popen = launch.subprocess.Popen

        def popen(command, **options):
            fork = self.forked and "eyrie.draft.trainer" in command and "eyrie.draft.meeting" not in command
            return forked_trainer.Forked(command, **options) if fork else real_popen(command, **options)

        monkeypatch.setattr(launch.subprocess, "Popen", popen)
        self.trainers = []
        init = launch.Trainer.__init__

        def remember(trainer, *args):
            init(trainer, *args)
            self.trainers.append(trainer)

        monkeypatch.setattr(launch.Trainer, "__init__", remember)

    def pipeline(self):
        target = {
            "name": "tiny",
            "source": {"kind": "path", "path": str(self.tiny.target)},
            "hidden_size": tiny_target.HIDDEN,
            "num_hidden_layers": 8,
            "num_attention_heads": 2,
            "vocab_size": tiny_target.VOCAB,
            "aux_layers": list(tiny_target.LAYERS[:-1]),
            "max_model_len": 256,
        }
        return Pipeline(
            {
                "root": str(self.tmp / "root"),
                "run": "main",
                "host": self.host,
                "target": target,
                "stages": {"hidden_states": dict(self.states), "draft": dict(self.settings)},
                "execution": {"threads": 1},
            }
        )

    def context(self):
        return self.pipeline().context("draft")

    def run(self):
        return runner.run(self.pipeline(), "draft")

    @property
    def out(self):
        return self.context().out

    def lines(self):
        """metrics.jsonl as written so far."""
        path = self.out / "train/metrics.jsonl"
        if not path.exists():
            return []
        found = []
        for line in path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def losses(self):
        """{global step: loss}, a repeated step's last value."""
        return {line["global_step"]: line["train"]["loss"] for line in self.lines() if "train" in line}

    def weights(self, folder="checkpoint"):
        from safetensors.torch import load_file

        return load_file(self.out / folder / "model.safetensors")

    def when(self, condition, act):
        """Run `act` in a thread as soon as `condition` holds."""

        def watch():
            end = time.monotonic() + 120
            while not condition() and time.monotonic() < end:
                time.sleep(0.002)
            act()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        return thread

    def steps_done(self):
        return max(self.losses(), default=-1) + 1

    def kill_trainer(self, number=signal.SIGKILL):
        os.killpg(self.trainers[-1].group, number)

    def remember_work(self):
        """A list that the next run's Work is put into."""
        works = []
        init = Work.__init__

        def remember(work, progress):
            init(work, progress)
            works.append(work)

        self.patch.setattr(Work, "__init__", remember)
        return works

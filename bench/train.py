"""Steps a second of a training run under Eyrie against speculators called directly: same data, arguments and seed.

    python bench/train.py --model MODEL_FOLDER --layers 2,15,27 [--rounds 3] [--json]

Both sides train the same draft on the same states, in turns. Eyrie's side is the trainer as the stage starts it
(metrics per step, states by an index, a stop that is looked for at every step) while the stage's watch reads along; the
other side is `speculators train` with its file backend, and only what a CPU needs to run it. Checkpoints are written by
neither: they differ on purpose (whole and in fp32 against in place and in bf16), and their cost is printed on its own.
Imports and start-up do not count. States are seeded noise: what is in them does not matter to the time of a step.

`overhead` is by the clock and wants a quiet machine; `cpu_overhead` is by the CPU time of the trainer's process, which
other work on the machine disturbs less. `runs_ms` shows each run's median step, in the order in which they ran: where
those of one side differ as much as the sides do, the clock has measured the machine.

    python bench/train.py --model MODEL_FOLDER --layers 2,15,27 --beside --rounds 16 [--json]

Both sides at the same time, one core and one thread each, cores swapped every round: what slows the machine slows both.
A round gives one ratio (of the medians of the same steps); `overhead` is then the median of the ratios and `interval`
its 95% interval (bootstrap over rounds). Eyrie's watch runs on the core of Eyrie's trainer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE / "support")]
WARM = 3  # steps that are not counted: allocator and thread pools


def states(folder: Path, rows: list[list[int]], layers: int, hidden: int) -> dict[int, str]:
    """One file of noise per row, as the trainer's file backend names them."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    folder.mkdir(parents=True)
    made = {}
    for number, ids in enumerate(rows):
        path = folder / f"hs_{number}.safetensors"
        values = torch.randn(len(ids), layers, hidden).to(torch.bfloat16)
        save_file({"hidden_states": values, "token_ids": torch.tensor(ids)}, path)
        made[number] = str(path)
    return made


def steps_of(records: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Per step after the warm ones: its profile, and the CPU seconds that the process spent since the step before."""
    return [
        {**record["profile"], "cpu_s": record["cpu"] - before["cpu"]}
        for before, record in zip(records[WARM - 1 :], records[WARM:], strict=False)
    ]


class Bench:
    def __init__(self, args: argparse.Namespace, folder: Path):
        from capture_data import rows, write

        from eyrie.draft import view
        from eyrie.draft.settings import DraftSettings
        from eyrie.hidden_states.weights import Checkpoint, dimensions

        self.args, self.folder = args, folder
        self.layers = [int(item) for item in args.layers.split(",")]
        found = dimensions(Checkpoint(args.model).config())
        made = rows(args.rows, args.draft_vocab, args.mean)
        self.tokens = write(folder / "prepared", made)
        self._vocabulary(found.vocab_size)
        listed = states(folder / "states", made, len(self.layers) + 1, found.hidden_size)
        self.settings = DraftSettings(epochs=1, total_seq_len=args.total_seq_len, checkpoint_freq=100)
        self.view = view.build(self.tokens, listed, folder / "view", 0.1, 1, args.total_seq_len)
        links = folder / "links"
        links.mkdir()
        for number, line in enumerate(self.view.index.read_text().splitlines()):
            (links / f"hs_{number}.safetensors").symlink_to((self.view.index.parent / line).resolve())

    def _vocabulary(self, size: int) -> None:
        import numpy as np

        (self.tokens / "vocab").mkdir()
        mask = np.zeros(size, dtype=bool)
        mask[: self.args.draft_vocab] = True
        np.save(self.tokens / "vocab/d2t.npy", np.zeros(self.args.draft_vocab, dtype=np.int64))
        np.save(self.tokens / "vocab/t2d.npy", mask)

    def arguments(self, folder: Path) -> list[str]:
        from eyrie.draft import hardware, launch
        from eyrie.hidden_states.weights import Checkpoint

        config = Checkpoint(self.args.model).config()
        choice = hardware.choose(hardware.capability(), hardware.head_dim_of(config), self.args.total_seq_len)
        chosen = {"attention": choice.attention, "loss": choice.loss}
        vocab = self.tokens / "vocab"
        return launch.arguments(self.settings, self.view, self.args.model, self.layers, vocab, folder, chosen)

    def eyrie(self, number: int) -> list[dict[str, float]]:
        """The step profiles of a run as the stage starts and watches it."""
        from eyrie.draft import launch
        from eyrie.draft.watch import Watch

        folder = self.folder / f"eyrie{number}"
        folder.mkdir()
        command = launch.command(self.settings, folder, self.arguments(folder), self.args.threads, "here", "bench")
        watch = Watch(folder / "metrics.jsonl", self.settings)
        env = launch.environment(self.args.threads, self.settings, False)
        trainer = launch.Trainer(command, folder, folder / "log", env)
        while trainer.poll() is None:
            watch.read()
            watch.progress()
            time.sleep(0.25)
        if trainer.poll():
            raise SystemExit(trainer.last_lines())
        watch.read()
        self.saving = [float(item["seconds"]) for item in watch.curve.checkpoints]
        return steps_of([watch.curve.steps[step] for step in sorted(watch.curve.steps)])

    def direct(self, number: int) -> list[dict[str, float]]:
        """The step profiles of speculators called directly."""
        from eyrie.draft import launch

        folder = self.folder / f"direct{number}"
        folder.mkdir()
        lines = folder / "lines"
        arguments = self.arguments(folder)
        at = arguments.index("--hidden-states-backend")
        arguments[at + 1] = "file"
        for flag in ("--states-index", "--states-wait"):
            at = arguments.index(flag)
            del arguments[at : at + 2]
        arguments += ["--hidden-states-path", str(self.folder / "links")]
        script = [sys.executable, str(HERE / "support/train_plain.py"), str(lines), str(self.args.threads), "--"]
        env = launch.environment(self.args.threads, self.settings, False)
        with open(folder / "log", "w") as log:
            done = subprocess.run([*script, *arguments], stdout=log, stderr=log, env=env, check=False)
        if done.returncode:
            raise SystemExit((folder / "log").read_text()[-1500:])
        return steps_of([json.loads(line) for line in lines.read_text().splitlines()])


def in_turns(bench: Bench, rounds: int) -> tuple[dict[str, list[dict[str, float]]], dict[str, Any]]:
    """One side after the other, the first of a round in turns: (steps of both, what is said of them)."""
    steps: dict[str, list[dict[str, float]]] = {"eyrie": [], "direct": []}
    order: list[list[Any]] = []
    for number in range(rounds):
        sides = [("eyrie", bench.eyrie), ("direct", bench.direct)]
        for side, run in sides if number % 2 == 0 else sides[::-1]:
            found = run(number)
            order.append([side, round(middle(found, "step_ms"), 1)])
            steps[side] += found
    overhead = {
        "overhead": round(middle(steps["eyrie"], "step_ms") / middle(steps["direct"], "step_ms") - 1, 4),
        "cpu_overhead": round(middle(steps["eyrie"], "cpu_s") / middle(steps["direct"], "cpu_s") - 1, 4),
    }
    return steps, {**overhead, "runs_ms": order}


def beside(bench: Bench, rounds: int) -> tuple[dict[str, list[dict[str, float]]], dict[str, Any]]:
    """Both sides at once on a core each, cores swapped every round: (steps of both, what is said of them)."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("--beside wants two cores.")
    steps: dict[str, list[dict[str, float]]] = {"eyrie": [], "direct": []}
    runs: dict[str, list[float]] = {"step_ms": [], "cpu_s": []}
    order: list[list[float]] = []
    with ThreadPoolExecutor(2) as pool:
        for number in range(rounds):
            first, second = cores if number % 2 == 0 else cores[::-1]
            under_way = [
                pool.submit(on_core, first, bench.eyrie, number),
                pool.submit(on_core, second, bench.direct, number),
            ]
            mine, theirs = (one.result() for one in under_way)
            both = min(len(mine), len(theirs))
            steps["eyrie"] += mine[:both]
            steps["direct"] += theirs[:both]
            for name, ratios in runs.items():
                ratios.append(middle(mine[:both], name) / middle(theirs[:both], name))
            order.append([round(middle(side, "step_ms"), 1) for side in (mine, theirs)])
    return steps, {
        "overhead": round(statistics.median(runs["step_ms"]) - 1, 4),
        "interval": interval(runs["step_ms"]),
        "cpu_overhead": round(statistics.median(runs["cpu_s"]) - 1, 4),
        "cpu_interval": interval(runs["cpu_s"]),
        "runs_ms": order,
    }


def on_core(core: int, run: Callable[[int], list[dict[str, float]]], number: int) -> list[dict[str, float]]:
    """A run whose thread, and all that it starts, may use one core only."""
    os.sched_setaffinity(0, {core})
    return run(number)


def interval(ratios: list[float]) -> list[float]:
    """95% interval of the median of the ratios, less 1."""
    dice = random.Random(3)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(2000))
    return [round(medians[at] - 1, 4) for at in (50, 1949)]


def middle(steps: list[dict[str, float]], name: str) -> float:
    return statistics.median(item[name] for item in steps)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        bench = Bench(args, Path(name))
        steps, said = (beside if args.beside else in_turns)(bench, args.rounds)
        fetch = sum(item["fetch_ms"] for item in steps["eyrie"]) / sum(item["step_ms"] for item in steps["eyrie"])
        return {
            "rounds": args.rounds,
            "steps": len(steps["eyrie"]),
            **{f"{side}_steps_s": round(1000 / middle(found, "step_ms"), 3) for side, found in steps.items()},
            **said,
            "input_wait_share": round(fetch, 4),
            "whole_checkpoint_s": round(statistics.median(bench.saving), 2) if bench.saving else None,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the target")
    parser.add_argument("--layers", required=True, help="auxiliary layer ids")
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--mean", type=int, default=160, help="mean tokens of a row")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--total-seq-len", type=int, default=512)
    parser.add_argument("--draft-vocab", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--beside", action="store_true", help="both sides at once, a core and a thread each")
    parser.add_argument("--folder", type=Path, help="where to write")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.beside:
        args.threads = 1
    args.model = args.model.resolve()
    found = measure(args)
    if args.json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            print(f"{key:24} {value}")


if __name__ == "__main__":
    main()

"""What more hosts gain: an epoch of training on 1, 2 and 4 hosts of a group, each with one process of one thread.

    python bench/group.py --model MODEL_FOLDER --layers 2,15,27 [--hosts 1,2,4] [--json]

The hosts are processes of this machine that meet over loopback by gloo, started as the stage starts them; the rows,
settings and seed are those of bench/train.py. `epoch_s` is the median step times the steps of an epoch: start-up and
checkpoints do not count. More hosts than cores can gain nothing here: `cores` stands beside the figures.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import socket
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from train import Bench, steps_of


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def epoch(bench: Bench, count: int) -> dict[str, Any]:
    """One epoch over `count` hosts: {step_ms, steps, epoch_s}, from what the leader wrote."""
    from eyrie.draft import group, launch
    from eyrie.draft.watch import Watch

    names = [f"h{number}" for number in range(count)]
    shared = {"hosts": names, "rdzv_endpoint": f"127.0.0.1:{free_port()}", "local_addr": "127.0.0.1"}
    settings = dataclasses.replace(bench.settings, **(shared if count > 1 else {}))
    trainers = []
    for name in names:
        folder = bench.folder / f"{count}-{name}"
        folder.mkdir()
        command = launch.command(settings, folder, bench.arguments(folder), 1, name, f"bench-{count}")
        env = {**launch.environment(1, settings, False), **group.environment(settings)}
        trainers.append(launch.Trainer(command, folder, folder / "log", env))
    try:
        for trainer in trainers:
            if trainer.process.wait(600):
                raise SystemExit(trainer.last_lines(40))
    finally:
        for trainer in trainers:
            trainer.kill()
    watch = Watch(trainers[0].train_dir / "metrics.jsonl", settings)
    watch.read()
    steps = int(watch.curve.plan["steps_per_epoch"])
    found = steps_of([watch.curve.steps[step] for step in sorted(watch.curve.steps)])
    step_ms = statistics.median(item["step_ms"] for item in found)
    return {"hosts": count, "steps": steps, "step_ms": round(step_ms, 1), "epoch_s": round(step_ms * steps / 1000, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the target")
    parser.add_argument("--layers", required=True, help="auxiliary layer ids")
    parser.add_argument("--hosts", default="1,2,4")
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--mean", type=int, default=160, help="mean tokens of a row")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--total-seq-len", type=int, default=256)
    parser.add_argument("--draft-vocab", type=int, default=1024)
    parser.add_argument("--folder", type=Path, help="where to write")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.model, args.threads = args.model.resolve(), 1
    runs: dict[int, list[dict[str, Any]]] = {int(item): [] for item in args.hosts.split(",")}
    for _ in range(args.rounds):
        for count, found in runs.items():
            with tempfile.TemporaryDirectory(dir=args.folder) as name:
                found.append(epoch(Bench(args, Path(name)), count))
    rows = [min(found, key=lambda item: item["epoch_s"]) for found in runs.values()]
    for row in rows:
        row["speed_up"] = round(rows[0]["epoch_s"] / row["epoch_s"], 2)
    result = {"rows": rows, "cores": os.cpu_count(), "load_1m": round(os.getloadavg()[0], 2)}
    if args.json:
        print(json.dumps(result))
        return
    for row in rows:
        print(
            f"{row['hosts']} hosts: {row['steps']} steps of {row['step_ms']} ms, {row['epoch_s']} s, x{row['speed_up']}"
        )
    print(f"{result['cores']} cores, load {result['load_1m']}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What the control side costs when there is nothing to do, and what a switch costs beside stopping and loading.

usage: bench/control.py [--json] [--repeats N] [--run]

noop_serve_s         playbooks/serve.yml over SSH on a host where all is provisioned and serves (median), with the
                     seconds of each task
noop_train_local_s   train.yml -l local after a finished run; null with the reason where there is none
switch_overhead_s    a switch of profiles less stop and model load: proof and bookkeeping (largest of three)
run_overhead_s       --run: a whole small local run (96 prompts, a run folder of its own, in an installed environment):
                     the command's time less the stages' own, which server starts are part of

The host is the container of the `switch` scenario; it is made when it is not up (`molecule/run`, kept).
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
HOST = "eyrie-switch"
INVENTORY = ["-i", "inventory", "-i", "molecule/inventory"]
TASK = re.compile(r"^(?P<name>\S.*?) -+ +(?P<seconds>\d+\.\d+)s$")
RECAP = re.compile(r"^(\S+) +: ok=(\d+) +changed=(\d+) +unreachable=(\d+) +failed=(\d+)", re.MULTILINE)


def environment(**extra):
    return {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(PROJECT / "build" / "collections"),
        "ANSIBLE_NOCOLOR": "1",
        **extra,
    }


def play(*words, **extra):
    """(seconds, output) of one ansible-playbook; ends the benchmark when the play fails."""
    begin = time.monotonic()
    done = subprocess.run(
        ["ansible-playbook", *words], cwd=PROJECT, env=environment(**extra), capture_output=True, text=True
    )
    seconds = time.monotonic() - begin
    if done.returncode:
        sys.exit(f"ansible-playbook {' '.join(words)} failed:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return seconds, done.stdout


def changed(output):
    return sum(int(found[2]) for found in RECAP.findall(output))


def tasks(output):
    """Seconds per task from ansible.posix.profile_tasks, the longest first."""
    found = (TASK.match(line) for line in output.splitlines())
    return [{"task": match["name"], "seconds": float(match["seconds"])} for match in found if match]


def ensure_host():
    """The scenario's container, provisioned and serving. Made by the scenario itself when it is not up."""
    shown = subprocess.run(
        ["docker", "inspect", "--format", "{{.State.Running}}", HOST], capture_output=True, text=True
    )
    if shown.stdout.strip() != "true":
        subprocess.run(["molecule/run", "switch"], cwd=PROJECT, env=environment(EYRIE_MOLECULE_KEEP="1"), check=True)


def noop_serve(repeats):
    serve = [*INVENTORY, "playbooks/serve.yml", "-l", HOST, "-e", "profile=baseline"]
    play(*serve)  # whatever was left to do
    runs = []
    for _ in range(repeats):
        seconds, output = play(*serve)
        if changed(output):
            sys.exit(f"the play is not idempotent:\n{output[-3000:]}")
        runs.append(round(seconds, 2))
    _, profile = play(*serve, ANSIBLE_CALLBACKS_ENABLED="ansible.posix.profile_tasks")
    return {"noop_serve_s": statistics.median(runs), "noop_serve_runs_s": runs, "noop_serve_tasks": tasks(profile)}


def switch_overhead():
    """Three switches through the module; each record says what it took."""
    found = []
    for profile in ("extract", "eagle3", "baseline"):
        play(*INVENTORY, "playbooks/serve.yml", "-l", HOST, "-e", f"profile={profile}")
        record = subprocess.run(
            ["docker", "exec", HOST, "cat", "/srv/eyrie/server/serving.json"],
            capture_output=True,
            text=True,
            check=True,
        )
        value = json.loads(record.stdout)
        found.append({"to": profile, **{key: value[key] for key in ("switch_s", "stop_s", "load_s", "overhead_s")}})
    return {"switch_overhead_s": max(item["overhead_s"] for item in found), "switches": found}


def noop_train_local():
    """Only a finished run can be a no-op: nothing is trained for a benchmark of the control side."""
    root = Path(os.environ.get("EYRIE_ROOT") or PROJECT / ".eyrie")
    latest = root / "runs" / "main" / "state" / "report" / "latest.json"
    if not latest.exists() or json.loads(latest.read_text()).get("status") != "done":
        return {"noop_train_local_s": None, "noop_train_local_why": "there is no finished local run"}
    seconds, output = play("train.yml", "-l", "local")
    if changed(output):
        return {
            "noop_train_local_s": None,
            "noop_train_local_why": f"the run had work to do ({changed(output)} changes)",
        }
    return {"noop_train_local_s": round(seconds, 2)}


def run_overhead():
    """A whole run of its own; what its stages did not work is what the control side took."""
    root = Path(os.environ.get("EYRIE_ROOT") or PROJECT / ".eyrie")
    run = f"control-{os.getpid()}"
    small = {
        "eyrie_run": run,
        "eyrie_dataset_samples": 96,
        "eyrie_responses_max_tokens": 64,
        "eyrie_draft_epochs": 2,
        "eyrie_benchmark_rounds": 1,
        "eyrie_artifacts": str(PROJECT / "build" / run),
    }
    seconds, _ = play("train.yml", "-l", "local", "-e", json.dumps(small))
    stages = {
        path.parent.name: float(json.loads(path.read_text())["seconds"])
        for path in sorted((root / "runs" / run / "state").glob("*/latest.json"))
    }
    return {
        "run_overhead_s": round(seconds - sum(stages.values()), 1),
        "run_s": round(seconds, 1),
        "run_stages_s": stages,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--run", action="store_true", help="time a whole small local run as well")
    options = parser.parse_args()
    ensure_host()
    found = {**noop_serve(options.repeats), **switch_overhead(), **noop_train_local(), "cores": os.cpu_count()}
    if options.run:
        found.update(run_overhead())
    found["load_1m"] = round(os.getloadavg()[0], 2)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name in ("noop_serve_s", "noop_train_local_s", "switch_overhead_s"):
        shown = found[name] if found[name] is not None else found["noop_train_local_why"]
        print(f"{name:20} {shown}")
    if options.run:
        print(f"{'run_overhead_s':20} {found['run_overhead_s']} of {found['run_s']}")
    for item in found["noop_serve_tasks"][:12]:
        print(f"  {item['seconds']:6.2f} s  {item['task']}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What the control plane costs at the size of the full run: 100,000 samples, ten sources, Kimi-K2.5's shapes.

usage: bench/control_100k.py [--json] [--samples N] [--folder FOLDER] [--write docs/control_100k.json]

A finished run is laid out as its stages would have left it (bench/support/control_house.py): real records, lists, links
and rows; model, states and tables are sparse files of their real sizes. Then, each by the command that an operator or a
module uses: plan, status, the report's build, a port's and a teardown's survey, a whole no-op train.yml on a local
connection and over SSH (an sshd of this account's own on loopback, where there is the program); and a capture that was
killed half-way: its plan, and what the stage finds out before its first request.

Wants the CPU profile's environment below EYRIE_ROOT (.eyrie): `ansible-playbook playbooks/provision.yml -l local`.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
VARS = PROJECT / "inventory" / "group_vars"
RECAP = re.compile(r"^(\S+) +: ok=(\d+) +changed=(\d+) +unreachable=(\d+) +failed=(\d+)", re.MULTILINE)
#: what the profile says of the run itself; runtime, server and host stay this machine's
COMPONENTS = ("target", "dataset", "responses", "tokens", "hidden_states", "draft", "planning")
AIMS = {"plan": "1 s", "plan_states": "1 s", "status": "1 s", "report": "5 s", "train": "30 s", "train_ssh": "30 s"}
REPEATS = 3


def linked(source: str, target: str) -> None:
    """A second name of the file, or a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@contextlib.contextmanager
def sshd(folder: Path) -> Iterator[dict[str, Any]]:
    """An SSH server on loopback for this account alone; the connection's variables, {} where there is no sshd."""
    program = shutil.which("sshd", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
    if program is None:
        yield {}
        return
    folder.mkdir(mode=0o700)
    for name in ("host", "mine"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "HostKey": folder / "host", "AuthorizedKeysFile": folder / "mine.pub", "PidFile": "none", "UsePAM": "no",
        "ListenAddress": f"127.0.0.1:{port}", "StrictModes": "no", "PasswordAuthentication": "no",
    }  # fmt: skip
    (folder / "config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    key = (folder / "host.pub").read_text().split()[:2]
    (folder / "known").write_text(f"[127.0.0.1]:{port} {' '.join(key)}\n")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with open(folder / "log", "w") as log:
        server = subprocess.Popen([program, "-D", "-e", "-f", str(folder / "config")], stderr=log)
    try:
        yield {
            "ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": port,
            "ansible_user": getpass.getuser(), "ansible_ssh_private_key_file": str(folder / "mine"),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={folder / 'known'} -o IdentitiesOnly=yes",
        }  # fmt: skip
    finally:
        server.terminate()
        server.wait()


class Bench:
    def __init__(self, folder: Path, samples: int):
        self.folder = folder
        self.root = folder / "root"
        self.node = Path(os.environ.get("EYRIE_ROOT") or PROJECT / ".eyrie")
        if not (self.node / "venv" / "bin" / "eyrie").exists():
            sys.exit(f"There is no environment in {self.node}. Run: ansible-playbook playbooks/provision.yml -l local")
        self.root.mkdir(parents=True)
        (self.root / ".eyrie").touch()  # as the role `layout` marks its root
        chosen = (self.node / "venv").resolve()
        shutil.copytree(chosen, self.root / "venvs" / chosen.name, symlinks=True, copy_function=linked)
        (self.root / "venvs" / chosen.name / "eyrie-package.json").unlink(
            missing_ok=True
        )  # the package is this checkout's
        self.vars = self.variables(samples)
        self.timed(["ansible-playbook", "playbooks/provision.yml", "-l", "local", "-e", f"@{self.vars}",
                    "--tags", "layout,runtime"])  # fmt: skip
        self.spec = self.composed()
        self.rows: list[dict[str, Any]] = []

    def variables(self, samples: int) -> Path:
        """The profile rtx6000bw's run, on this machine."""
        values: dict[str, Any] = {}
        for component in COMPONENTS:
            values.update(yaml.safe_load((VARS / "rtx6000bw" / f"{component}.yml").read_text("utf-8")) or {})
        defaults = yaml.safe_load((VARS / "all" / "dataset.yml").read_text("utf-8"))
        for name in ("eyrie_dataset_sources", "eyrie_dataset_exclude_sources"):
            values[name] = defaults[name]
        values |= {"eyrie_root": str(self.root), "eyrie_dataset_samples": samples, "eyrie_draft_processes": 1}
        values["eyrie_artifacts"] = str(self.folder / "artifacts")
        path = self.folder / "vars.json"
        path.write_text(json.dumps(values))
        return path

    def environment(self, **extra: str) -> dict[str, str]:
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        config = str(PROJECT / "ansible.cfg")
        return {**os.environ, "PATH": path, "ANSIBLE_CONFIG": config, "ANSIBLE_NOCOLOR": "1", **extra}

    def composed(self) -> Path:
        argv = ["ansible", "localhost", "-m", "ansible.builtin.debug", "-a", "var=eyrie_spec", "-e", f"@{self.vars}"]
        done = subprocess.run(argv, cwd=PROJECT, env=self.environment(), capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        spec = json.JSONDecoder().raw_decode(done.stdout, done.stdout.index("{"))[0]["eyrie_spec"]
        path = self.folder / "spec.json"
        path.write_text(json.dumps(spec))
        return path

    def timed(self, argv: list[str], **options: Any) -> tuple[float, float, str]:
        """(seconds, peak MB of the process, output) of a command; ends the benchmark when it fails."""
        begin = time.monotonic()
        with open(self.folder / "out", "w+") as out, open(self.folder / "err", "w+") as err:
            process = subprocess.Popen(argv, cwd=PROJECT, env=self.environment(), stdout=out, stderr=err, **options)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            seconds = time.monotonic() - begin
            out.seek(0), err.seek(0)
            text, errors = out.read(), err.read()
        if process.returncode:
            sys.exit(f"{' '.join(argv)} failed:\n{text[-2000:]}{errors[-3000:]}")
        return seconds, usage.ru_maxrss / 1024, text

    def eyrie(self, *words: str) -> list[str]:
        return [str(self.root / "venv" / "bin" / "eyrie"), *words]

    def measure(
        self, key: str, name: str, argv: list[str], repeats: int = REPEATS, before: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """One row: the median of some runs, `before` each of them. Returns the last answer."""
        runs = []
        for _ in range(repeats):
            before()
            runs.append(self.timed(argv))
        row = {"key": key, "name": name, "seconds": round(statistics.median(run[0] for run in runs), 3)}
        self.rows.append({**row, "rss_mb": round(max(run[1] for run in runs), 1)})
        return dict(json.loads(runs[-1][2]))

    def house(self, act: str) -> dict[str, Any]:
        script = [str(self.root / "venv" / "bin" / "python"), "bench/support/control_house.py", str(self.spec), act]
        return dict(json.loads(self.timed(script)[2]))

    def request(self, **values: Any) -> str:
        path = self.folder / "request.json"
        path.write_text(json.dumps({"spec": json.loads(self.spec.read_text()), **values}))
        return str(path)

    def run(self) -> dict[str, Any]:
        begin = time.monotonic()
        made = self.house("make")
        laid = time.monotonic() - begin
        spec = str(self.spec)
        report = self.eyrie("run", "report", "--spec", spec)
        self.timed(report)  # a new environment compiles its modules once
        self.measure("report", "the report: gathered, drawn, written", report, before=self.forget_report)
        outputs = self.measure("plan", "plan of all stages, nothing to do", self.eyrie("plan", "all", "--spec", spec))
        late = [stage["stage"] for stage in outputs["stages"] if not stage["up_to_date"]]
        if late:
            sys.exit(f"the run that was laid out is not up to date: {late}")
        page = Path(outputs["stages"][-1]["outputs"]) / "report.html"
        plan = self.eyrie("plan", "hidden_states", "--spec", spec)
        self.measure("plan_states", "plan of hidden_states, nothing to do", plan)
        status = self.eyrie("status", "--root", str(self.root), "--json")
        self.measure("status", "status", status)
        survey = self.eyrie("port", "survey", "--request", self.request())
        self.measure("survey", "a port's survey of the source", survey, 1)
        self.measure("teardown", "a teardown's plan", self.eyrie("teardown", "plan", "--request", self.request()), 1)
        self.play()
        self.house("half")
        answer = self.measure("resume_plan", "plan of hidden_states, killed half-way", plan)
        if answer["status"] != "interrupted" or answer["forecast"]["samples"] != made["samples"]:
            sys.exit(f"the killed capture is planned as {answer['status']}: {answer['forecast']}")
        found = self.house("missing")
        self.rows.append({"key": "resume", "name": "a resumed capture until its first request", **found})
        return {
            **made, "laid_out_s": round(laid, 1), "report_bytes": page.stat().st_size, "rows": self.rows, "aims": AIMS,
            "cores": os.cpu_count(), "load_1m": round(os.getloadavg()[0], 2),
            "peak_mb": max(row["rss_mb"] for row in self.rows),
        }  # fmt: skip

    def forget_report(self) -> None:
        for folder in ("state/report", "report"):
            shutil.rmtree(self.root / "runs" / "main" / folder, ignore_errors=True)

    def play(self) -> None:
        """train.yml with nothing to do; the first one puts right what is not of the stages (folders, artifacts)."""
        argv = ["ansible-playbook", "train.yml", "-l", "local", "-e", f"@{self.vars}"]
        self.timed(argv)
        self.idle_play("train", "train.yml, nothing to do (local connection)", argv)
        with sshd(self.folder / "ssh") as connection:
            if connection:
                self.idle_play("train_ssh", "train.yml, nothing to do (SSH)", [*argv, "-e", json.dumps(connection)])

    def idle_play(self, key: str, name: str, argv: list[str]) -> None:
        seconds, peak, output = self.timed(argv)
        changed = sum(int(found[2]) for found in RECAP.findall(output))
        if changed:
            sys.exit(f"the play had work to do:\n{output[-4000:]}")
        self.rows.append({"key": key, "name": name, "seconds": round(seconds, 2), "rss_mb": round(peak, 1)})


def published(found: dict[str, Any]) -> dict[str, Any]:
    """The figures as docs/sizing.md shows them."""
    what = (
        f"{found['samples']:,} samples ({found['tokens'] / 1e6:,.0f}M tokens) of ten sources, laid out as a finished "
        "run would leave them, large files sparse; the median of three runs, memory of a command's largest process."
    )
    note = (
        f"The report has {found['report_bytes'] / 1e6:.2f} MB (aim: 3 MB); no process took more than "
        f"{found['peak_mb']:.0f} MB (aim: 500 MB). {found['cores']} CPU cores, load {found['load_1m']} at the end."
    )
    return {**found, "what": what, "note": note, "command": "python bench/control_100k.py --json"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="where to lay it out (some 3 GB and 200,000 inodes)")
    parser.add_argument("--keep", action="store_true", help="leave what was laid out")
    parser.add_argument("--write", type=Path, help="keep the figures for docs/make_sizing.py")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="eyrie-control-", dir=options.folder))
    try:
        found = published(Bench(folder, options.samples).run())
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    if options.write:
        options.write.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for row in found["rows"]:
        print(f"{row['name']:48} {row['seconds']:7.2f} s {row['rss_mb']:6.0f} MB   {AIMS.get(row['key'], '')}")
    print(found["note"])


if __name__ == "__main__":
    main()

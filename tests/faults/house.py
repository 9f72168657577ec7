"""A run of the eight real stages on a toy target, against a server without a model; snapshots, and how to compare."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import model as toy

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
STAGES = ("target", "dataset", "responses", "tokens", "hidden_states", "draft", "benchmark", "report")
TOPICS = ("rivers", "bread", "maps", "clocks", "bees", "paper", "tides", "bridges", "glass", "trains", "salt", "wool")
ASKS = (
    "Explain {} to a child.",
    "Name {n} facts about {}.",
    "Why do people like {}? Reason {n}.",
    "Describe {}, part {n}.",
)


def prompts(count: int) -> list[str]:
    return [ASKS[i % len(ASKS)].format(TOPICS[i // len(ASKS) % len(TOPICS)], n=i) for i in range(count)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class House:
    """One folder: inputs, the root of the run, snapshots of it after each stage."""

    def __init__(self, work: Path, count: int = 96):
        self.work = work
        self.root, self.control, self.snapshots = work / "root", work / "control", work / "snapshots"
        self.control.mkdir(parents=True, exist_ok=True)
        texts = prompts(count)
        if not (work / "model" / "config.json").exists():
            toy.make(work / "model", texts)
        for number in range(3):
            rows = [json.dumps({"prompt": text}) for text in texts[number::3]]
            (work / f"prompts{number}.jsonl").write_text("\n".join(rows) + "\n")
        self.port = free_port()

    # -- the spec ------------------------------------------------------------------------------------------

    def spec(self, **changes: dict[str, Any]) -> dict[str, Any]:
        sources = {
            f"local{number}": {
                "kind": "local",
                "adapter": "prompt",
                "path": str(self.work / f"prompts{number}.jsonl"),
            }
            for number in range(3)
        }
        cell = {"set": "heldout", "concurrency": [2], "output_tokens": 12, "prompts": 6}
        stages: dict[str, dict[str, Any]] = {
            "target": {},
            "dataset": {"registry": sources, "sources": sorted(sources), "heldout": 8, "workers": 2},
            "responses": {"temperature": 0.0, "max_tokens": 32, "concurrency": 4, "min_answer": 4},
            "tokens": {"seq_length": 128, "draft_vocab_size": 256},
            "hidden_states": {
                "concurrency": 4,
                "probe_samples": 4,
                "reference_max_bytes": 0,
                "reserve_bytes": 0,
                "high_water": 1.0,
            },
            "draft": {"epochs": 2, "total_seq_len": 256, "lr": 1e-3, "checkpoint_freq": 0.5},
            "benchmark": {"grid": [cell], "rounds": 1, "warmup": 1, "streams": 1, "after": "stop"},
            "report": {},
        }
        for name, values in changes.items():
            stages[name].update(values)
        return {
            "root": str(self.root),
            "run": "main",
            "host": "here",
            "target": {
                "name": "toy",
                "source": {"kind": "path", "path": str(self.work / "model")},
                "hidden_size": toy.HIDDEN,
                "num_hidden_layers": toy.LAYERS,
                "num_attention_heads": toy.HEADS,
                "vocab_size": toy.VOCAB,
                "aux_layers": toy.AUX,
                "max_model_len": 512,
            },
            "server": {
                "port": self.port,
                "device": "cpu",
                "start_timeout_s": 60,
                "stop_timeout_s": 5,
                "command": [sys.executable, str(HERE / "engine.py"), str(self.control), "serve"],
                "profiles": {"eagle3": {"min_acceptance": 0.0}},
            },
            "stages": stages,
            "execution": {"supervisor": "supervisord", "threads": 2},
        }

    # -- running -------------------------------------------------------------------------------------------

    def environment(self, **more: str) -> dict[str, str]:
        paths = [str(PROJECT / "src")]
        if "FAULT_CLOCK" in more:
            paths.insert(0, str(HERE / "shim"))
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", **more}

    def command(
        self, verb: str, stage: str, spec: dict[str, Any] | None = None, **more: str
    ) -> subprocess.Popen[bytes]:
        """`eyrie VERB STAGE` in a session of its own, as a controller or an operator starts it."""
        path = self.work / f"spec-{time.monotonic_ns()}.json"
        path.write_text(json.dumps(spec or self.spec()))
        log = open(self.work / "log", "ab")  # noqa: SIM115 (the child keeps it)
        argv = [sys.executable, "-m", "eyrie", verb, stage, "--spec", str(path)]
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=log, env=self.environment(**more), start_new_session=True
        )
        log.close()
        return process

    def run(self, stage: str, limit: float = 300.0, **more: str) -> tuple[int, dict[str, Any], float]:
        """(exit status, answer, seconds) of `eyrie run STAGE`."""
        began = time.monotonic()
        process = self.command("run", stage, **more)
        out, _ = process.communicate(timeout=limit)
        return process.returncode, answer_of(out), time.monotonic() - began

    def pids(self) -> set[int]:
        """Every process that works below this root or under its server: by what stands in its command line."""
        marks = (str(self.root).encode(), str(self.control).encode(), str(self.work / "spec-").encode())
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    line = (entry / "cmdline").read_bytes()
                    around = (entry / "environ").read_bytes()
                except OSError:
                    continue
                if any(mark in line or mark in around for mark in marks):
                    found.add(int(entry.name))
        return found

    def server_pids(self) -> set[int]:
        mark = str(self.control).encode()
        return {pid for pid in self.pids() if mark in read(Path(f"/proc/{pid}/cmdline"))}

    def kill(self, pids: set[int]) -> int:
        """kill -9, none warned."""
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return len(pids)

    def kill_all(self) -> None:
        """What the restart of a container leaves: nothing."""
        deadline = time.monotonic() + 10
        while (left := self.pids()) and time.monotonic() < deadline:
            self.kill(left)
            time.sleep(0.05)

    # -- states of the disk --------------------------------------------------------------------------------

    def snapshot(self, stage: str) -> None:
        """Keep the root as it is now, with nothing running."""
        self.kill_all()
        target = self.snapshots / stage
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.root, target, symlinks=True, copy_function=shutil.copy2)

    def restore(self, stage: str) -> None:
        """The root as it was before a stage ran."""
        self.kill_all()
        before = STAGES.index(stage) - 1
        empty(self.root)
        if before >= 0:
            shutil.copytree(self.snapshots / STAGES[before], self.root, symlinks=True, dirs_exist_ok=True)
        (self.control / "log").unlink(missing_ok=True)
        (self.control / "cut").unlink(missing_ok=True)

    def requests(self) -> Counter[str]:
        """Answered requests by kind and prompt."""
        path = self.control / "log"
        return Counter(path.read_text().split("\n")[:-1] if path.exists() else [])

    def folder(self, stage: str, record: dict[str, Any]) -> Path:
        digits = str(record["fingerprint"])[:12]
        return (
            self.root
            / ("models" if stage == "target" else f"runs/main/{stage}")
            / (f"toy-{digits}" if stage == "target" else digits)
        )

    def record(self, stage: str, fingerprint: str = "latest") -> dict[str, Any]:
        path = self.root / "runs" / "main" / "state" / stage / f"{fingerprint[:12]}.json"
        try:
            value: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError):
            return {}
        return value

    # -- what came out -------------------------------------------------------------------------------------

    def items(self, stage: str, fingerprint: str = "latest") -> Counter[str]:
        """The stage's result as a bag of items, equal for equal results: rows, files, tensors, figures."""
        record = self.record(stage, fingerprint)
        if record.get("status") != "done":
            return Counter()
        return Counter(CONTENTS[stage](self.folder(stage, record)))


def empty(folder: Path) -> None:
    """Remove what is in a folder, not the folder itself: it may be a mount."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def answer_of(out: bytes) -> dict[str, Any]:
    try:
        value = json.loads(out)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def rows_of(path: Path, columns: list[str]) -> list[str]:
    import pyarrow.parquet as pq

    return [json.dumps(row, sort_keys=True) for row in pq.read_table(path, columns=columns).to_pylist()]


def of_target(out: Path) -> list[str]:
    files = json.loads((out / "manifest.json").read_text())["files"]
    return [f"{name} {entry['sha256']}" for name, entry in files.items()]


def of_dataset(out: Path) -> list[str]:
    return rows_of(out / "train.parquet", ["id", "source", "row", "conversation"]) + rows_of(
        out / "eval.parquet", ["id", "set", "conversation"]
    )


def of_responses(out: Path) -> list[str]:
    return rows_of(out / "responses.parquet", ["id", "turn", "prompt_ids", "output_ids", "finish_reason"])


def of_tokens(out: Path) -> list[str]:
    from eyrie.tokens.verify import data_rows

    rows = [f"{ids.tolist()} {mask.tolist()}" for ids, mask, _ in data_rows(out / "data")]
    tables = [f"{path.name} {sha(path)}" for path in sorted((out / "vocab").glob("*.npy"))]
    return rows + tables


def of_states(out: Path) -> list[str]:
    found = []
    for line in (out / "manifest.jsonl").read_text().splitlines():
        entry = json.loads(line)
        name = f"hs_{entry['row']}.safetensors"
        found.append(f"{entry['key']} {sha(out / 'states' / name)}")
    return found


def of_draft(out: Path) -> list[str]:
    from eyrie.gates.tensors import folder as tensors_of

    found = []
    for name, entry in sorted(tensors_of(out / "checkpoint").items()):
        with open(entry.path, "rb") as stream:
            stream.seek(entry.start)
            found.append(f"{name} {hashlib.sha256(stream.read(entry.end - entry.start)).hexdigest()}")
    return found


def of_benchmark(out: Path) -> list[str]:
    results = json.loads((out / "results.json").read_text())
    keys = ("variant", "k", "set", "concurrency", "requests", "generated")
    return [json.dumps({key: cell[key] for key in keys}, sort_keys=True) for cell in results["cells"]]


def of_report(out: Path) -> list[str]:
    report = json.loads((out / "report.json").read_text())
    return [f"{stage['name']} {stage['in']} {stage['kept']}" for stage in report["stages"]]


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


CONTENTS = {
    "target": of_target,
    "dataset": of_dataset,
    "responses": of_responses,
    "tokens": of_tokens,
    "hidden_states": of_states,
    "draft": of_draft,
    "benchmark": of_benchmark,
    "report": of_report,
}

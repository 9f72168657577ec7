"""Tokens a second of Eyrie's capture against speculators' and the server's own prefill, on one server, in turns.

    python bench/capture.py --url http://127.0.0.1:8000 --name NAME --model MODEL_FOLDER --layers 2,15,27,30 [--json]

--url: a running extract server (`eyrie server ensure extract`) on this host. Every round asks all three, one after the
other: Eyrie's capture (checked, converted to a content-keyed store, fsynced, in the manifest), `speculators
generate-offline-data --validate-outputs`, and `vllm bench serve` with one output token. Imports and start-up do not
count for any. Then: what a change of a tenth of the rows costs, and how fast `verify` re-reads against plain reads of
the same files (both with the files dropped from the page cache).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE / "support")]


class Setup:
    """The server, the data and the shape of the states."""

    def __init__(self, args: argparse.Namespace, folder: Path):
        from capture_data import rows, write

        from eyrie.hidden_states.keys import Shape
        from eyrie.hidden_states.weights import Checkpoint, dimensions

        self.args, self.folder = args, folder
        found = dimensions(Checkpoint(args.model).config())
        self.rows = rows(args.rows, found.vocab_size, args.mean)
        self.data = write(folder / "prepared", self.rows)
        layers = tuple(int(item) for item in args.layers.split(","))
        self.shape = Shape(layers, found.hidden_size, "bf16", "bench", "bench")
        self.tokens = sum(map(len, self.rows))

    def capture(self, store: Path, data: Path) -> tuple[float, int]:
        """Eyrie's capture of what the store lacks; (seconds, tokens captured)."""
        from eyrie.core.progress import Progress
        from eyrie.core.stage import Work
        from eyrie.hidden_states import plan
        from eyrie.hidden_states.capture import Capture
        from eyrie.hidden_states.corpus import Corpus
        from eyrie.hidden_states.disk import DiskGuard
        from eyrie.hidden_states.settings import HiddenStatesSettings
        from eyrie.hidden_states.store import Store

        settings = HiddenStatesSettings(concurrency=self.args.concurrency, reserve_bytes=0, high_water=1.0)
        corpus = Corpus(data / "data")
        assert len(corpus)  # the import of the data library and the reading of its index do not count
        started = time.monotonic()
        with Store(store) as target:
            todo = plan.missing(target, self.shape, corpus, list(corpus.rows(self.shape)))
            result = Capture(
                target, self.shape, corpus, settings, [self.args.url], self.args.name,
                Work(Progress(self.folder / "progress.json")), DiskGuard(store, settings),
            ).run(todo)  # fmt: skip
        assert not result.failures, result.failures
        return time.monotonic() - started, result.tokens

    def speculators(self, output: Path) -> float:
        """Seconds of speculators' own client on the same rows, by its own count ('N.Ns elapsed')."""
        command = [
            sys.executable, "-m", "speculators", "generate-offline-data", "--endpoint", f"{self.args.url}/v1",
            "--preprocessed-data", str(self.data / "data"), "--output", str(output), "--validate-outputs",
            "--concurrency", str(self.args.concurrency), "--fail-on-error",
        ]  # fmt: skip
        program = Path(sys.executable).with_name("speculators")
        if program.exists():
            command[:3] = [str(program)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"}
        )
        found = re.search(r"Timing: ([\d.]+)s elapsed", done.stdout + done.stderr)
        if done.returncode or not found:
            raise SystemExit(f"generate-offline-data failed: {(done.stdout + done.stderr)[-800:]}")
        return float(found.group(1))

    def prefill(self) -> float:
        """Prompt tokens a second by `vllm bench serve` with one output token."""
        program = Path(sys.executable).with_name("vllm")
        output = self.folder / "bench.json"
        command = [
            str(program), "bench", "serve", "--backend", "openai", "--base-url", self.args.url,
            "--model", self.args.name,
            "--tokenizer", str(self.args.model), "--dataset-name", "random", "--random-input-len", str(self.args.mean),
            "--random-range-ratio", "0.7", "--random-output-len", "1", "--num-prompts", str(self.args.rows),
            "--max-concurrency", str(self.args.concurrency), "--save-result", "--result-filename", output.name,
            "--result-dir", str(self.folder), "--disable-tqdm",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not output.exists():
            raise SystemExit(f"vllm bench serve failed: {(done.stdout + done.stderr)[-800:]}")
        result = json.loads(output.read_text())
        return float(result["total_input_tokens"]) / float(result["duration"])


def changed(setup: Setup, share: float) -> Path:
    """The same data with a share of its rows replaced."""
    from capture_data import rows, write

    count = max(1, int(len(setup.rows) * share))
    return write(setup.folder / "changed", [*rows(count, 1000, setup.args.mean, seed=9), *setup.rows[count:]])


def reading(store: Path) -> dict[str, float]:
    """GB/s of verify's checksums and of plain reads, files dropped from the page cache before each."""
    from eyrie.hidden_states import files

    paths = sorted(store.glob("??/*.safetensors"))
    size = sum(path.stat().st_size for path in paths)
    threads = min(8, os.cpu_count() or 1)

    def plain(path: Path) -> int:
        total = 0
        with open(path, "rb", buffering=0) as stream:
            while block := stream.read(1 << 22):
                total += len(block)
        return total

    rates: dict[str, list[float]] = {"verify": [], "read": []}
    for _ in range(3):
        for name, work in (("read", plain), ("verify", files.checksum)):
            drop(paths)
            started = time.monotonic()
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(work, paths))
            rates[name].append(size / 1e9 / (time.monotonic() - started))
    return {f"{name}_gb_s": round(statistics.median(values), 3) for name, values in rates.items()}


def drop(paths: list[Path]) -> None:
    """Ask the kernel to forget the files' pages."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        setup = Setup(args, Path(name))
        rates: dict[str, list[float]] = {"eyrie": [], "speculators": [], "prefill": []}
        for number in range(args.rounds):
            seconds, tokens = setup.capture(setup.folder / f"store{number}", setup.data)
            rates["eyrie"].append(tokens / seconds)
            rates["speculators"].append(setup.tokens / setup.speculators(setup.folder / f"out{number}"))
            rates["prefill"].append(setup.prefill())
        whole = setup.tokens / statistics.median(rates["eyrie"])
        partial, again = setup.capture(setup.folder / "store0", changed(setup, 0.1))
        middle = {name: statistics.median(values) for name, values in rates.items()}
        return {
            "rows": len(setup.rows),
            "tokens": setup.tokens,
            "rounds": args.rounds,
            **{f"{name}_tok_s": round(value, 1) for name, value in middle.items()},
            "vs_speculators": round(middle["eyrie"] / middle["speculators"], 3),
            "vs_prefill": round(middle["eyrie"] / middle["prefill"], 3),
            "recapture_share_of_tokens": round(again / setup.tokens, 3),
            "recapture_share_of_time": round(partial / whole, 3),
            **reading(setup.folder / "store0"),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--name", required=True, help="served model name")
    parser.add_argument("--model", type=Path, required=True, help="folder of the target")
    parser.add_argument("--layers", required=True, help="captured layer ids, the last one included")
    parser.add_argument("--rows", type=int, default=120)
    parser.add_argument("--mean", type=int, default=160, help="mean tokens of a row")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--folder", type=Path, help="where to write (the server must see it)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measure(args)
    if args.json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            print(f"{key:28} {value}")


if __name__ == "__main__":
    main()

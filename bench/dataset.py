"""Conversations a second, peak memory and CPU of the dataset stage, beside two others over the same files:

  map    the plain `datasets` pipeline of other trainers: load_dataset, map, filter, shuffle, to_parquet
  parse  reading the files and parsing their JSON, and nothing else: what no pipeline can beat

    python bench/dataset.py                       ten sources of 100,000 conversations, in ten schemas
    python bench/dataset.py --rows 10000 --json   smaller; one JSON object on standard output
    python bench/dataset.py --memory              Eyrie alone, at a tenth, a third and all of the rows: its peak memory

Each contender runs in processes of its own, with the same number of workers, over files in the page cache; in three
rounds one after another, of which the best counts (`datasets.map` in one). On a virtual machine whose host takes back
the memory that is free, the first write to each page costs 5 to 10 µs instead of a tenth of it, whoever writes it:
rounds then lie far apart. `pages` says what writing 256 MB to a new file and to one that is there costs.
`vs_json_parse` compares with the standard library's parser (json.loads), `vs_orjson_parse` with orjson, which parses
the rows for Eyrie whose texts cannot be passed through unparsed (that is done by msgspec).
`peak_rss_mb` is the largest sum of the resident memory of all processes of a contender, looked at ten times a second;
pages that they share count once for each of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

#: name, adapter and further settings of each source
SCHEMAS: dict[str, dict[str, Any]] = {
    "sharegpt": {"adapter": "sharegpt"},
    "messages": {"adapter": "messages"},
    "instruction": {"adapter": "pair", "columns": {"prompt": "instruction", "response": "output"}},
    "question": {"adapter": "pair", "columns": {"prompt": "question", "response": "answer"}},
    "prompt": {"adapter": "prompt"},
    "tools": {"adapter": "messages"},
    "reasoning": {"adapter": "messages"},
    "parts": {"adapter": "messages"},
    "system": {"adapter": "sharegpt"},
    "languages": {"adapter": "messages"},
}
WORDS = [
    "the",
    "a",
    "of",
    "to",
    "and",
    "in",
    "is",
    "for",
    "with",
    "model",
    "data",
    "light",
    "river",
    "stone",
    "how",
    "what",
]
WORDS += ["why", "when", "green", "small", "large", "quick", "answer", "number"]
FOREIGN = [
    "das",
    "ist",
    "ein",
    "Satz",
    "über",
    "Größe",
    "и",
    "немного",
    "текста",
    "这是一个",
    "句子",
    "où",
    "été",
    "más",
    "año",
]


# --- the files -------------------------------------------------------------------------------------------------------


def make(folder: Path, rows: int) -> None:
    """Write the sources; about one row in twenty repeats an earlier prompt, one in a hundred has no question."""
    import multiprocessing

    folder.mkdir(parents=True)
    with multiprocessing.get_context("spawn").Pool() as pool:
        pool.starmap(_make, [(folder, number, name, rows) for number, name in enumerate(SCHEMAS)])


def _make(folder: Path, number: int, name: str, rows: int) -> None:
    import orjson

    rng = random.Random(number)
    words = WORDS + FOREIGN if name == "languages" else WORDS
    pool = [" ".join(rng.choices(words, k=rng.randrange(6, 24))) + ".\n" for _ in range(3000)]
    with open(folder / f"{name}.jsonl", "wb") as stream:
        for index in range(rows):
            stream.write(orjson.dumps(_row(name, index, rng, pool)) + b"\n")


def _row(name: str, index: int, rng: random.Random, pool: list[str]) -> dict[str, Any]:
    def say(count: int) -> str:
        start = rng.randrange(len(pool) - count)
        return "".join(pool[start : start + count])

    key = rng.randrange(max(1, index)) if rng.random() < 0.05 else index
    first = f"{name} {key}: {pool[key % len(pool)]}"
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": first},
        {"role": "assistant", "content": say(rng.randrange(2, 14))},
    ]
    for _ in range(rng.randrange(3) if name in ("sharegpt", "messages", "system", "languages") else 0):
        turns += [
            {"role": "user", "content": say(rng.randrange(1, 4))},
            {"role": "assistant", "content": say(rng.randrange(2, 14))},
        ]
    if rng.random() < 0.01:
        turns = turns[1:2]
    identifier = f"{name}-{index}"
    if name in ("sharegpt", "system"):
        names = {"user": "human", "assistant": "gpt"}
        row = {
            "id": identifier,
            "conversations": [{"from": names[turn["role"]], "value": turn["content"]} for turn in turns],
        }
        return row | ({"system": "Be brief."} if name == "system" else {})
    if name in ("instruction", "question"):
        columns = ("instruction", "output") if name == "instruction" else ("question", "answer")
        return {"id": identifier, columns[0]: first, columns[1]: turns[-1]["content"]}
    if name == "prompt":
        return {"id": identifier, "prompt": first}
    if name == "tools":
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": json.dumps({"n": index})}}
        turns[1:] = [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": say(1), "tool_call_id": "c1"},
            {"role": "assistant", "content": say(4)},
        ]
    if name == "reasoning":
        turns[-1]["reasoning_content"] = say(6)
    if name == "parts":
        turns = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in turns]
    return {"id": identifier, "messages": turns}


# --- the contenders --------------------------------------------------------------------------------------------------


def run_eyrie(folder: Path, work: Path, workers: int) -> int:
    """The stage as it is run on a node, without its input stage (no token limits: the others have none either)."""
    from eyrie.core import runner
    from eyrie.core.pipeline import Pipeline
    from eyrie.dataset.stage import STAGE

    type(STAGE).inputs = ()
    registry = {
        name: {"kind": "local", "path": str(folder / f"{name}.jsonl"), **entry} for name, entry in SCHEMAS.items()
    }
    target = {
        "name": "none",
        "source": {"kind": "path", "path": str(work)},
        "hidden_size": 8,
        "num_hidden_layers": 8,
        "num_attention_heads": 2,
        "vocab_size": 8,
        "aux_layers": [2, 4, 5],
    }
    settings = {"registry": registry, "sources": list(registry), "heldout": 0, "workers": workers}
    spec = {"root": str(work / "root"), "run": "bench", "target": target, "stages": {"dataset": settings}}
    return int(runner.run(Pipeline(spec), "dataset")["account"]["kept"])


ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
}


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """One row of any of the ten schemas, as such scripts write it."""
    turns = row.get("messages") or row.get("conversations")
    if turns is None:
        prompt = row.get("instruction") or row.get("question") or row.get("prompt")
        answer = row.get("output") or row.get("answer")
        turns = [{"role": "user", "content": prompt}] + ([{"role": "assistant", "content": answer}] if answer else [])
    messages = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    for turn in turns:
        content = turn.get("content") if turn.get("content") is not None else turn.get("value")
        if isinstance(content, list):
            content = "".join(part["text"] for part in content)
        message = {"role": ROLES[turn.get("role") or turn.get("from")], "content": content or ""}
        for key in ("reasoning_content", "tool_calls", "tool_call_id"):
            if turn.get(key):
                message[key] = turn[key]
        messages.append(message)
    first = next((message["content"] for message in messages if message["role"] == "user"), "")
    return {"conversation": json.dumps(messages, ensure_ascii=False), "key": " ".join(first.casefold().split())}


def run_map(folder: Path, work: Path, workers: int) -> int:
    """load_dataset, map, filter out empty and repeated prompts, shuffle, to_parquet."""
    os.environ["HF_HOME"] = str(work / "hf")
    os.environ["HF_HUB_OFFLINE"] = "1"
    from datasets import concatenate_datasets, disable_progress_bars, load_dataset

    disable_progress_bars()
    parts = []
    for name in SCHEMAS:
        loaded = load_dataset(
            "json", data_files=str(folder / f"{name}.jsonl"), split="train", cache_dir=str(work / "hf")
        )
        parts.append(loaded.map(plain_row, remove_columns=loaded.column_names, num_proc=workers))
    seen: set[str] = set()

    def fresh(key: str) -> bool:
        if not key or key in seen:
            return False
        seen.add(key)
        return True

    whole = concatenate_datasets(parts).filter(fresh, input_columns="key")
    whole.shuffle(seed=0).remove_columns("key").to_parquet(str(work / "train.parquet"))
    return len(whole)


def _stretch(job: tuple[str, int, int, str]) -> int:
    """Parse the lines that begin in a stretch of a file."""
    path, start, end, parser = job
    with open(path, "rb") as stream:
        if start:
            stream.seek(start - 1)
            stream.readline()
        data = stream.read(max(0, end - stream.tell()))
        data += stream.readline()
    if parser == "pyarrow":
        import pyarrow as pa
        import pyarrow.json as pj

        options = pj.ReadOptions(use_threads=False, block_size=1 << 24)
        return int(pj.read_json(pa.BufferReader(data), read_options=options).num_rows)
    if parser == "orjson":
        import orjson

        loads = orjson.loads
    else:
        loads = json.loads
    count = 0
    for line in data.split(b"\n"):
        if line:
            loads(line)
            count += 1
    return count


def run_parse(folder: Path, work: Path, workers: int, parser: str = "json") -> int:
    """Read and parse, in as many processes."""
    import multiprocessing

    jobs = []
    for name in SCHEMAS:
        path = folder / f"{name}.jsonl"
        size, step = path.stat().st_size, 16 << 20
        jobs += [(str(path), start, min(start + step, size), parser) for start in range(0, size, step)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return sum(pool.imap_unordered(_stretch, jobs))


CONTENDERS = ("eyrie", "map", "parse", "parse-orjson", "parse-pyarrow")


def contend(name: str, folder: Path, work: Path, workers: int) -> int:
    if name.startswith("parse"):
        return run_parse(folder, work, workers, name.partition("-")[2] or "json")
    return {"eyrie": run_eyrie, "map": run_map}[name](folder, work, workers)


# --- measuring -------------------------------------------------------------------------------------------------------


class Watch(threading.Thread):
    """Peak of the resident memory of a process and its descendants, summed."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self.pid, self.peak, self.done = pid, 0, threading.Event()

    def run(self) -> None:
        import psutil

        while not self.done.wait(0.1):
            try:
                root = psutil.Process(self.pid)
                family = [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            total = 0
            for process in family:
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.peak = max(self.peak, total)


def measure(name: str, folder: Path, workers: int, scratch: Path) -> dict[str, Any]:
    """Run one contender: seconds, CPU seconds, peak memory, rows kept."""
    import resource

    import psutil

    before_pids = {child.pid for child in psutil.Process().children()}
    work = scratch / name
    work.mkdir()
    argv = [
        sys.executable,
        __file__,
        "--contender",
        name,
        "--folder",
        str(folder),
        "--work",
        str(work),
        "--workers",
        str(workers),
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:2])}
    began = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    watch = Watch(process.pid)
    watch.start()
    out, err = process.communicate()
    seconds = time.perf_counter() - began
    watch.done.set()
    for child in psutil.Process().children():  # what outlived it for a moment is ours now, and so is its CPU time
        if child.pid not in before_pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)
    if process.returncode:
        raise SystemExit(f"{name} failed:\n{err[-3000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(work)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "cpu_s": cpu, "peak_rss_mb": watch.peak / 1e6, "kept": int(out.split()[-1])}


def best(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The fastest of a contender's rounds; `rounds` has the seconds of all."""
    return {**min(rounds, key=lambda item: item["seconds"]), "rounds": [round(item["seconds"], 2) for item in rounds]}


def pages(folder: Path, size: int = 256 << 20) -> dict[str, float]:
    """Seconds to write so much to a file that is new, and again over it: the first needs fresh pages."""
    path, data = folder / "pages", os.urandom(8 << 20)
    found = {}
    for name in ("new", "again"):
        began = time.perf_counter()
        with open(path, "r+b" if path.exists() else "wb", buffering=0) as stream:
            for _ in range(size // len(data)):
                stream.write(data)
        found[name] = round(time.perf_counter() - began, 3)
    path.unlink()
    return found


def adopt_orphans() -> None:
    """Become the parent of what a contender leaves behind, so that its CPU time is counted."""
    import ctypes

    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def memory_table(results: dict[int, dict[str, Any]]) -> str:
    lines = ["| conversations | seconds | peak memory, MB |", "|---|---|---|"]
    for rows, item in results.items():
        lines.append(f"| {rows:,} | {item['seconds']:.1f} | {item['peak_rss_mb']:,.0f} |")
    return "\n".join(lines)


def measure_memory(args: argparse.Namespace, scratch: Path) -> None:
    """Eyrie alone over more and more rows."""
    results = {}
    for rows in (args.rows // 10, args.rows // 3, args.rows):
        folder = scratch / f"sources-{rows}"
        make(folder, rows)
        results[rows * len(SCHEMAS)] = measure("eyrie", folder, args.workers, scratch)
        shutil.rmtree(folder)
    if not args.json:
        print(memory_table(results))
    last = max(results)
    summary = {
        "peak_rss_mb": round(results[last]["peak_rss_mb"]),
        "rows": last,
        "workers": args.workers,
        "peaks": {rows: round(item["peak_rss_mb"]) for rows, item in results.items()},
    }
    print(json.dumps(summary))


def table(results: dict[str, dict[str, Any]], rows: int, size: int) -> str:
    labels = {
        "eyrie": "Eyrie",
        "map": "datasets.map",
        "parse": "json.loads alone",
        "parse-orjson": "orjson alone",
        "parse-pyarrow": "pyarrow.json alone",
    }
    lines = [
        f"{rows:,} conversations, {size / 1e6:,.0f} MB of JSON lines",
        "",
        "| | conversations/s | seconds | CPU seconds | peak memory, MB | kept |",
        "|---|---|---|---|---|---|",
    ]
    for name, item in results.items():
        lines.append(
            f"| {labels[name]} | {rows / item['seconds']:,.0f} | {item['seconds']:.1f} | {item['cpu_s']:.1f} "
            f"| {item['peak_rss_mb']:,.0f} | {item['kept']:,} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="conversations of each of the ten sources")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, help="where the sources are, or are made and kept")
    parser.add_argument("--only", nargs="*", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which each contender's best counts")
    parser.add_argument("--memory", action="store_true", help="only Eyrie, and how its memory grows with the rows")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contender:
        print(contend(args.contender, args.folder, args.work, args.workers))
        return
    with tempfile.TemporaryDirectory(prefix="eyrie-bench-") as name:
        scratch = Path(name)
        adopt_orphans()
        if args.memory:
            measure_memory(args, scratch)
            return
        folder = args.folder or scratch / "sources"
        if not folder.exists():
            make(folder, args.rows)
        size = 0
        for path in folder.glob("*.jsonl"):  # into the page cache
            size += len(path.read_bytes())
        fresh = pages(scratch)
        rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in args.only}
        for number in range(args.rounds):
            for name in args.only:
                if name != "map" or not number:
                    rounds[name].append(measure(name, folder, args.workers, scratch))
        results = {name: best(found) for name, found in rounds.items()}
    rows = args.rows * len(SCHEMAS)
    if not args.json:
        print(table(results, rows, size))
    mine = results["eyrie"]["seconds"]
    summary: dict[str, Any] = {
        "vs_datasets_map": round(results["map"]["seconds"] / mine, 2) if "map" in results else None,
        "vs_json_parse": round(results["parse"]["seconds"] / mine, 3) if "parse" in results else None,
        "vs_orjson_parse": round(results["parse-orjson"]["seconds"] / mine, 3) if "parse-orjson" in results else None,
        "conversations_per_s": round(rows / mine),
        "peak_rss_mb": round(results["eyrie"]["peak_rss_mb"]),
        "rows": rows,
        "workers": args.workers,
        "pages": fresh,
        "contenders": {
            name: {key: value if key == "rounds" else round(value, 2) for key, value in item.items()}
            | {"rows_per_s": round(rows / item["seconds"])}
            for name, item in results.items()
        },
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()

"""Requests a second of Eyrie against speculators' regenerate-responses and against the ideal, in one run.

    python bench/responses.py --model MODEL_FOLDER [--json] [--seconds 5] [--repeats 3]

Both tools get the same prompts, the same fake server (own process, other core) and one core. Time runs from the first
request that the server sees to the last answer that it sends: imports and tokenizer loading do not count. CPU is the
tool's own, over the same time, from /proc. ideal = what `concurrency` requests in flight allow at these latencies.
MODEL_FOLDER: a checkpoint folder; speculators loads its tokenizer.

    python bench/responses.py --model MODEL_FOLDER --server http://127.0.0.1:8000 [--json]

The same with a real server that serves MODEL_FOLDER under that very name: tokens a second of Eyrie, of speculators and
of a client that only sends prepared requests and drops the answers, which is as much as the server can give.
With --orders: Eyrie alone, in each order of asking, over prompts of heavy-tailed length.

    python bench/responses.py --memory 1000000 [--json]

Peak memory of a resumed stage whose store holds so many answers already: reading its index and the dataset's catalog,
then walking all prompts. Nothing is asked: what grows with the number of prompts is all there.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SUPPORT = HERE / "support"
SOURCE = HERE.parent / "src"
TICK = os.sysconf("SC_CLK_TCK")
CASES = {
    "64x50": (64, 0.050, "fixed"),
    "256x200": (256, 0.200, "fixed"),
    "64x50_heavy": (64, 0.050, "heavy"),
}


def latencies(mean: float, kind: str, count: int) -> list[float]:
    """Seconds of each answer, in order of arrival. heavy: lognormal, sigma 1, the same mean, at most 20 times it."""
    if kind == "fixed":
        return [mean] * count
    dice = random.Random(7)
    return [min(dice.lognormvariate(0, 1) / 1.6487 * mean, 20 * mean) for _ in range(count)]


def ideal_seconds(values: list[float], concurrency: int) -> float:
    """Time of a client that costs nothing: every free slot takes the next request at once."""
    slots = [0.0] * concurrency
    for value in values:
        heapq.heapreplace(slots, slots[0] + value)
    return max(slots)


def prompts(folder: Path, count: int, spread: str = "", mark: str = "") -> None:
    """The same conversations for all: train.parquet for Eyrie, prompts.jsonl for others.

    spread: '' all of one length, 'even' 10 to 80 words, 'heavy' lognormal around 80 words, at most 1,000.
    mark: stands first in every prompt, so that a server that saw them before has nothing of them in its prefix cache.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    words = "please explain this to me in some detail, "
    dice = random.Random(5)
    times = {
        "": lambda number: 6,
        "even": lambda number: 1 + number % 8,
        "heavy": lambda number: min(125, 1 + int(dice.lognormvariate(2, 1))),
    }[spread]
    texts = [f"{mark}Question {number}: " + words * times(number) for number in range(count)]
    turns = [[{"role": "user", "content": text}] for text in texts]
    table = {
        "id": [f"p{number}" for number in range(count)],
        "source": ["bench"] * count,
        "row": list(range(count)),
        "conversation": [json.dumps(value) for value in turns],
        "tools": pa.array([None] * count, pa.string()),
    }
    pq.write_table(pa.table(table), folder / "train.parquet")
    lines = (json.dumps({"id": f"p{n}", "conversations": value}) for n, value in enumerate(turns))
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")


def command(tool: str, url: str, folder: Path, concurrency: int, model: str, max_tokens: int = 256) -> list[str]:
    numbers = [str(concurrency), str(max_tokens), model]
    if tool == "eyrie":
        return [sys.executable, str(SUPPORT / "ask_eyrie.py"), url, str(folder), *numbers]
    if tool == "plain":
        return [sys.executable, str(SUPPORT / "ask_plain.py"), url, str(folder / "prompts.jsonl"), *numbers]
    speculators = Path(sys.executable).with_name("speculators")
    return [
        *(str(speculators), "regenerate-responses", "--endpoint", f"{url}/v1/chat/completions"),
        *("--model", model, "--dataset", str(folder / "prompts.jsonl")),
        *("--concurrency", str(concurrency), "--max-tokens", str(max_tokens), "--outfile", str(folder / "out.jsonl")),
        *("--sampling-params", '{"temperature": 0.0}'),
    ]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def cores() -> tuple[set[int], set[int]]:
    """One core for the client, the others for the server (the same one where there is only one)."""
    every = sorted(os.sched_getaffinity(0))
    return {every[0]}, set(every[1:]) or {every[0]}


def measure(tool: str, values: list[float], concurrency: int, model: str) -> dict[str, Any]:
    """One run: {seconds, cpu_seconds, requests}."""
    count = len(values)
    client_core, server_core = cores()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prompts(folder, count)
        (folder / "latencies.json").write_text(json.dumps(values))
        server = subprocess.Popen(
            [sys.executable, str(SUPPORT / "fast_server.py"), "0", str(count), str(folder / "latencies.json")],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, server_core),
        )
        assert server.stdout is not None
        try:
            port = json.loads(server.stdout.readline())["port"]
            client = subprocess.Popen(
                command(tool, f"http://127.0.0.1:{port}", folder, concurrency, model),
                env={**os.environ, "PYTHONPATH": str(SOURCE), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=lambda: os.sched_setaffinity(0, client_core),
            )
            first = json.loads(server.stdout.readline())["first"]
            before = cpu_seconds(client.pid)
            last = json.loads(server.stdout.readline())
            after = cpu_seconds(client.pid)
            _, errors = client.communicate(timeout=60)
            if client.returncode != 0:
                raise SystemExit(f"{tool} failed:\n{errors[-2000:]}")
            lines = (folder / "out.jsonl").read_text().count("\n") if tool != "eyrie" else answers(folder)
            if lines != count:
                raise SystemExit(f"{tool} kept {lines} of {count} answers")
        finally:
            server.kill()
            server.wait()
    return {
        "seconds": last["last"] - first,
        "cpu_seconds": after - before,
        "requests": count,
        "parallel": last["max_parallel"],
    }


def answers(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (folder / "store").glob("*.log"))


def run_case(name: str, seconds: float, repeats: int, model: str) -> dict[str, Any]:
    concurrency, mean, kind = CASES[name]
    values = latencies(mean, kind, round(concurrency / mean * seconds))
    ideal = ideal_seconds(values, concurrency)
    found: dict[str, list[dict[str, Any]]] = {"eyrie": [], "speculators": []}
    for _ in range(repeats):
        for tool, runs in found.items():  # in turn, so that a busy moment hits both
            runs.append(measure(tool, values, concurrency, model))
            shown = runs[-1]
            print(
                f"{name} {tool}: {shown['requests'] / shown['seconds']:.0f}/s, cpu {shown['cpu_seconds']:.2f} s",
                file=sys.stderr,
            )
    result: dict[str, Any] = {"case": name, "requests": len(values), "ideal_per_s": len(values) / ideal}
    for tool, runs in found.items():
        result[tool] = {
            "per_s": len(values) / statistics.median(run["seconds"] for run in runs),
            "share_of_ideal": ideal / statistics.median(run["seconds"] for run in runs),
            "cpu_ms": 1000 * statistics.median(run["cpu_seconds"] for run in runs) / len(values),
            "parallel": max(run["parallel"] for run in runs),
        }
    return result


def generated(url: str) -> float:
    """The server's count of generated tokens so far."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:generation_tokens_total"))


def against_server(
    url: str, model: str, count: int, concurrency: int, repeats: int, tools: Sequence[str]
) -> dict[str, Any]:
    """Tokens a second of each client on the same prompts, by the server's own count, imports not counted.

    The clients take turns; a share is the median over the turns, so that a slow moment hits both sides of one.
    """
    found: dict[str, list[float]] = {tool: [] for tool in tools}
    for turn in range(repeats):
        for tool, rates in found.items():
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                prompts(folder, count, "even", f"{tool} {turn} ")
                rates.append(server_rate(url, tool, folder, concurrency, model))
                print(f"{tool}: {rates[-1]:.1f} tok/s", file=sys.stderr)
    named = {"share_of_saturated": "plain", "vs_speculators_server": "speculators"}
    shares = {
        name: round(statistics.median(a / b for a, b in zip(found["eyrie"], found[tool], strict=True)), 4)
        for name, tool in named.items()
        if tool in found
    }
    return {
        **shares,
        **{f"{tool}_tok_s": round(statistics.median(values), 1) for tool, values in found.items()},
        "each": {tool: [round(value, 1) for value in values] for tool, values in found.items()},
        "requests": count,
        "concurrency": concurrency,
        "load1": round(os.getloadavg()[0], 2),
    }


def in_orders(url: str, model: str, count: int, concurrency: int, repeats: int) -> dict[str, Any]:
    """Tokens a second of Eyrie's orders of asking, in turn, on the same prompts; each pass asks everything anew."""
    found: dict[str, list[float]] = {"dataset": [], "longest_first": [], "bucketed": []}
    for turn in range(repeats):
        for order, rates in found.items():
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                prompts(folder, count, "heavy", f"{order} {turn} ")
                rates.append(server_rate(url, "eyrie", folder, concurrency, model, 160, [order]))
                print(f"{order}: {rates[-1]:.1f} tok/s", file=sys.stderr)
    return {
        **{f"{order}_tok_s": round(statistics.median(rates), 1) for order, rates in found.items()},
        "each": {order: [round(rate, 1) for rate in rates] for order, rates in found.items()},
        "requests": count,
        "concurrency": concurrency,
    }


def memory(count: int) -> dict[str, Any]:
    """Peak memory and seconds of a resumed stage with `count` conversations, all of them answered."""
    with tempfile.TemporaryDirectory() as name:
        argv = [sys.executable, str(SUPPORT / "resume_eyrie.py"), name]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        subprocess.run([*argv, str(count)], env=environment, check=True)
        done = subprocess.run(argv, env=environment, check=True, capture_output=True, text=True)
        stored = sum(path.stat().st_size for path in (Path(name) / "store").glob("*.log"))
    return {"conversations": count, **json.loads(done.stdout), "store_bytes": stored}


def server_rate(
    url: str, tool: str, folder: Path, concurrency: int, model: str, tokens: int = 64, more: Sequence[str] = ()
) -> float:
    """Tokens a second between the first token that the server makes for this client and its last one."""
    before = generated(url)
    client = subprocess.Popen(
        [*command(tool, url, folder, concurrency, model, max_tokens=tokens), *more],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")},
        stdout=subprocess.DEVNULL,
    )
    samples: list[tuple[float, float]] = []
    while client.poll() is None:
        samples.append((time.monotonic(), generated(url)))
        time.sleep(0.1)
    total = generated(url)
    samples.append((time.monotonic(), total))
    if client.returncode != 0:
        raise SystemExit(f"{tool} failed")
    start = max(at for at, value in samples if value == before)
    end = min(at for at, value in samples if value == total)
    return (total - before) / (end - start)


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    by_name = {result["case"]: result for result in results}
    flat: dict[str, Any] = {}
    for name, result in by_name.items():
        flat[f"share_of_ideal_{name}"] = round(result["eyrie"]["share_of_ideal"], 4)
        flat[f"vs_speculators_{name}"] = round(result["eyrie"]["per_s"] / result["speculators"]["per_s"], 4)
    ratios = [result["eyrie"]["cpu_ms"] / result["speculators"]["cpu_ms"] for result in results]
    flat["cpu_vs_speculators"] = round(max(ratios), 4)
    return flat


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        "| latency | ideal/s | Eyrie | of ideal | CPU a request | speculators 0.9.0 | of ideal | CPU a request |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        concurrency, mean, kind = CASES[result["case"]]
        cells = [
            f"{concurrency} x {mean * 1000:.0f} ms{', heavy-tailed' if kind == 'heavy' else ''}",
            f"{result['ideal_per_s']:.0f}",
        ]
        for tool in ("eyrie", "speculators"):
            found = result[tool]
            cells += [f"{found['per_s']:.0f}/s", f"{found['share_of_ideal']:.1%}", f"{found['cpu_ms']:.3f} ms"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="checkpoint folder with a tokenizer")
    parser.add_argument("--seconds", type=float, default=5.0, help="ideal length of one measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--server", default="", help="base URL of a real server")
    parser.add_argument("--requests", type=int, default=256, help="with --server")
    parser.add_argument("--concurrency", type=int, default=64, help="with --server")
    tools = ["plain", "eyrie", "speculators"]
    parser.add_argument("--tools", nargs="+", default=tools, choices=tools, help="with --server")
    parser.add_argument("--orders", action="store_true", help="with --server: compare the orders of asking")
    parser.add_argument("--memory", type=int, default=0, metavar="COUNT", help="memory of a resumed stage")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args()
    if not options.memory and not options.model:
        parser.error("--model is needed")
    if options.server or options.memory:
        given = (options.server, options.model, options.requests, options.concurrency, options.repeats)
        if options.memory:
            found = memory(options.memory)
        else:
            found = in_orders(*given) if options.orders else against_server(*given, options.tools)
        print(json.dumps(found) if options.json else "\n".join(f"{key}: {value}" for key, value in found.items()))
        return
    start = time.monotonic()
    results = [run_case(name, options.seconds, options.repeats, options.model) for name in options.cases]
    if options.json:
        print(json.dumps({**summary(results), "cases": results, "wall_s": round(time.monotonic() - start, 1)}))
    else:
        print(table(results))


if __name__ == "__main__":
    main()

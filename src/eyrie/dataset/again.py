"""A mix that stands: when the sources that it went without fail again, it is left exactly as it is."""

from __future__ import annotations

from typing import Any

from eyrie.core import atomic
from eyrie.core.accounting import Account
from eyrie.core.fingerprint import file_sha256
from eyrie.core.pipeline import Context
from eyrie.core.stage import Outcome
from eyrie.dataset.settings import Settings
from eyrie.dataset.unit import Unit

BEGINS = "The mix was made WITHOUT source "


def warning(one: Unit) -> str:
    """What the report says of a source that the mix went without."""
    return f"{BEGINS}{one.name}: {one.error}"


def standing(ctx: Context) -> dict[str, Any] | None:
    """sources.json of the mix that is there, if its files are what was written; else None."""
    summary = atomic.read_json(ctx.out / "sources.json")
    if not isinstance(summary, dict) or not (ctx.out / "lock.json").is_file():
        return None
    try:
        same = all(file_sha256(ctx.out / name) == written["sha256"] for name, written in summary["files"].items())
    except OSError:
        return None
    return summary if same else None


def outcome(ctx: Context, summary: dict[str, Any], failed: list[Unit]) -> Outcome:
    """The outcome of the standing mix; what its missing sources failed of this time replaces what they failed of."""
    settings: Settings = ctx.settings
    now = {one.name: one for one in failed}
    warnings = [line for line in summary["warnings"] if not line.startswith(tuple(f"{BEGINS}{name}:" for name in now))]
    summary = {**summary, "warnings": [*map(warning, failed), *warnings], "sources": dict(summary["sources"])}
    for name, one in now.items():
        summary["sources"][name] = {**summary["sources"][name], "error": one.error.as_dict() if one.error else None}
    account = Account()
    for name in settings.sources:
        if "kept" in summary["sources"][name]:
            account.merge(Account.from_dict(summary["sources"][name]))
    atomic.write_json(ctx.out / "sources.json", summary)
    written = summary["files"]
    figures = {
        "train": written["train.parquet"]["rows"],
        "eval": written["eval.parquet"]["rows"],
        "sources": summary["sources"],
        "warnings": summary["warnings"],
    }
    size = sum(item["bytes"] for item in written.values())
    return Outcome(account, ["train.parquet", "eval.parquet", "sources.json", "lock.json"], figures, size)

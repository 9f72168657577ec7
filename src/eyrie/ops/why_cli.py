"""`eyrie why DRAFT`: which data, settings and versions a draft came from."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from eyrie.core.fingerprint import flatten, short
from eyrie.ops import shown

SETTING_CHARS = 100


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="eyrie why", description="The provenance chain of a draft.")
    top.add_argument("draft", nargs="?", default="current", help="a version, a run, a folder, or `current` (default)")
    top.add_argument("--root", required=True)
    top.add_argument("--run", default="")
    top.add_argument("--json", action="store_true", help="JSON even at a terminal (elsewhere it is the default)")
    top.add_argument("--text", action="store_true", help="text even into a pipe")
    return top


def run(args: argparse.Namespace) -> dict[str, Any] | str:
    from eyrie.ops import provenance

    answer = provenance.why(Path(args.root), args.draft, args.run)
    return as_text(answer) if args.text or shown.wants_text(args.json) else answer


def as_text(answer: dict[str, Any]) -> str:
    """The chain, draft first, each stage with what decided it."""
    version = answer["version"] or {}
    head = f"draft {short(answer['fingerprint'])} of run {answer['run'] or '?'}"
    if version:
        head += f", version {version['version']}{' (current)' if version.get('current') else ''}"
        if version.get("acceptance"):
            head += f", acceptance {version['acceptance']:.2f}"
    lines = [head]
    for link in reversed(answer["chain"]):
        lines += _stage_lines(link)
    lines.append("The chain is whole." if answer["ok"] else "THE CHAIN IS BROKEN: see the lines marked with !")
    return shown.redact("\n".join(lines))


def _stage_lines(link: dict[str, Any]) -> list[str]:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(link["finished"])) if link.get("finished") else "?"
    account = link.get("account") or {}
    counts = f", {account['kept']:,} of {account['in']:,}" if account else ""
    lines = [f"<- {link['stage']} {short(link['fingerprint'])}  {link['status']} {when}{counts}"]
    if link.get("imported_from"):
        lines.append(f"     came from {link['imported_from'].get('host', 'another host')}")
    if link.get("released"):
        lines.append(f"     outputs given up: {link['released'].get('reason', 'made again when needed')}")
    for name, value in [*flatten(link.get("settings") or {}).items(), *(link.get("tools") or {}).items()]:
        if value not in ("", None, [], {}, "absent"):
            lines.append(f"     {name}: {_brief(value)}")
    return lines + [f"   ! {problem}" for problem in link["problems"]]


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    text = text.replace("\n", " ")
    return text if len(text) <= SETTING_CHARS else text[: SETTING_CHARS - 3] + "..."

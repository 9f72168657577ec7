"""`eyrie doctor`: causes and cures for what went wrong in a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from eyrie.core.registry import NAMES
from eyrie.ops import shown


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="eyrie doctor", description="Name the cause and the cure of a failure.")
    top.add_argument("stage", nargs="?", choices=NAMES, help="default: every stage that is not done")
    top.add_argument("--root", required=True)
    top.add_argument("--run", default="main")
    top.add_argument("--play-log", type=Path, help="Ansible's own output, to be looked at too")
    top.add_argument("--json", action="store_true", help="JSON even at a terminal (elsewhere it is the default)")
    top.add_argument("--text", action="store_true", help="text even into a pipe")
    return top


def run(args: argparse.Namespace) -> dict[str, Any] | str:
    from eyrie.ops.doctor import examine

    answer = examine.examine(Path(args.root), args.run, [args.stage] if args.stage else [], args.play_log)
    return examine.as_text(answer) if args.text or shown.wants_text(args.json) else answer

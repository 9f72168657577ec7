"""`eyrie status`: JSON for modules and pipes, one screen for people, `--watch` keeps it fresh."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from eyrie.core import status as core_status
from eyrie.core.registry import NAMES
from eyrie.ops import shown


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="eyrie status", description="Where each stage stands.")
    top.add_argument("stage", nargs="?", choices=NAMES)
    top.add_argument("--root", required=True)
    top.add_argument("--run", default="main")
    top.add_argument("--json", action="store_true", help="JSON even at a terminal (elsewhere it is the default)")
    top.add_argument("--host", action="store_true", help="add disk, GPUs, servers and findings to one stage's JSON")
    top.add_argument("--text", action="store_true", help="the screen even into a pipe")
    top.add_argument("--watch", nargs="?", type=float, const=2.0, metavar="SECONDS", help="keep the screen fresh")
    return top


def run(args: argparse.Namespace) -> dict[str, Any] | str:
    from eyrie.ops import overview

    root, names = Path(args.root), [args.stage] if args.stage else None
    if args.watch and not args.json:
        return watch(root, args.run, names, max(0.2, args.watch))
    if args.text or shown.wants_text(args.json):
        return render(overview.overview(root, args.run, names))
    if args.stage and not args.host:
        return core_status.run_status(root, args.run, names)  # what modules poll: no look at GPUs or servers
    return overview.overview(root, args.run, names)


def render(status: dict[str, Any], width: int | None = None) -> str:
    """The screen as text, with colours only at a terminal."""
    import io
    import shutil
    import sys

    from rich.console import Console

    from eyrie.ops import view

    width = width or shutil.get_terminal_size((120, 40)).columns
    page = io.StringIO()
    console = Console(file=page, width=width, force_terminal=sys.stdout.isatty(), highlight=False)
    console.print(view.screen(status))
    return page.getvalue().rstrip("\n")


def watch(root: Path, run_name: str, names: list[str] | None, every: float) -> str:
    """Redraw until Ctrl-C; the last screen stays."""
    from rich.console import Console
    from rich.live import Live

    from eyrie.ops import overview, view

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                live.update(view.screen(overview.overview(root, run_name, names)), refresh=True)
                time.sleep(every)
        except KeyboardInterrupt:
            return ""

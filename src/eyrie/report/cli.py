"""`eyrie compare`: runs side by side, on one page."""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.fingerprint import file_sha256


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="eyrie compare", description="Two or more runs side by side, on one page.")
    top.add_argument("names", nargs="+", help="runs of this root, or hosts whose report was brought to <root>/compare")
    top.add_argument("--root", required=True)
    top.add_argument("--check", action="store_true", help="say whether the page would change, and write nothing")
    return top


def run(args: argparse.Namespace) -> dict[str, Any]:
    """{page, changed, lines}: the page's path, whether it is another one than before, its figures as aligned lines."""
    from eyrie.report import compare, lines

    os.environ.setdefault("MPLCONFIGDIR", str(Path(args.root) / "cache" / "matplotlib"))
    root = Path(args.root)
    reports = compare.read(root, args.names)
    text = compare.build(reports)
    path = compare.folder(root) / f"{'-'.join(args.names)}.html"
    before = file_sha256(path) if path.is_file() else None
    if not args.check:
        atomic.write_text(path, text)
    changed = before != hashlib.sha256(text.encode("utf-8")).hexdigest()
    rows = [["", *(f">{name}" for name in reports)], *compare.table(reports)]
    return {"page": str(path), "changed": changed, "lines": lines.table(rows)}

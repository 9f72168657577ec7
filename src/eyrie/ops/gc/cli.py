"""`eyrie gc`: what may be deleted because it can be made again (the plan), and its deletion (--apply)."""

from __future__ import annotations

import argparse
from typing import Any

from eyrie.ops import shown


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="eyrie gc", description="Delete what can be made again. Plans unless --apply.")
    top.add_argument("--spec", default="-")
    top.add_argument("--apply", action="store_true", help="delete what the plan says")
    top.add_argument("--expect", default="", metavar="ID", help="only if the plan still has this id")
    top.add_argument("--json", action="store_true", help="JSON even at a terminal (elsewhere it is the default)")
    top.add_argument("--text", action="store_true", help="text even into a pipe")
    return top


def run(args: argparse.Namespace) -> dict[str, Any] | str:
    from eyrie.cli import read_spec
    from eyrie.core.pipeline import Pipeline
    from eyrie.ops.gc import apply, find

    pipeline = Pipeline(read_spec(args.spec))
    answer = apply.apply(pipeline, args.expect) if args.apply else find.plan(pipeline).as_dict()
    answer["lines"] = lines(answer)
    return "\n".join(answer["lines"]) if args.text or shown.wants_text(args.json) else answer


def lines(answer: dict[str, Any]) -> list[str]:
    """What goes, why it may, and what stays although a rule looked at it."""
    gone = "deleted" in answer
    items = answer["deleted"] if gone else answer["items"]
    text = [
        f"{'deleted' if gone else 'may go'} {shown.size(item['bytes']):>9}  {item['path']}\n"
        f"        {item['because']}" + (f" (took {shown.span(item['seconds'])})" if item["seconds"] else "")
        for item in items
    ]
    text += [f"stays             {item['path']}\n        {item['why']}" for item in answer.get("kept", [])]
    text += [f"skipped           {item['path']}\n        {item['why']}" for item in answer.get("skipped", [])]
    text.append(f"{'freed' if gone else 'would free'} {shown.size(answer['bytes'])} by {len(items)} deletions")
    return text

"""`eyrie teardown VERB`: one JSON request on standard input (or --request FILE), one JSON answer.

plan   {spec, accept?}         what a wipe would take, what of it is not saved, what runs
pack   {spec, save?}           the manifest of the results, for `eyrie port send` (a pull) to the controller
mark   {spec, packed, where}   remember that the pack was proved where it was saved
wipe   {spec, what, accept?}   remove secrets, data, environment
"""

from __future__ import annotations

import argparse
from typing import Any

from eyrie.core.pipeline import Pipeline
from eyrie.port.cli import need, read_request

VERBS = ("plan", "pack", "mark", "wipe")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="eyrie teardown", description="Leave a host without losing anything unsaid.")
    top.add_argument("action", choices=VERBS)
    top.add_argument("--request", default="-", help="file with the request (JSON), - for standard input")
    return top


def run(args: argparse.Namespace) -> dict[str, Any]:
    return answer(args.action, read_request(args.request))


def answer(action: str, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one verb."""
    from eyrie.port import saved, teardown

    (spec,) = need(request, "spec")
    pipeline = Pipeline(spec)
    if action == "plan":
        return teardown.plan(pipeline, request.get("accept"))
    if action == "pack":
        return saved.pack(pipeline, list(request.get("save") or []))
    if action == "mark":
        packed, where = need(request, "packed", "where")
        return saved.mark(pipeline, packed, where)
    (what,) = need(request, "what")
    return teardown.wipe(pipeline, list(what), request.get("accept"))

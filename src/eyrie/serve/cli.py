"""`eyrie server VERB`: plan, start, begin, look, stop, status, prove, exec, node, lint."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from eyrie.core.errors import EyrieError
from eyrie.core.pipeline import Pipeline
from eyrie.serve import key
from eyrie.serve.settings import PROFILES


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="eyrie server", description="Servers of the target model on this host.")
    verbs = top.add_subparsers(dest="server_verb", required=True)
    for name, help_text in (
        ("plan", "which unit would stop and start, and why"),
        ("start", "make a profile serve, with proof"),
        ("begin", "make a profile serve in the background, or attach to that"),
        ("look", "where that stands"),
        ("act", "the background switch itself (the supervisor runs this)"),
        ("prove", "prove what serves now"),
    ):
        sub = verbs.add_parser(name, help=help_text)
        sub.add_argument("profile", choices=PROFILES)
        sub.add_argument("--spec", default="-")
        if name == "look":
            sub.add_argument("--seconds", type=float, default=0.0, help="wait so long for its end")
    for name, help_text in (("stop", "stop whatever serves"), ("status", "what serves")):
        sub = verbs.add_parser(name, help=help_text)
        sub.add_argument("--spec", default="-")
    become = verbs.add_parser("exec", help="become the server of a launch document (units run this)")
    become.add_argument("profile", choices=PROFILES)
    become.add_argument("--root", required=True)
    node = verbs.add_parser("node", help="become this host's node of the Ray cluster (a unit runs this)")
    node.add_argument("--root", required=True)
    lint = verbs.add_parser("lint", help="find what systemd would silently misread in unit and environment files")
    lint.add_argument("files", nargs="+")
    return top


def run(args: argparse.Namespace) -> dict[str, Any]:
    verb = args.server_verb
    if verb in ("exec", "node"):
        _become(args)
    if verb == "lint":
        from eyrie.serve import lint

        return lint.files([Path(name) for name in args.files])
    from eyrie.cli import read_spec

    pipeline = Pipeline(read_spec(args.spec))
    with contextlib.suppress(*([EyrieError] if verb in ("plan", "look", "stop", "status") else [])):
        key.hold(pipeline)  # looking and stopping do not fail for want of a key
    verbs: dict[str, Callable[[Pipeline, argparse.Namespace], dict[str, Any]]]
    verbs = {
        "plan": _plan,
        "start": _start,
        "begin": _begin,
        "look": _look,
        "act": _act,
        "stop": _stop,
        "status": _status,
        "prove": _prove,
    }
    return verbs[verb](pipeline, args)


def _become(args: argparse.Namespace) -> NoReturn:
    import sys

    from eyrie.serve import cluster, execute

    try:
        if args.server_verb == "node":
            cluster.become(Path(args.root))
        execute.become(Path(args.root), args.profile)
    except EyrieError as error:
        print(f"eyrie: {error}", file=sys.stderr, flush=True)
        sys.exit(execute.WRONG_DOCUMENT)


def _plan(pipeline: Pipeline, args: argparse.Namespace) -> dict[str, Any]:
    from eyrie.serve import switch

    return switch.plan(pipeline, args.profile)


def _start(pipeline: Pipeline, args: argparse.Namespace) -> dict[str, Any]:
    from eyrie.serve import background, switch

    return background.shown(pipeline, switch.ensure(pipeline, args.profile))


def _begin(pipeline: Pipeline, args: argparse.Namespace) -> dict[str, Any]:
    from eyrie.serve import background

    return background.begin(pipeline, args.profile)


def _look(pipeline: Pipeline, args: argparse.Namespace) -> dict[str, Any]:
    from eyrie.serve import background

    return background.look(pipeline, args.profile, args.seconds)


def _act(pipeline: Pipeline, args: argparse.Namespace) -> dict[str, Any]:
    from eyrie.serve import background

    return background.act(pipeline, args.profile)


def _stop(pipeline: Pipeline, args: argparse.Namespace) -> dict[str, Any]:
    from eyrie.serve import status, switch

    before = status.of(pipeline)["active"]
    switch.stop(pipeline)
    return {"stopped": before}


def _status(pipeline: Pipeline, args: argparse.Namespace) -> dict[str, Any]:
    from eyrie.serve import status

    return status.of(pipeline)


def _prove(pipeline: Pipeline, args: argparse.Namespace) -> dict[str, Any]:
    from eyrie.serve import identity

    return identity.prove(pipeline, args.profile)

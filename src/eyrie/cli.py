"""The `eyrie` command: the stage contract, and nothing else, is what the Ansible modules speak to.

Answers are one JSON object on standard output; errors are one JSON object {"error": {...}} there too, with
exit status 1 (failed), 2 (bad settings) or 3 (already running). Logs go to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from eyrie import __version__
from eyrie.core.errors import EyrieError, SpecError
from eyrie.core.registry import NAMES

#: verb -> module with `parser()` and `run(args) -> dict`, imported only when its verb is used
EXTRA_VERBS: dict[str, str] = {
    "server": "eyrie.serve.cli",
    "status": "eyrie.ops.status_cli",
    "wait": "eyrie.core.wait",
    "doctor": "eyrie.ops.doctor.cli",
    "why": "eyrie.ops.why_cli",
    "gc": "eyrie.ops.gc.cli",
    "canary": "eyrie.ops.canary.cli",
    "notify": "eyrie.ops.notify_cli",
    "port": "eyrie.port.cli",
    "teardown": "eyrie.port.teardown_cli",
    "compare": "eyrie.report.cli",
    "monitor": "eyrie.monitor.cli",
}


def read_spec(source: str) -> dict[str, Any]:
    """The run's spec from a file, or '-' for standard input."""
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text("utf-8")
        value = json.loads(text)
    except OSError as error:
        raise SpecError(f"cannot read the spec: {error}", where=source, code="spec-unreadable") from None
    except ValueError as error:
        raise SpecError(f"the spec is not JSON: {error}", where=source, code="spec-not-json") from None
    if not isinstance(value, dict):
        raise SpecError("the spec must be a JSON object.", where=source, code="spec-type")
    return value


def _plan(args: argparse.Namespace) -> dict[str, Any]:
    from eyrie.core import planner
    from eyrie.core.pipeline import Pipeline

    pipeline = Pipeline(read_spec(args.spec))
    if args.stage == "all":
        return planner.plan_all(pipeline)
    answer = planner.plan(pipeline.context(args.stage))
    pipeline.hashes.save()
    return answer


def _run(args: argparse.Namespace) -> dict[str, Any]:
    from eyrie.core import runner
    from eyrie.core.pipeline import Pipeline

    return runner.run(Pipeline(read_spec(args.spec)), args.stage)


def _start(args: argparse.Namespace) -> dict[str, Any]:
    from eyrie.core.pipeline import Pipeline
    from eyrie.supervise import jobs

    return jobs.start(Pipeline(read_spec(args.spec)), args.stage)


def _stop(args: argparse.Namespace) -> dict[str, Any]:
    from eyrie.core.pipeline import Pipeline
    from eyrie.supervise import jobs

    return jobs.stop(Pipeline(read_spec(args.spec)), args.stage)


def _verify(args: argparse.Namespace) -> dict[str, Any]:
    from dataclasses import asdict

    from eyrie.core.pipeline import Pipeline

    pipeline = Pipeline(read_spec(args.spec))
    if args.stage == "all":
        from eyrie.ops import verify

        return verify.everything(pipeline)
    ctx = pipeline.context(args.stage)
    faults = {args.stage: [asdict(fault) for fault in ctx.stage.verify(ctx)]}
    return {"ok": not any(faults.values()), "faults": faults}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="eyrie", description="Draft-model training as resources.")
    top.add_argument("--version", action="version", version=__version__)
    verbs = top.add_subparsers(dest="verb", required=True)

    def verb(name: str, help_text: str, act: Callable[[argparse.Namespace], dict[str, Any]]) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=help_text)
        sub.set_defaults(act=act)
        return sub

    def with_stage(sub: argparse.ArgumentParser, extra: tuple[str, ...] = ()) -> None:
        sub.add_argument("stage", choices=[*NAMES, *extra])
        sub.add_argument("--spec", default="-", help="file with the run's spec, - for standard input")

    with_stage(verb("plan", "what would run, and why", _plan), ("all",))
    with_stage(verb("run", "bring a stage up to date, in the foreground", _run))
    with_stage(verb("start", "bring a stage up to date, under the supervisor", _start))
    with_stage(verb("stop", "ask a running stage to stop; it resumes later", _stop))
    with_stage(verb("verify", "re-read a stage's outputs", _verify), ("all",))
    for name in EXTRA_VERBS:
        verbs.add_parser(name, help=f"see `eyrie {name} --help`", add_help=False)
    return top


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse a command line; a verb of EXTRA_VERBS brings its own parser (`parser()`) and act (`run(args)`)."""
    if argv and argv[0] in EXTRA_VERBS:
        module = import_module(EXTRA_VERBS[argv[0]])
        args: argparse.Namespace = module.parser().parse_args(argv[1:])
        args.act = module.run
        return args
    return parser().parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(list(sys.argv[1:] if argv is None else argv))
    try:
        answer = args.act(args)
    except OSError as error:
        answer = {"what": f"{type(error).__name__}: {error}", "where": str(error.filename or ""), "code": "io-error"}
        todo = "Check the disk (full, read-only?) and rights; `eyrie doctor` names known causes."
        print(json.dumps({"error": {**answer, "why": "", "todo": todo}}, ensure_ascii=False))
        print(f"eyrie: {error}", file=sys.stderr)
        return 1
    except EyrieError as error:
        print(json.dumps({"error": error.as_dict()}, ensure_ascii=False))
        print(f"eyrie: {error}", file=sys.stderr)
        if isinstance(error, SpecError):
            return 2
        return 3 if error.code.startswith("running-") else 1
    print(answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`eyrie canary`: the canary's spec (derive), and what its small run shows (judge)."""

from __future__ import annotations

import argparse
import json
from typing import Any


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="eyrie canary", description="The whole chain on a few dozen prompts.")
    verbs = top.add_subparsers(dest="canary_verb", required=True)
    derive = verbs.add_parser("derive", help="the spec of a run's canary")
    judge = verbs.add_parser("judge", help="look for faults in what the canary left; --spec is the canary's own")
    for sub in (derive, judge):
        sub.add_argument("--spec", default="-")
        sub.add_argument("--settings", default="{}", help="JSON: what differs from the defaults")
    return top


def run(args: argparse.Namespace) -> dict[str, Any]:
    from eyrie.cli import read_spec
    from eyrie.core.errors import SpecError
    from eyrie.ops.canary import derive

    spec = read_spec(args.spec)
    try:
        given = json.loads(args.settings)
        values = derive.settings(given)
        if args.canary_verb == "derive":
            return {"spec": derive.derive(spec, given), "settings": values}
    except (ValueError, KeyError) as error:
        raise SpecError(str(error), where="canary") from None
    return _judge(spec, values)


def _judge(spec: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    from eyrie.core.pipeline import Pipeline
    from eyrie.ops.canary import judge
    from eyrie.ops.canary.look import Look

    pipeline = Pipeline(spec)
    verdict = judge.judge(Look.of(pipeline, values))
    judge.write(pipeline.run_dir, verdict)
    judge.refuse(verdict)
    return verdict

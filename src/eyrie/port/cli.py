"""`eyrie port VERB`: one JSON request on standard input (or --request FILE), one JSON answer.

survey   {spec}                                source       what the run holds here
plan     {spec, source, link?, options?}       destination  what is copied, made again, reused
pack     {spec, decisions}                     source       the manifest of what travels
prepare  {spec, source, trees}                 destination  the folder that files arrive in
send     {trees, manifest, sha256, to, limits} either       bring a pack's trees to a place, in the foreground
start    {spec, ...as send}                    source       the same under the supervisor
status   {spec}                                source       how far a started one is
start_here, status_here {job, ...as send}      controller   the same without a supervisor; job: a folder for it
check    {spec, folder, sha256}                destination  which files did not arrive as they left
prove    {folder, sha256}                      controller   the same of a pack that stays where it is
land     {spec, plan, folder, sha256}          destination  prove all files, put them in place, write the records
key      {spec, state}                         source       a key pair for one port
probe    {spec, to, bytes?}                    source       can the destination be reached, and how fast
measure  {source?, destination}                controller   how fast files go through here (two connections)
identities {spec}                              leader       what the hosts of a group must agree on
agree    {spec, leader}                        the others   whether this host does

survey and pack take {saved: FOLDER} in place of a spec: a run that teardown saved is a source like any other.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from eyrie.core.errors import SpecError
from eyrie.core.pipeline import Pipeline

HOST_VERBS = ("survey", "plan", "pack", "prepare", "start", "status", "check", "land", "key", "probe")
GROUP_VERBS = ("identities", "agree")
#: without a spec: they work on a pack or on a link
PLAIN_VERBS = ("send", "start_here", "status_here", "prove", "measure")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="eyrie port", description="Carry a run to another host.")
    top.add_argument("action", choices=(*HOST_VERBS, *GROUP_VERBS, *PLAIN_VERBS))
    top.add_argument("--request", default="-", help="file with the request (JSON), - for standard input")
    return top


def run(args: argparse.Namespace) -> dict[str, Any]:
    return answer(args.action, read_request(args.request))


def read_request(source: str) -> dict[str, Any]:
    try:
        value = json.loads(sys.stdin.read() if source == "-" else Path(source).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the request: {error}", where=source, code="request-unreadable") from None
    if not isinstance(value, dict):
        raise SpecError("the request must be a JSON object.", where=source, code="request-type")
    return value


def need(request: dict[str, Any], *names: str) -> list[Any]:
    """The request's values of these names; SpecError for a missing one."""
    missing = [name for name in names if request.get(name) is None]
    if missing:
        raise SpecError(f"the request lacks {', '.join(missing)}.", where="port", code="request-incomplete")
    return [request[name] for name in names]


def answer(action: str, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one verb."""
    from eyrie.port import carry

    act = getattr(carry, action)
    if action in PLAIN_VERBS:
        return dict(act(request))
    if action in ("survey", "pack") and request.get("saved"):
        return dict(act(None, request))
    (spec,) = need(request, "spec")
    return dict(act(Pipeline(spec), request))

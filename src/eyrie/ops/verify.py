"""verify everything: outputs against their records and manifests, kept drafts, and the provenance chain."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eyrie.core import atomic, planner, registry, state
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import short
from eyrie.core.pipeline import Context, Pipeline
from eyrie.core.stage import Fault
from eyrie.ops import provenance

MAX_HEADER = 100 * 1024 * 1024  # safetensors' own limit


def everything(pipeline: Pipeline) -> dict[str, Any]:
    """{ok, faults: {place: [fault, ...]}, checked: {stage: what was done}}; place is a stage or one of ours."""
    faults: dict[str, list[Fault]] = {}
    checked: dict[str, str] = {}
    for name in registry.NAMES:
        checked[name], faults[name] = stage(pipeline.context(name))
    faults["earlier settings"] = list(superseded(pipeline))
    faults["drafts"] = list(kept_drafts(pipeline.root))
    faults["provenance"] = list(chains(pipeline.root))
    return {
        "ok": not any(faults.values()),
        "faults": {place: [asdict(fault) for fault in found] for place, found in faults.items() if found},
        "checked": checked,
    }


def stage(ctx: Context) -> tuple[str, list[Fault]]:
    """(what was done, faults) of one stage under the present settings; a stage that never ran has no faults."""
    torn = [Fault(str(path), "is not JSON", "Run the stage again.", "record-torn") for path in torn_records(ctx)]
    record = ctx.record()
    status = ctx.state.status_of(record)
    if status == "absent":
        return "has not run with these settings", torn
    if record.get("released"):
        return "its outputs were given up: they can be made again", torn
    if status != state.DONE:
        return f"is {status}: nothing to verify yet", torn
    try:
        return "verified", torn + list(ctx.stage.verify(ctx))
    except EyrieError as error:
        return "verified", [*torn, Fault(error.where or str(ctx.out), error.what, error.todo, error.code)]
    except (OSError, ValueError, KeyError) as error:  # a damaged output that verify did not expect
        todo = "Run the stage again; if it stays, report it."
        return "verified", [*torn, Fault(str(ctx.out), f"{type(error).__name__}: {error}", todo, "verify-failed")]


def torn_records(ctx: Context) -> list[Path]:
    """State files that cannot be read as JSON."""
    bad = []
    for path in sorted(ctx.state.path.glob("*.json")):
        try:
            json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            bad.append(path)
    return bad


def superseded(pipeline: Pipeline) -> Iterator[Fault]:
    """Outputs of earlier settings that are still there but are no longer as they were verified."""
    for name in registry.NAMES:
        ctx = pipeline.context(name)
        for path in sorted(ctx.state.path.glob("[0-9a-f]*.json")):
            record = read_record(path)
            digest = str(record.get("fingerprint", ""))
            folder = provenance.outputs_of(pipeline.root, pipeline.run, name, digest)
            if record.get("status") != state.DONE or digest == ctx.fingerprint or folder is None:
                continue
            for output, size in (record.get("output_sizes") or {}).items():
                if not record.get("released") and planner.output_size(folder / output) != size:
                    todo = "Delete the folder, or go back to those settings and run the stage again."
                    yield Fault(
                        f"{folder}/{output}", f"is not as it was verified ({size} bytes)", todo, "output-changed"
                    )


def read_record(path: Path) -> dict[str, Any]:
    """A record file, {} when it is torn (which is a fault of its own)."""
    record = atomic.read_json(path, {})
    return record if isinstance(record, dict) else {}


def kept_drafts(root: Path) -> Iterator[Fault]:
    """Versions whose files are damaged, and a `current` that leads nowhere."""
    from eyrie.benchmark import drafts

    link = drafts.folder(root) / drafts.CURRENT
    if link.is_symlink() and not link.is_dir():
        todo = "Promote a version: playbooks/serve.yml -e draft=<version>."
        yield Fault(str(link), f"leads to {os.readlink(link)}, which is not there", todo, "draft-link")
    for version in drafts.versions(root):
        folder = drafts.folder(root) / str(version["version"])
        if not (folder / "config.json").is_file():
            yield Fault(str(folder / "config.json"), "is missing", "Keep another version, this one cannot be served.")
        for path in sorted(folder.glob("*.safetensors")):
            problem = safetensors_problem(path)
            if problem:
                yield Fault(str(path), problem, "Promote another version, or train again.", "draft-damaged")


def safetensors_problem(path: Path) -> str:
    """'' when a safetensors file is as long as its header says, else what is wrong. Reads only the header."""
    size = path.stat().st_size
    with open(path, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(MAX_HEADER, size - 8):
            return f"is cut off: {size} bytes"
        try:
            header = json.loads(stream.read(length))
            end = max((item["data_offsets"][1] for name, item in header.items() if name != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError):
            return "has a damaged header"
    wanted = 8 + length + int(end)
    return "" if size == wanted else f"is {size} bytes, its header says {wanted}"


def chains(root: Path) -> Iterator[Fault]:
    """What is wrong in the provenance of the kept drafts (a chain that two drafts share is told once)."""
    from eyrie.benchmark import drafts

    told = set()
    for version in drafts.versions(root):
        digest = str(version.get("draft_fingerprint") or version["version"])
        for link in provenance.chain(root, "draft", digest, str(version.get("run") or "")):
            for problem in link.problems:
                key = (link.stage, link.fingerprint, problem)
                if key not in told:
                    told.add(key)
                    where = f"{link.stage} {short(link.fingerprint)} (draft {version['version']})"
                    yield Fault(
                        where, problem, "See `eyrie why`; a draft that is served works without.", "chain-broken"
                    )

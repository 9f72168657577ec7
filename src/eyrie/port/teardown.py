"""Leaving a host: what would be lost, what runs, what is wiped. Refuses while something is not saved."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eyrie.benchmark import drafts
from eyrie.core import atomic, lock, registry
from eyrie.core.errors import EyrieError, GateError, SpecError
from eyrie.core.pipeline import Pipeline
from eyrie.core.stage import tree_bytes
from eyrie.core.state import StateDir
from eyrie.port import keys, saved
from eyrie.port.manifest import STATE
from eyrie.port.saved import RESULTS
from eyrie.port.shown import human_bytes, human_minutes

SECRETS, DATA, ENVIRONMENT = "secrets", "data", "environment"
KINDS = (SECRETS, DATA, ENVIRONMENT)
#: folders below the root that belong to Eyrie, by what they are
FOLDERS = {
    DATA: ("runs", "drafts", "prompts", "models", "cache", "port", "state", "server", "ray"),
    ENVIRONMENT: ("venv", "supervisor", "wheels", "venvs"),  # the last one is what this runs in
}
#: tokens that tools leave on their own
TOKEN_FILES = ("cache/hf/token", "cache/hf/stored_tokens", "ray/token")  # HF_HOME of the jobs; the cluster's


@dataclass(frozen=True)
class Holding:
    """One thing that a wipe of the data would take.

    saved: True / False for results; None for what can be made again or downloaded. cost: what it took or would take.
    """

    name: str
    run: str
    bytes: int
    files: int
    saved: bool | None
    cost: str

    @property
    def key(self) -> str:
        """How an operator names it: 'draft' of this run, 'other/draft' of another."""
        return f"{self.run}/{self.name}" if self.run else self.name


def plan(pipeline: Pipeline, accept: list[str] | None = None) -> dict[str, Any]:
    """{ok, running, serving, holdings, unsaved, secrets, gates, lines}. Read-only."""
    root = pipeline.root
    holdings = list(_holdings(pipeline))
    unsaved = [item.key for item in holdings if item.saved is False]
    allowed = set(accept or [])
    unknown = allowed - {item.key for item in holdings}
    running = _running(root)
    gates = [
        {
            "name": "nothing runs",
            "ok": not running,
            "message": "" if not running else f"still running: {', '.join(running)}. Stop it first (`eyrie stop`).",
        }
    ]
    for item in holdings:
        if item.saved is False and item.key not in allowed:
            text = f"{item.key} is not saved: {human_bytes(item.bytes)} in {item.files} files, {item.cost}."
            gates.append({"name": f"{item.key} is saved", "ok": False, "message": text})
    if unknown:
        raise SpecError(
            f"eyrie_teardown_accept_loss names {', '.join(sorted(unknown))}, which is not here.",
            where="teardown",
            todo=f"Here: {', '.join(item.key for item in holdings) or 'nothing'}.",
        )
    secrets = [str(path) for path in secret_files(pipeline)]
    return {
        "ok": all(gate["ok"] for gate in gates),
        "host": pipeline.host,
        "running": running,
        "holdings": [{**asdict(item), "key": item.key} for item in holdings],
        "unsaved": unsaved,
        "secrets": secrets,
        "foreign": _foreign(root),
        "gates": gates,
        "lines": _lines(pipeline.host, holdings, secrets, gates),
    }


def _holdings(pipeline: Pipeline) -> Iterator[Holding]:
    root, known = pipeline.root, saved.ledger(pipeline.root)
    for run in saved.runs(root):
        label = "" if run == pipeline.run else run
        for stage in (*RESULTS, STATE):
            place = saved.kept(root / "runs" / run, stage)
            found = saved.kept_items(place)
            if found:
                size = sum(item.bytes for item in found)
                yield Holding(
                    stage, label, size, len(found), saved.is_saved(root, run, place, known), _spent(root, run, stage)
                )
        states = saved.kept(root / "runs" / run, "hidden_states")
        found = saved.kept_items(states)
        if found:
            safe = saved.is_saved(root, run, states, known) or None
            size = sum(item.bytes for item in found)
            yield Holding(
                "hidden_states", label, size, len(found), safe, f"made again in {_spent(root, run, 'hidden_states')}"
            )
    yield from _versions(root)
    models = root / "models"
    if models.is_dir() and any(models.iterdir()):
        yield Holding(
            "models", "", tree_bytes(models), sum(1 for _ in models.iterdir()), None, "brought again from their source"
        )


def _versions(root: Path) -> Iterator[Holding]:
    """Kept versions of the draft that no run here has (any more): those are saved with their run."""
    for version in drafts.versions(root):
        name = str(version["version"])
        owners = [run for run in saved.runs(root) if (root / "runs" / run / "draft" / name).is_dir()]
        if not owners:
            folder = drafts.folder(root) / name
            count = sum(1 for path in folder.rglob("*") if path.is_file())
            yield Holding(f"drafts/{name}", "", tree_bytes(folder), count, False, "its run is gone")


def _spent(root: Path, run: str, stage: str) -> str:
    """Hours of work in all records of a stage."""
    seconds = 0.0
    for path in (root / "runs" / run / STATE / stage).glob("*.json"):
        record = atomic.read_json(path, {})
        if path.name != "latest.json" and isinstance(record, dict) and record.get("fingerprint"):
            seconds += float(record.get("seconds") or 0) + float(record.get("seconds_before") or 0)
    return f"{human_minutes(seconds)} of work"


def _running(root: Path) -> list[str]:
    found = []
    for run in saved.runs(root):
        for stage in registry.NAMES:
            if StateDir(root / "runs" / run / STATE / stage).running() is not None:
                found.append(f"{stage} of run {run}")
    if lock.holder(root / "port" / "job" / "lock") is not None:
        found.append("a port that is being sent")
    return found


def secret_files(pipeline: Pipeline) -> list[Path]:
    """Files with secrets: <root>/secrets, tokens that tools left below the root, a port's key, declared ones."""
    root = pipeline.root
    found = {path for path in (root / "secrets").rglob("*") if path.is_file()} if (root / "secrets").is_dir() else set()
    found |= {root / name for name in TOKEN_FILES if (root / name).is_file()}
    if keys.key_path(pipeline).is_file():
        found.add(keys.key_path(pipeline))
    declared = (pipeline.server.get("secrets") or {}).values()
    found |= {Path(name) for name in declared if Path(name).is_file()}
    return sorted(found)


def _foreign(root: Path) -> list[str]:
    """What lies below the root and is not Eyrie's: it stays."""
    own = {name for names in FOLDERS.values() for name in names} | {"secrets"}
    return sorted(item.name for item in root.iterdir() if item.name not in own) if root.is_dir() else []


def _lines(host: str, holdings: list[Holding], secrets: list[str], gates: list[dict[str, Any]]) -> list[str]:
    words = {True: "saved", False: "NOT SAVED", None: "not kept"}
    out = [f"teardown of {host}: a wipe of the data takes"]
    for item in holdings:
        out.append(
            f"{item.key:<24}{human_bytes(item.bytes):>10}{item.files:>9} files  {words[item.saved]:<10} {item.cost}"
        )
    out.append(f"{len(secrets)} files with secrets")
    return out + [f"REFUSED [{gate['name']}] {gate['message']}" for gate in gates if not gate["ok"]]


def wipe(pipeline: Pipeline, what: list[str], accept: list[str] | None = None) -> dict[str, Any]:
    """Remove secrets, data or the environment; {wiped, bytes, left}. Refuses what `plan` refuses.

    Secrets alone may always go: nothing is lost with them.
    """
    unknown = [kind for kind in what if kind not in KINDS]
    if unknown:
        raise SpecError(f"cannot wipe {unknown[0]!r}.", where="eyrie_teardown_wipe", todo=f"Known: {', '.join(KINDS)}.")
    root = _guarded(pipeline.root)
    made = plan(pipeline, accept)
    refused = [gate for gate in made["gates"] if not gate["ok"]]
    if (DATA in what or ENVIRONMENT in what) and refused:
        raise GateError(
            "the host is not wiped: " + " ".join(gate["message"] for gate in refused),
            code="teardown-refused",
            todo="Save it (playbooks/teardown.yml does), or name it in eyrie_teardown_accept_loss.",
        )
    wiped, freed = [], 0
    if DATA in what or ENVIRONMENT in what:
        _stop_servers(pipeline)
    if SECRETS in what:
        for path in secret_files(pipeline):
            _shred(path)
            wiped.append(str(path))
    for kind in (DATA, ENVIRONMENT):
        for name in FOLDERS[kind] if kind in what else ():
            freed += _remove(root / name, wiped)
    return {"wiped": wiped, "bytes": freed, "left": _foreign(root)}


def _guarded(root: Path) -> Path:
    """A root that is plainly Eyrie's own folder, or an error: nothing else is ever removed."""
    real = root.resolve()
    marks = [name for name in ("runs", "venv", "models") if (real / name).is_dir()]
    if len(real.parts) < 3 and real.parts[-1] in ("/", "home", "root", "etc", "usr", "var", "srv", "opt", "tmp"):
        raise EyrieError(f"{root} is no folder of Eyrie's own.", code="teardown-root")
    if real in (Path.home().resolve(), Path("/")) or not marks:
        raise EyrieError(
            f"{root} does not look like Eyrie's folder (no runs, venv or models in it).",
            code="teardown-root",
            todo="Check eyrie_root.",
        )
    return real


def _stop_servers(pipeline: Pipeline) -> None:
    if not pipeline.server:
        return
    from eyrie.serve import switch

    switch.stop(pipeline)


def _shred(path: Path) -> None:
    """Overwrite and remove: on a copy-on-write disk or an SSD the old blocks may outlive it, so revoke tokens too."""
    with suppress(OSError):
        size = path.stat().st_size
        with open(path, "r+b") as stream:
            stream.write(os.urandom(size))
            stream.flush()
            os.fsync(stream.fileno())
    path.unlink(missing_ok=True)


def _remove(path: Path, wiped: list[str]) -> int:
    """Remove a folder, never what a link leads to; returns the bytes freed."""
    if path.is_symlink():
        path.unlink()
        wiped.append(f"{path} (a link: what it leads to stays)")
        return 0
    if not path.exists():
        return 0
    size = tree_bytes(path) if path.is_dir() else path.stat().st_size
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    wiped.append(str(path))
    return size

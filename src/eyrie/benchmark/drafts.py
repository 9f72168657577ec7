"""Drafts kept as versions: <root>/drafts/<version>/ and the link `current`.

A version is a draft's fingerprint (12 digits). Its files are hard links to the checkpoint where the file system
allows it, so that keeping one costs no disk and removing a run does not remove what serves.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.core.spec import nearest

CURRENT, RECORD = "current", "eyrie.json"


def folder(root: Path) -> Path:
    return root / "drafts"


def current(root: Path) -> str:
    """The promoted version; '' when there is none."""
    try:
        name = os.readlink(folder(root) / CURRENT)
    except OSError:
        return ""
    return name if (folder(root) / name).is_dir() else ""


def versions(root: Path) -> list[dict[str, Any]]:
    """What is kept, oldest first: {version, current, promoted, acceptance, verdict, run, target}."""
    known = []
    if folder(root).is_dir():
        for path in folder(root).iterdir():
            record = atomic.read_json(path / RECORD) if not path.is_symlink() else None
            if isinstance(record, dict):
                known.append({**record, "version": path.name, "current": path.name == current(root)})
    return sorted(known, key=lambda record: float(record.get("kept", 0)))


def find(root: Path, version: str) -> Path:
    """The folder of a version ('current', a full name or an unambiguous beginning). Raises EyrieError."""
    names = [record["version"] for record in versions(root)]
    wanted = current(root) if version == CURRENT else version
    matching = [name for name in names if wanted and name.startswith(wanted)]
    if wanted in matching:
        matching = [wanted]
    if len(matching) != 1:
        why = "several begin so" if matching else (f"kept are: {', '.join(names)}" if names else "none is kept yet")
        raise EyrieError(
            f"there is no draft version {version!r}.{nearest(version, names)}",
            where=str(folder(root)),
            why=why,
            code="draft-version-unknown",
            todo="playbooks/benchmark.yml shows the versions.",
        )
    return folder(root) / str(matching[0])


def keep(root: Path, version: str, checkpoint: Path, record: dict[str, Any]) -> Path:
    """Keep a checkpoint as a version: all of it or nothing; one that is there gets the new record."""
    place = folder(root) / version
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_dir():
        part = Path(tempfile.mkdtemp(prefix=f".{version}.", dir=place.parent))
        try:
            shutil.copytree(checkpoint, part, dirs_exist_ok=True, copy_function=_link)
            atomic.fsync_dir(part)
            os.chmod(part, 0o755)  # noqa: S103 - mkdtemp made it private; servers may run under their own account
            os.rename(part, place)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        atomic.fsync_dir(place.parent)
    atomic.write_json(place / RECORD, {"kept": time.time(), **record})
    return place


def _link(source: str, target: str) -> str:
    source = os.path.realpath(source)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
    return target


def point(root: Path, version: str) -> str:
    """Make a version the current one, in one step; returns the one before ('' = none)."""
    before = current(root)
    find(root, version)
    link = folder(root) / f".{CURRENT}.{os.getpid()}"
    link.unlink(missing_ok=True)
    os.symlink(version, link)
    os.replace(link, folder(root) / CURRENT)
    atomic.fsync_dir(folder(root))
    return before


def prune(root: Path, count: int, spare: set[str]) -> list[str]:
    """Remove the oldest versions beyond `count`, never the current one or those of `spare`; returns their names."""
    names = [record["version"] for record in versions(root)]
    protected = spare | {current(root)}
    extra = [name for name in names if name not in protected][: max(0, len(names) - count)]
    for name in extra:
        shutil.rmtree(folder(root) / name)
    return extra

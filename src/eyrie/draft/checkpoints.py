"""Whole checkpoints: which there are, which one a resume starts from, which may go."""

from __future__ import annotations

import json
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
MARKER = "whole.json"
METRICS = "metrics.jsonl"  # the run's, as it stood then


@dataclass(frozen=True)
class Checkpoint:
    """A sealed checkpoint: epoch (0-based), steps done in it, steps done in all."""

    path: Path
    epoch: int
    local_step: int
    global_step: int


def find(folder: Path) -> list[Checkpoint]:
    """All whole checkpoints below a folder, oldest first; what is not whole is named and left alone."""
    found = []
    if not folder.is_dir():
        return []
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or path.is_symlink() or path.name.startswith("."):
            continue
        whole, why = read(path)
        if whole is None:
            log.warning("checkpoint %s is not whole (%s): ignored", path, why)
        else:
            found.append(whole)
    return sorted(found, key=lambda item: item.global_step)


def read(path: Path) -> tuple[Checkpoint | None, str]:
    """A checkpoint if it is whole, else None and why not."""
    try:
        value: dict[str, Any] = json.loads((path / MARKER).read_text("utf-8"))
        files = dict(value["files"])
        found = Checkpoint(path, int(value["epoch"]), int(value["local_step"]), int(value["global_step"]))
    except FileNotFoundError:
        return None, f"no {MARKER}, which is written last"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return None, f"{MARKER}: {error}"
    for name, size in files.items():
        try:
            there = (path / name).stat().st_size
        except OSError:
            return None, f"{name} is missing"
        if there != size:
            return None, f"{name} has {there} of {size} bytes"
    return found, ""


def arm(checkpoint: Checkpoint, save_path: Path) -> None:
    """Lay a checkpoint out where the trainer looks for it: save_path/<epoch>, and nothing else there.

    Files are hard links: the trainer only reads them, new checkpoints are new files.
    """
    shutil.rmtree(save_path, ignore_errors=True)
    target = save_path / str(checkpoint.epoch)
    target.mkdir(parents=True)
    for path in checkpoint.path.iterdir():
        if path.name in (MARKER, METRICS):
            continue
        try:
            os.link(path, target / path.name)
        except OSError:
            shutil.copy2(path, target / path.name)


def prune(folder: Path, keep: int, protect: set[int]) -> list[Path]:
    """Delete all but the newest `keep` whole checkpoints and those at the protected global steps."""
    whole = find(folder)
    gone = [item for item in whole[:-keep] if item.global_step not in protect]
    for item in gone:
        shutil.rmtree(item.path, ignore_errors=True)
    return [item.path for item in gone]

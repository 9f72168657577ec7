"""Names that the stage and the trainer's process share, without the trainer's imports."""

from __future__ import annotations

from pathlib import Path

NAME = "eyrie"


def reads_folder(index: Path) -> Path:
    """Where the trainer's processes note the rows that they have read (window mode)."""
    return index.with_name(index.name + ".read")

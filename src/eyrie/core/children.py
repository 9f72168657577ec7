"""Child processes that run this package's own modules."""

from __future__ import annotations

import os
from pathlib import Path

import eyrie


def environment(**extra: str) -> dict[str, str]:
    """The environment for `python -m eyrie...`: the package is found even when it runs from a source tree."""
    source = str(Path(eyrie.__file__).resolve().parent.parent)
    paths = [source, *(item for item in os.environ.get("PYTHONPATH", "").split(os.pathsep) if item and item != source)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **extra}

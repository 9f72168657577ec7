"""How supervised programs find their Python and this package, the same whichever script started us."""

from __future__ import annotations

import sys
from pathlib import Path

import eyrie
from eyrie.core import children


def venv_python() -> str:
    """The interpreter by its plain name."""
    plain = Path(sys.prefix).resolve() / "bin" / "python"
    return str(plain) if plain.exists() else sys.executable


def python_path() -> dict[str, str]:
    """{'PYTHONPATH': ...} where the package runs from a source tree; {} where it is installed in the environment."""
    if Path(sys.prefix).resolve() in Path(eyrie.__file__).resolve().parents:
        return {}
    return {"PYTHONPATH": children.environment()["PYTHONPATH"]}

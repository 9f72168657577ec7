# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Values as systemd reads them back: the node package's own quoting, by its file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

QUOTING = Path(__file__).resolve().parent.parent / "src" / "eyrie" / "serve" / "quoting.py"


def _quote():
    spec = importlib.util.spec_from_file_location("eyrie_serve_quoting", QUOTING)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.quote


class FilterModule:
    """eyrie_systemd_word for ExecStart=, eyrie_systemd_value for Environment= and paths."""

    def filters(self):
        quote = _quote()
        return {
            "eyrie_systemd_word": quote,
            "eyrie_systemd_value": lambda value: quote(value, command=False),
        }

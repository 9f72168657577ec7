"""Which rooms need the node environment as a whole; elsewhere single tests carry the mark themselves.

`make unit` runs without that environment, so these rooms' modules must not even be imported there.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NODE_ROOMS = [HERE / name for name in ("draft", "hidden_states", "responses", "tokens")]
HAVE_NODE = importlib.util.find_spec("torch") is not None


def _in_node_room(path: Path) -> bool:
    return any(room == path or room in path.parents for room in NODE_ROOMS)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if not HAVE_NODE and _in_node_room(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _in_node_room(item.path):
            item.add_marker(pytest.mark.node)

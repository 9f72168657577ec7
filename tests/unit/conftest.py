"""Which rooms need the node environment as a whole; elsewhere single tests carry the mark themselves.

`make unit` runs without that environment, so these rooms' modules must not even be imported there; `make node` runs
without Ansible.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NODE_ROOMS = [HERE / name for name in ("draft", "hidden_states", "responses", "tokens")]
CONTROLLER_ROOMS = [HERE / "preflight"]
HAVE_NODE = importlib.util.find_spec("torch") is not None
HAVE_ANSIBLE = importlib.util.find_spec("ansible") is not None


def _within(path: Path, rooms: list[Path]) -> bool:
    return any(room == path or room in path.parents for room in rooms)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    foreign = (not HAVE_NODE and _within(collection_path, NODE_ROOMS)) or (
        not HAVE_ANSIBLE and _within(collection_path, CONTROLLER_ROOMS)
    )
    return True if foreign else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _within(item.path, NODE_ROOMS):
            item.add_marker(pytest.mark.node)

"""Tests of the stage hidden_states need the node environment (numpy, xxhash, datasets, aiohttp)."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A run with a toy target, ten prepared rows and a fake extract server (see capture_house.py)."""
    from capture_house import House

    built = House(tmp_path, monkeypatch)
    yield built
    built.close()

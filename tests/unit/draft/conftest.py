"""Tests of the stage draft need the node environment (torch, transformers, datasets, speculators)."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A tiny random target, its conversations and their states (see tiny_target.py)."""
    from tiny_target import Tiny

    return Tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def house(tiny, tmp_path, monkeypatch):
    """A run of the draft stage on the tiny target."""
    from draft_house import House

    return House(tiny, tmp_path, monkeypatch)

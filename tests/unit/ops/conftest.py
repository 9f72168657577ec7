"""Fixtures of what stands above the stages."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from small_house import House, Small

from eyrie.core import registry

#: these need the node environment; `make node` runs them there
NODE = ["test_ops_canary_faults.py", "test_ops_hostile_files.py"]
collect_ignore = [] if importlib.util.find_spec("numpy") else NODE


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    """A run of eight small stages below a temporary root."""
    stages = {name: Small(name) for name in registry.NAMES}
    monkeypatch.setattr(registry, "get", stages.__getitem__)
    return House(tmp_path / "eyrie")

"""Fixtures of what stands above the stages."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_house import House, Small

from eyrie.core import registry


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    """A run of eight small stages below a temporary root."""
    stages = {name: Small(name) for name in registry.NAMES}
    monkeypatch.setattr(registry, "get", stages.__getitem__)
    return House(tmp_path / "eyrie")

"""Toy stages in place of the real ones, in this process and in others."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eyrie.core import registry
from eyrie.core.pipeline import Pipeline

HERE = Path(__file__).parent
_found = importlib.util.spec_from_file_location("toy_core", HERE / "toy_core.py")
toy_core = importlib.util.module_from_spec(_found)
sys.modules["toy_core"] = toy_core
_found.loader.exec_module(toy_core)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(registry, "NAMES", tuple(toy_core.TOYS))
    monkeypatch.setattr(registry, "get", toy_core.TOYS.__getitem__)
    return toy_core


@pytest.fixture
def pipeline(toys: Any, tmp_path: Path) -> Callable[..., Pipeline]:
    """pipeline(dataset={...}, tokens={...}): a fresh view of the same root."""

    def make(**stages: dict[str, Any]) -> Pipeline:
        return Pipeline(toys.spec_of(tmp_path, **stages))

    return make


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """job(stage, **stages): another process that runs a toy stage; ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(stage: str, **stages: dict[str, Any]) -> subprocess.Popen[str]:
        spec = tmp_path / "spec.json"
        spec.write_text(json.dumps(toy_core.spec_of(tmp_path, **stages)))
        env = {**os.environ, "PYTHONPATH": str(HERE.parents[2] / "src")}
        argv = [sys.executable, str(HERE / "toy_core.py"), str(spec), stage]
        started.append(subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stderr.close()


def until(true: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)

import importlib.util
import sys
from pathlib import Path

import pytest

from eyrie.core.pipeline import Pipeline
from eyrie.supervise.supervisord import Supervisord

HERE = Path(__file__).parent
TARGET = {
    "name": "toy",
    "source": {"kind": "path", "path": "/nowhere"},
    "hidden_size": 8,
    "num_hidden_layers": 8,
    "num_attention_heads": 2,
    "vocab_size": 40,
    "aux_layers": [2, 4, 5],
}


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    """pipeline(**dataset settings): a run whose dataset stage is the toy, under supervisord."""
    before = sys.modules.get("eyrie.dataset.stage")
    spec = importlib.util.spec_from_file_location("eyrie_toy_stage", HERE / "toy" / "sitecustomize.py")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    source = HERE.parents[2] / "src"
    monkeypatch.setenv("PYTHONPATH", f"{HERE / 'toy'}:{source}")

    def make(**settings):
        return Pipeline(
            {
                "root": str(tmp_path),
                "run": "main",
                "target": TARGET,
                "stages": {"dataset": settings},
                "execution": {"supervisor": "supervisord"},
            }
        )

    yield make
    Supervisord(tmp_path).shutdown()
    if before is None:
        del sys.modules["eyrie.dataset.stage"]
    else:
        sys.modules["eyrie.dataset.stage"] = before

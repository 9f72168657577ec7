"""Small checkpoint folders and the specs that declare them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eyrie.core.pipeline import Pipeline

CONFIG = {"hidden_size": 8, "num_hidden_layers": 12, "num_attention_heads": 4, "vocab_size": 40, "model_type": "llama"}


def files(config: dict[str, Any] | None = None, template: bool = True) -> dict[str, bytes]:
    """A checkpoint's files; the weights are bytes that nobody loads."""
    found = {
        "config.json": json.dumps(config or CONFIG).encode(),
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "model.safetensors": b"weights" * 1000,
    }
    if template:
        found["chat_template.jinja"] = b"{{ messages }}"
    return found


def write(folder: Path, content: dict[str, bytes]) -> Path:
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def pipeline(tmp_path: Path) -> Callable[..., Pipeline]:
    """pipeline(source={...}, target={...}, stage={...}) below one root."""

    def make(
        source: dict[str, Any], target: dict[str, Any] | None = None, stage: dict[str, Any] | None = None
    ) -> Pipeline:
        dims = {key: value for key, value in CONFIG.items() if key != "model_type"}
        declared = {"name": "small", "source": source, "aux_layers": [2, 6, 9], **dims, **(target or {})}
        return Pipeline(
            {
                "root": str(tmp_path / "root"),
                "run": "main",
                "target": declared,
                "stages": {"target": stage or {}, "dataset": {}},
            }
        )

    return make

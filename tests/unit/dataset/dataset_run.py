"""Runs of the whole stage on a toy target: in this process, or as the command that can be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from eyrie.core import runner
from eyrie.core.pipeline import Pipeline

SRC = Path(__file__).parents[3] / "src"


def toy_target(folder: Path) -> Path:
    """A folder that passes for a model: dimensions, a tokenizer of one token a word, no weights worth the name."""
    import numpy as np
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True)
    sizes = {"hidden_size": 8, "num_hidden_layers": 8, "num_attention_heads": 2, "vocab_size": 64}
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], **sizes})
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))
    save_file({"x": np.zeros(1, dtype=np.float32)}, folder / "model.safetensors")
    return folder


def spec(root: Path, registry: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """A run's spec; `sources` is the whole registry unless it is named."""
    target = root.parent / "model"
    if not target.exists():
        toy_target(target)
    dataset = {"registry": registry, "sources": list(registry), "heldout": 0, "workers": 2, **settings}
    return {
        "root": str(root),
        "run": "main",
        "target": {
            "name": "toy",
            "source": {"kind": "path", "path": str(target)},
            "hidden_size": 8,
            "num_hidden_layers": 8,
            "num_attention_heads": 2,
            "vocab_size": 64,
            "aux_layers": [2, 4, 5],
        },
        "stages": {"target": {}, "dataset": dataset},
    }


def run(value: dict[str, Any]) -> Any:
    """Bring target and dataset up to date in this process; returns the dataset's context."""
    runner.run(Pipeline(value), "target")
    pipeline = Pipeline(value)
    runner.run(pipeline, "dataset")
    return pipeline.context("dataset")


def command(value: dict[str, Any], folder: Path, verb: str = "run", **environment: str) -> subprocess.Popen[str]:
    """Start `eyrie VERB dataset` as a process of its own group; logs go to a file."""
    runner.run(Pipeline(value), "target")
    path = folder / f"spec{len(os.listdir(folder))}.json"
    path.write_text(json.dumps(value))
    env = {**os.environ, "PYTHONPATH": str(SRC), **environment}
    with open(folder / "stderr", "a") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "eyrie", verb, "dataset", "--spec", str(path)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=env,
            start_new_session=True,
        )


def rows(ctx: Any, name: str = "train.parquet") -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return pq.read_table(ctx.out / name).to_pylist()


def prompts(ctx: Any, name: str = "train.parquet") -> list[str]:
    """First user turns, in the order of the file."""
    return [
        next(turn["content"] for turn in json.loads(row["conversation"]) if turn["role"] == "user")
        for row in rows(ctx, name)
    ]


def summary(ctx: Any) -> dict[str, Any]:
    return json.loads((ctx.out / "sources.json").read_text())

"""The embedded default's model: a GGUF file of a distribution becomes a bf16 checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from eyrie.core import runner
from eyrie.core.pipeline import Pipeline

PROJECT = Path(__file__).parents[3]


@pytest.mark.node
@pytest.mark.slow
def test_the_demo_s_model_is_converted_and_loads(
    pipeline: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    flat = yaml.safe_load((PROJECT / "inventory/group_vars/local/target.yml").read_text())
    source = {key: flat[f"eyrie_target_source_{key}"] for key in ("kind", "package", "file", "sha256")}
    names = ("name", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "aux_layers")
    run = pipeline(source, target={name: flat[f"eyrie_target_{name}"] for name in names})
    record = runner.run(run, "target")
    assert record["figures"]["config"] == {name: flat[f"eyrie_target_{name}"] for name in names[1:5]}
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = run.context("target").out
    model = AutoModelForCausalLM.from_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.bfloat16}
    words = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer(words, return_tensors="pt", add_special_tokens=False)
    said = model.generate(**ids, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(said[0])

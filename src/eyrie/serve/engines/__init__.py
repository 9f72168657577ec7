"""The serving engines behind one face."""

from __future__ import annotations

from eyrie.serve.engines.base import Engine


def get(name: str) -> Engine:
    """'vllm' or 'sglang'."""
    if name == "sglang":
        from eyrie.serve.engines.sglang import SGLang

        return SGLang()
    from eyrie.serve.engines.vllm import VLLM

    return VLLM()

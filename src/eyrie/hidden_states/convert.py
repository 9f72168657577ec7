"""bf16 states to fp8 and back, in the layout that speculators' fp8 backend reads.

One fp32 scale per token and layer, [seq, layers, 1]: the last state's norm is far above the auxiliary ones', and a
scale shared by a token's layers would cost the small ones their precision.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from eyrie.hidden_states.files import SCALES

FP8_MAX = 448.0


def quantize(states: Any) -> tuple[Any, Any]:
    """[seq, layers, hidden] bf16 -> (float8_e4m3fn of that shape, fp32 scales [seq, layers, 1])."""
    import torch

    full = states.float()
    scales = (full.abs().amax(dim=-1, keepdim=True) / FP8_MAX).clamp(min=1e-12)
    return (full / scales).to(torch.float8_e4m3fn), scales


def dequantize(states: Any, scales: Any) -> Any:
    """The inverse, to bf16, as speculators does it."""
    import torch

    return states.to(torch.bfloat16) * scales.to(torch.bfloat16)


def to_fp8(path: Path) -> None:
    """Rewrite a bf16 states file as fp8, under the same name (by a temporary one)."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    values, scales = quantize(tensors["hidden_states"])
    staged = path.with_name(f".{path.name}.fp8")
    try:
        save_file({"hidden_states": values, SCALES: scales, "token_ids": tensors["token_ids"]}, staged)
        os.replace(staged, path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise


def load(path: Path) -> dict[str, Any]:
    """A states file as the trainer sees it: bf16 states, token ids."""
    from safetensors.torch import load_file

    tensors: dict[str, Any] = load_file(path)
    scales = tensors.pop(SCALES, None)
    if scales is not None:
        tensors["hidden_states"] = dequantize(tensors["hidden_states"], scales)
    return tensors

"""What the host can run: attention and loss implementation by accelerator, with the reason.

flex attention's backward pass wants more shared memory per block than sm_120 has (99 KiB against 228 KiB on sm_100):
for wide heads the default blocks do not fit.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARED_LIMIT = {
    "sm_120": 101376,
    "sm_121": 101376,
    "sm_100": 232448,
    "sm_103": 232448,
    "sm_90": 232448,
    "sm_80": 166912,
}
DEFAULT_BLOCK_BYTES = 114688  # measured demand of the default backward blocks at head_dim 128


@dataclass(frozen=True)
class Choice:
    """attention: a --draft-attn-impl; loss: a --loss-implementation; why: in words; warning: worth showing."""

    attention: str
    loss: str
    why: str
    warning: bool = False
    accelerator: bool = True


def head_dim_of(config: dict[str, object]) -> int:
    """A decoder's head_dim, declared or hidden_size / num_attention_heads."""
    declared = config.get("head_dim")
    if declared:
        return int(str(declared))
    return int(str(config["hidden_size"])) // int(str(config["num_attention_heads"]))


def choose(capability: str, head_dim: int, seq_len: int) -> Choice:
    """capability: '' for CPU, 'sm_120', ...; head_dim of the draft; seq_len: packed tokens a step."""
    if not capability:
        attention = "sdpa" if seq_len >= 1024 else "eager"
        why = f"CPU: {attention} is the faster at {seq_len} packed tokens; fused loss needs a GPU"
        return Choice(attention, "eager", why, accelerator=False)
    limit = SHARED_LIMIT.get(capability)
    if limit is None:
        return Choice(
            "sdpa",
            "fused",
            f"{capability} is not in the table of shared memory limits: sdpa runs anywhere",
            warning=True,
        )
    if head_dim <= 64 or limit >= DEFAULT_BLOCK_BYTES * max(1, head_dim // 128):
        return Choice(
            "simple_flex_attention",
            "fused",
            f"{capability}: {limit} bytes of shared memory are enough for head_dim {head_dim}",
        )
    return Choice(
        "sdpa",
        "fused",
        f"{capability} has {limit} bytes of shared memory per block, flex attention's backward needs "
        f"{DEFAULT_BLOCK_BYTES * max(1, head_dim // 128)} at head_dim {head_dim}: sdpa instead",
        warning=True,
    )


def capability() -> str:
    """'sm_120' and the like of the first CUDA device, '' without one (asked of torch; run side only)."""
    import torch

    if not torch.cuda.is_available():
        return ""
    major, minor = torch.cuda.get_device_capability(0)
    return f"sm_{major}{minor}"

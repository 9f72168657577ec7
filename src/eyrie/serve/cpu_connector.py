"""Hidden-states connector for CPU hosts.

vLLM's own example connector copies through pinned memory on a CUDA stream. On a CPU the states already lie in
host memory: one gather out of the cache is the copy, and it is complete when it returns. Named by the launch
document of the extract profile (`kv_connector_module_path`); imported only inside vLLM.
"""

from __future__ import annotations

import fcntl
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as stock


class _Copied:
    """Stands where a CUDA event stands: the copy is done."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


class CpuHiddenStatesConnector(stock.ExampleHiddenStatesConnector):  # type: ignore[misc]
    """Writes hidden_states [tokens, layers, hidden] and token_ids [tokens] of each request, from host memory."""

    def _submit_async_write(self, pending: Any) -> None:
        if not self._is_tp_rank_zero:
            return
        target = Path(pending.filename)
        target.parent.mkdir(parents=True, exist_ok=True)
        blocks = torch.as_tensor(pending.block_ids, dtype=torch.long)
        slots = (blocks[:, None] * self._block_size + torch.arange(self._block_size)).reshape(-1)
        states = stock.extract_from_kv_cache(self._kv_cache, slots, len(pending.token_ids))
        done = _Copied()
        tensors = {"hidden_states": states.contiguous(), "token_ids": pending.token_ids.clone()}
        future = self._executor.submit(self._write_tensors, tensors, done, str(target), self._lock(pending))
        self._req_copy_events[pending.req_id] = done
        self._req_futures[pending.req_id] = future
        future.add_done_callback(partial(self._on_write_done, pending.req_id))

    def _lock(self, pending: Any) -> int | None:
        """The held lock beside the file; normally `wait_for_save` made it before the client heard of the path."""
        held: int | None = self._lock_fds.pop(pending.req_id, None)
        if held is None and self.use_lock:
            held = os.open(f"{pending.filename}.lock", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644)
            fcntl.flock(held, fcntl.LOCK_EX)
        return held

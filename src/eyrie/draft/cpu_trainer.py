"""What lets speculators' trainer (0.9.0) run on a host without an accelerator. Nothing of its files is edited.

Each shim says what it stands in for; on a host with an accelerator `apply` does nothing.
"""

from __future__ import annotations

import os
from typing import Any


def needed() -> bool:
    """Whether torch sees no accelerator."""
    import torch

    return not torch.accelerator.is_available()


def apply(threads: int = 0) -> None:
    """Put the shims in place, before the trainer is built. threads: torch's intra-op threads (0 = torch's choice)."""
    import torch

    if not needed():
        return
    if threads:
        torch.set_num_threads(threads)
    _no_synchronize(torch)
    _cpu_device(torch)
    if "LOCAL_RANK" in os.environ:
        _gloo()


def _no_synchronize(torch: Any) -> None:
    # The step timer synchronises the accelerator to time the phases of a step; a CPU has nothing to wait for.
    torch.accelerator.synchronize = lambda *args, **kwargs: None


def _cpu_device(torch: Any) -> None:
    from speculators.train import checkpointer, trainer

    device = torch.device("cpu")
    # The trainer moves model and batches to `get_local_rank()`, an integer that torch reads as "cuda:<n>".
    trainer.get_local_rank = lambda: device
    # Autocast's device type falls back to "cuda" when there is no accelerator.
    setup = trainer.Trainer.setup_trainer

    def setup_trainer(self: Any) -> None:
        self.device_type = "cpu"
        setup(self)

    trainer.Trainer.setup_trainer = setup_trainer
    # Checkpoints are loaded onto the current accelerator.
    checkpointer.get_current_device = lambda: "cpu"


def _gloo() -> None:
    # Under torchrun the process group is opened for the accelerator's backend; a CPU's is gloo.
    import torch.distributed as dist
    from speculators.train import cli, distributed

    def setup(sp_size: int = 1) -> None:
        dist.init_process_group("gloo")
        distributed._local_rank = int(os.environ["LOCAL_RANK"])
        distributed._is_distributed = True
        distributed._rank = dist.get_rank()
        distributed._world_size = dist.get_world_size()
        distributed._init_sp_process_groups(distributed._rank, distributed._world_size, sp_size)

    cli.maybe_setup_distributed = setup

"""Settings of the hidden_states stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eyrie.core.spec import setting


@dataclass
class HiddenStatesSettings:
    """How the target's states are captured and kept.

    storage: `bf16` keeps them as served; `fp8` halves the bytes (e4m3, one scale per token and layer); `window`
    keeps at most `window_bytes` on disk at a time, captured while the draft trains.
    concurrency: requests in flight per server. Bytes in units of bytes, times in seconds.
    """

    storage: Literal["bf16", "fp8", "window"] = "bf16"
    window_bytes: int = 0
    window_dtype: Literal["bf16", "fp8"] = "bf16"
    max_failed_share: float = setting(0.0, identity=False, doc="share of samples that may fail for good")
    concurrency: int = setting(32, identity=False)
    request_timeout_s: float = setting(300.0, identity=False)
    write_timeout_s: float = setting(60.0, identity=False, doc="wait for the server's own write of one file")
    max_retries: int = setting(3, identity=False, doc="attempts on answers that fail validation")
    outage_wait_s: float = setting(900.0, identity=False, doc="wait for a server that is gone before giving up")
    probe_samples: int = setting(8, identity=False)
    reference_max_bytes: float = setting(
        4.0e9, identity=False, doc="targets up to this size are also compared with a transformers forward pass"
    )
    high_water: float = setting(0.95, identity=False, doc="share of the disk in use at which capture pauses")
    reserve_bytes: float = setting(2.0e9, identity=False, doc="bytes always left free")
    pause_limit_s: float = setting(0.0, identity=False, doc="give up after a pause this long; 0 waits without limit")
    keep_unreferenced: bool = setting(True, identity=False, doc="keep states that no prepared data refers to any more")
    fidelity_samples: int = setting(16, identity=False, doc="samples of the fp8 against bf16 comparison")
    fidelity_agreement: float = setting(0.98, identity=False, doc="least share of equal argmax tokens under fp8")

    def __post_init__(self) -> None:
        if self.storage == "window" and self.window_bytes <= 0:
            raise ValueError("storage 'window' needs window_bytes (the most that states may take on disk).")
        if self.concurrency < 1:
            raise ValueError("concurrency must be at least 1.")
        if not 0.0 < self.high_water <= 1.0:
            raise ValueError("high_water is a share of the disk: above 0, at most 1.")
        if self.probe_samples < 1:
            raise ValueError("probe_samples must be at least 1: nothing is captured in bulk without a probe.")

    @property
    def dtype(self) -> str:
        """What one state is kept as: bf16 or fp8."""
        return self.window_dtype if self.storage == "window" else self.storage

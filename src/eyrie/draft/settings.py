"""Settings of the draft stage, by the names that speculators' trainer uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eyrie.core.spec import setting

LOGGERS = ("tensorboard", "wandb", "mlflow", "trackio")
LOSSES = ("kl_div", "rkl", "jsd", "ce", "tv", "nla", "lk_hybrid")


@dataclass
class DraftSettings:
    """How the draft is built and trained. Lengths in tokens, times in seconds.

    lr: AdamW's; muon_lr: Muon's (None = lr). val_ratio: share of conversations held out for validation.
    checkpoint_freq: in epochs; below 1 within an epoch. select: which epoch is exported.
    from_pretrained: folder of a draft to start from (its own shape wins over the shaping settings).
    """

    ttt_steps: int = 3
    ttt_step_loss_decay: float = 1.0
    loss_fn: str = "kl_div"
    epochs: int = 4
    total_seq_len: int = 512
    optimizer: Literal["muon", "adamw"] = "muon"
    lr: float = 3e-3
    weight_decay: float = 0.01
    muon_lr: float | None = None
    muon_momentum: float = 0.95
    muon_weight_decay: float = 0.1
    muon_ns_steps: int = 5
    scheduler_type: Literal["linear", "cosine", "none"] = "linear"
    scheduler_warmup_ratio: float | None = None
    scheduler_num_cosine_cycles: float = 0.5
    num_layers: int = 1
    draft_arch: Literal["llama", "qwen3"] = "llama"
    norm_before_residual: bool = True
    norm_before_fc: bool = True
    fc_norm: bool = False
    norm_output: bool = True
    embed_requires_grad: bool = False
    sliding_window: int = 2048
    full_attention_indices: list[int] = setting([])
    from_pretrained: str = ""
    draft_config: str = ""
    hidden_states_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    seed: int = 42
    val_ratio: float = 0.1
    select: Literal["best", "last"] = "best"
    processes: int = 1
    hosts: list[str] = setting(
        [],
        identity=False,
        doc="inventory names of the hosts that train together, the leader first; empty = this one alone",
    )
    addresses: list[str] = setting(
        [], identity=False, doc="addresses of these hosts, in the same order: a lost one is named"
    )
    fsdp_shard: bool = False
    max_skipped_share: float = setting(0.0, identity=False, doc="share of samples that training may skip")
    draft_attn_impl: Literal["auto", "simple_flex_attention", "sdpa", "eager"] = setting("auto", identity=False)
    loss_implementation: Literal["auto", "fused", "eager"] = setting("auto", identity=False)
    gradient_checkpointing: bool = setting(False, identity=False)
    checkpoint_freq: float = setting(0.25, identity=False)
    keep_checkpoints: int = setting(2, identity=False, doc="whole checkpoints kept besides the best one")
    num_workers: int = setting(0, identity=False, doc="data loader processes per trainer process")
    prefetch_factor: int = setting(4, identity=False)
    log_freq: int = setting(1, identity=False)
    loggers: list[str] = setting([], identity=False, doc="besides tensorboard: wandb, mlflow, trackio")
    rdzv_endpoint: str = setting("", identity=False, doc="host:port where the hosts that train together meet")
    local_addr: str = setting("", identity=False, doc="this host's address as the others of the group reach it")
    join_timeout_s: float = setting(600.0, identity=False, doc="how long the hosts of a group wait for one another")
    stop_grace_s: float = setting(120.0, identity=False, doc="time for the checkpoint of an orderly stop")
    stall_s: float = setting(1800.0, identity=False, doc="without a step for this long, training is stopped")
    watch_steps: int = setting(10, identity=False, doc="steps after which a loss of zero stops the training")
    min_predicted: float = setting(0.0, identity=False, doc="refuse drafts whose predicted acceptance is below this")
    parity_gap: float = setting(0.6, identity=False, doc="most that predicted may lie above served acceptance length")
    fidelity_acceptance: float = setting(0.05, identity=False, doc="most that fp8 may cost in predicted acceptance")
    window_wait_s: float = setting(900.0, identity=False, doc="wait for a sample's states under storage window")

    def __post_init__(self) -> None:
        for name in ("ttt_steps", "epochs", "total_seq_len", "num_layers", "processes", "log_freq"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1.")
        if not 0.0 < self.val_ratio < 1.0:
            raise ValueError("val_ratio must lie between 0 and 1: without validation nothing can be predicted.")
        if self.checkpoint_freq <= 0 or (
            self.checkpoint_freq > 1 and self.checkpoint_freq != int(self.checkpoint_freq)
        ):
            raise ValueError("checkpoint_freq must be above 0, and a whole number of epochs above 1.")
        if not self.loss_fn.startswith("{") and self.loss_fn not in LOSSES:
            raise ValueError(f"loss_fn {self.loss_fn!r} is none of {', '.join(LOSSES)} (or a JSON mix of them).")
        for name in self.loggers:
            if name not in LOGGERS:
                raise ValueError(f"logger {name!r} is none of {', '.join(LOGGERS)}.")
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("norm_before_fc and fc_norm exclude each other.")
        if self.from_pretrained and self.draft_config:
            raise ValueError("from_pretrained and draft_config exclude each other.")
        if len(self.hosts) > 1 and not self.rdzv_endpoint:
            raise ValueError("training on several hosts needs rdzv_endpoint (host:port of one of them).")
        if self.keep_checkpoints < 1:
            raise ValueError("keep_checkpoints must be at least 1.")

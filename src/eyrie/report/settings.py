"""The report's typed settings."""

from __future__ import annotations

from dataclasses import dataclass

from eyrie.core.spec import setting


@dataclass
class Settings:
    """What the report shows beyond its fixed parts."""

    masked_samples: int = setting(3, doc="training samples shown with their loss mask; 0 = none")
    masked_tokens: int = setting(160, doc="tokens of each such sample at most")
    curve_points: int = setting(400, doc="points of a training curve at most; extremes are kept")

    def __post_init__(self) -> None:
        if self.masked_samples < 0 or self.masked_tokens < 8 or self.curve_points < 10:
            raise ValueError("masked_samples must be at least 0, masked_tokens 8, curve_points 10.")

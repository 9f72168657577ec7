"""The report's typed settings."""

from __future__ import annotations

from dataclasses import dataclass

from eyrie.core.spec import setting


@dataclass
class Settings:
    """What the report shows beyond its fixed parts."""

    masked_samples: int = setting(2, doc="training samples of each source shown with their loss mask; 0 = none")
    curve_points: int = setting(400, doc="points of a training curve at most; extremes are kept")

    def __post_init__(self) -> None:
        if self.masked_samples < 0 or self.curve_points < 10:
            raise ValueError("masked_samples must be at least 0, curve_points 10.")

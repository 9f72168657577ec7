"""How many requests an endpoint is given: found, not guessed."""

from __future__ import annotations

from typing import Any

from eyrie.responses.endpoint import Endpoint
from eyrie.responses.settings import Settings


class Controller:
    """Raises an endpoint's limit until tokens a second stop growing or the latency bound is met; records the curve."""

    def __init__(self, endpoint: Endpoint, settings: Settings):
        self.endpoint = endpoint
        self.settings = settings
        self.curve: list[dict[str, Any]] = []

    def tick(self, now: float) -> None:
        """Look at the endpoint; called a few times a second."""

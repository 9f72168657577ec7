"""Serving the target: launch documents, the switch, proof of identity, readings of the servers' counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eyrie.core.pipeline import Pipeline


def endpoints(pipeline: Pipeline, profile: str) -> list[str]:
    """Base URLs of a profile: this host's own first, then those of `spec.server.endpoints`."""
    from eyrie.serve import settings as server_settings

    settings = server_settings.load(pipeline)
    settings.profile(profile)
    own = f"http://{server_settings.api_host(settings.host)}:{settings.port}"
    return [own, *(url.rstrip("/") for url in settings.endpoints if url.rstrip("/") != own)]

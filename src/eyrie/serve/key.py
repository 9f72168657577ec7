"""The key that our servers ask their clients for (vLLM's VLLM_API_KEY among server.secrets).

It is read from its file, which nobody else may read, and held in this process' environment alone: clients in this
process and in its children send it, and it stands in no spec, record, document or command line.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eyrie.core.pipeline import Pipeline

NAME = "VLLM_API_KEY"
HELD = "EYRIE_SERVER_KEY"


def hold(pipeline: Pipeline) -> None:
    """Read the run's key, if its servers have one. Raises EyrieError when the file is open to others or not there."""
    place = (pipeline.server.get("secrets") or {}).get(NAME)
    os.environ.pop(HELD, None)
    if place:
        from eyrie.serve.execute import read_secret

        os.environ[HELD] = read_secret(NAME, Path(place))


def headers() -> dict[str, str]:
    """What a request to one of our servers carries; {} without a key."""
    value = os.environ.get(HELD)
    return {"Authorization": f"Bearer {value}"} if value else {}


def for_openai_clients() -> dict[str, str]:
    """The same for clients that read OPENAI_API_KEY (vllm bench serve)."""
    value = os.environ.get(HELD)
    return {"OPENAI_API_KEY": value} if value else {}

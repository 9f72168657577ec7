"""How the hub's answers are taken: waiting as long as it asks, and errors that name the source and the way out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from eyrie.core.errors import EyrieError
from eyrie.dataset import disk
from eyrie.dataset.settings import Source

if TYPE_CHECKING:
    from eyrie.dataset.hub import Access

T = TypeVar("T")
LONGEST_WAIT_S = 600.0
BUSY = (408, 425, 429, 500, 502, 503, 504)


class Polite:
    """A source's manners towards the hub."""

    def __init__(self, name: str, source: Source, access: Access):
        self.name, self.source, self.access = name, source, access
        self.repository = source.repository

    def politely(self, call: Callable[[], T]) -> T:
        """Call the client, which tries a few times itself; wait and begin another round while the hub is busy."""
        from huggingface_hub.errors import HfHubHTTPError

        attempt = 0
        while True:
            try:
                return call()
            except Exception as error:  # the client raises errors of its HTTP library, which changes between versions
                cause = error if isinstance(error, HfHubHTTPError) else error.__cause__
                wait = _wait(cause if cause is not None else error, attempt)
                if wait is None or attempt >= self.access.retries:
                    raise self.explained(error) from error
                time.sleep(wait)
                attempt += 1

    def explained(self, error: BaseException) -> EyrieError:
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        cause = error if isinstance(error, HfHubHTTPError) else error.__cause__ or error
        status = getattr(getattr(cause, "response", None), "status_code", None)
        where = f"dataset.registry.{self.name}"
        if isinstance(cause, RevisionNotFoundError):
            return EyrieError(
                f"source {self.name}: {self.repository} has no revision {self.source.revision!r}.",
                where=where,
                code="revision-missing",
            )
        if isinstance(cause, (GatedRepoError, RepositoryNotFoundError)) or status in (401, 403):
            held = "the token at hand has no access" if self.access.token() else "there is no token"
            return EyrieError(
                f"source {self.name}: {self.repository} is gated or does not exist for us (HTTP {status}); {held}.",
                where=where,
                todo="Accept its terms on the hub, then set eyrie_dataset_hub_token (Vault), or HF_TOKEN, or "
                f"{self.access.token_file} on the node (mode 0600).",
                code="gated-or-no-token",
            )
        if status in BUSY:
            return EyrieError(
                f"source {self.name}: the hub stayed busy (HTTP {status}) through {self.access.retries + 1} rounds.",
                where=where,
                todo="Run again later: what was fetched is kept. Lower eyrie_dataset_downloads if it goes on.",
                code="hub-busy",
            )
        if isinstance(error, OSError) and error.errno in disk.FULL:
            return disk.disk_full(error, self.access.cache)
        what = f"{type(cause).__name__}: {cause}".split("\n", 1)[0]
        if isinstance(error, LocalEntryNotFoundError) and cause is error:
            return self.offline_error(self.source.revision)
        return EyrieError(
            f"source {self.name}: {self.repository} could not be fetched.",
            where=where,
            why=what,
            todo="Run again: what was fetched is kept. Without a network set eyrie_dataset_offline.",
            code="hub-failed",
        )

    def offline_error(self, revision: str) -> EyrieError:
        return EyrieError(
            f"source {self.name}: {self.repository}@{revision[:12] or 'no revision yet'} is not in the cache.",
            where=self.access.cache,
            why="Offline mode (eyrie_dataset_offline, HF_HUB_OFFLINE) allows the cache only, and that is the one.",
            todo="Fetch it once with a network into this folder, or copy the folder from a host that has it.",
            code="offline-missing",
        )


def _wait(error: BaseException, attempt: int) -> float | None:
    """Seconds to wait before the next attempt; None where another one cannot help."""
    response = getattr(error, "response", None)
    if response is not None:
        if response.status_code not in BUSY:
            return None
        asked = str(response.headers.get("Retry-After", ""))
        if asked.isdecimal():
            return min(float(asked), LONGEST_WAIT_S)
        return min(2.0**attempt, 60.0)
    name = type(error).__name__
    network = isinstance(error, (ConnectionError, TimeoutError)) or any(
        word in name for word in ("Timeout", "Connect", "Protocol", "NetworkError", "ReadError")
    )
    return min(2.0**attempt, 60.0) if network else None

"""Readiness: the unit lives and its health probe answers; progress comes from its log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.serve import engines, http
from eyrie.serve.house import House
from eyrie.supervise.base import tail

FIRST_POLL_S, POLL_S = 0.1, 0.5


def wait(house: House, document: dict[str, Any], note: Callable[[str], None]) -> None:
    """Return once the server is healthy.

    Raises EyrieError at once when its process ends (with the last log lines), or at start_timeout_s saying how far
    it came.
    """
    profile, unit = document["profile"], house.unit(document["profile"])
    engine = engines.get(document["engine"])
    begin, pause, state = time.monotonic(), FIRST_POLL_S, "waiting for the port"
    first_pid = 0
    while True:
        status = house.supervisor.status(unit)
        first_pid = first_pid or status.pid
        if not status.active or status.restarts or (status.pid and status.pid != first_pid):
            raise _died(house, profile, status.detail)
        try:
            health = http.get(document["base_url"], engine.health, 10.0)
        except http.Unreachable:
            health = None
        if health is not None and health.status == 200:
            return
        state = "waiting for the port" if health is None else f"still loading ({health.status})"
        stage = engine.loading(tail(house.log(profile), 50))
        passed = time.monotonic() - begin
        if passed > house.settings.start_timeout_s:
            raise EyrieError(
                f"{profile} is not ready after {house.settings.start_timeout_s} s: {state}.",
                where=unit,
                code="start-timeout",
                why=f"Its log says: {stage}." if stage else "",
                todo="Raise eyrie_server_start_timeout_s if it was still making progress.",
            )
        note(f"{stage or state} ({passed:.0f} s)")
        time.sleep(pause)
        pause = min(pause * 1.5, POLL_S)


def _died(house: House, profile: str, detail: str) -> EyrieError:
    return EyrieError(
        f"{profile} ended while it was starting ({detail or 'no detail'}).",
        where=house.unit(profile),
        code="server-died",
        todo=f"See {house.supervisor.log_hint(house.unit(profile))}.",
    )

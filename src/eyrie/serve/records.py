"""What is remembered of the servers, beside what the processes themselves show.

<root>/server/serving.json    the last proven server: profile, fingerprint, pid, speculation, switch times
<root>/server/switching.json  a switch that is under way (or was cut off): what served before it
<root>/server/lock            one switch at a time
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.core.lock import Held, Lock
from eyrie.serve import launch


def serving_path(root: Path) -> Path:
    return launch.folder(root) / "serving.json"


def switching_path(root: Path) -> Path:
    return launch.folder(root) / "switching.json"


def read(path: Path) -> dict[str, Any]:
    value = atomic.read_json(path, {})
    return value if isinstance(value, dict) else {}


def proved(root: Path, record: dict[str, Any]) -> dict[str, Any]:
    """The identity proved earlier for this very process (pid and start time), {} when there is none."""
    known = read(serving_path(root))
    same = known.get("pid") == record.get("pid") and known.get("start") == record.get("start")
    return dict(known.get("identity") or {}) if same and record else {}


@contextmanager
def one_switch(root: Path, wait_s: float, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the switch lock; wait while another process switches. Raises EyrieError at the limit."""
    lock = Lock(launch.folder(root) / "lock", {"since": time.time()})
    deadline = time.monotonic() + wait_s
    while True:
        try:
            lock.acquire()
            break
        except Held as held:
            if time.monotonic() > deadline:
                raise EyrieError(
                    f"another process (pid {held.owner.get('pid')}) has been switching servers for {wait_s:.0f} s.",
                    code="switch-busy",
                    todo="See what it does with `eyrie server status`.",
                ) from None
            note(f"waiting for the switch of pid {held.owner.get('pid')}")
            time.sleep(0.5)
    try:
        yield
    finally:
        lock.release()

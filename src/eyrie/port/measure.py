"""How fast files go through this machine: bytes pulled from one host and pushed to another. Leaves nothing behind."""

from __future__ import annotations

import secrets
import subprocess
import time
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.port import ways
from eyrie.port.transfer import Way

BYTES = 16 << 20
_SMALL = 64 << 10
_LIMIT_S = 120.0


def through_here(source: dict[str, Any] | None, destination: dict[str, Any], size: int = BYTES) -> dict[str, Any]:
    """{mb_s, pull_mb_s, push_mb_s}: mb_s of both legs one after the other. source None: the files are here already.

    A leg on this very machine counts as 1000 MB/s. Raises EyrieError when a host cannot be reached.
    """
    pull = _rate(ways.way(source), _pull, size) if source else 1000.0
    push = _rate(ways.way(destination), _push, size)
    return {"mb_s": round(1 / (1 / pull + 1 / push), 3), "pull_mb_s": round(pull, 3), "push_mb_s": round(push, 3)}


def _rate(way: Way, act: Any, size: int) -> float:
    """MB/s of one leg; connecting is measured with a small piece first, and taken off."""
    if not way.host:
        return 1000.0
    small, large = act(way, _SMALL), act(way, size)
    return float(min(1000.0, (size - _SMALL) / max(large - small, 1e-3) / 1e6))


def _pull(way: Way, size: int) -> float:
    begin = time.monotonic()
    got = _call([*way.rsh, way.host, "head", "-c", str(size), "/dev/urandom"], b"", way)
    if len(got) != size:
        raise EyrieError(f"{len(got)} of {size} bytes came back.", where=way.host, code="measure-short")
    return time.monotonic() - begin


def _push(way: Way, size: int) -> float:
    data = secrets.token_bytes(size)
    begin = time.monotonic()
    got = _call([*way.rsh, way.host, "wc", "-c"], data, way)
    if got.split()[:1] != [str(size).encode()]:
        raise EyrieError(f"{got[:40]!r} arrived of {size} bytes.", where=way.host, code="measure-short")
    return time.monotonic() - begin


def _call(argv: list[str], data: bytes, way: Way) -> bytes:
    try:
        done = subprocess.run(argv, input=data, capture_output=True, timeout=_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EyrieError(f"the link cannot be measured: {error}", where=way.host, code="measure-link") from None
    if done.returncode != 0:
        raise EyrieError(
            f"the host cannot be reached (status {done.returncode}).",
            where=way.host,
            why=done.stderr.decode("utf-8", "replace").strip()[-400:],
            code="measure-link",
        )
    return done.stdout

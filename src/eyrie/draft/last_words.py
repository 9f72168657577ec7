"""What a host of a group says when its trainer ends by an error, told to the others through the leader's store.

When a host is lost, gloo fails on its neighbours, whose ends fail their neighbours in turn: what a trainer itself hears
of is the host next to it. A host that was lost leaves no word; one that failed by itself, or after another, does.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from datetime import timedelta

PATIENCE_S = 2.0
LIMIT = 400
SAID = "eyrie: host {} of the group ended: {}\n"
_SAID = re.compile(r"eyrie: host (\d+) of the group ended: (.*)")


def exchange(error: BaseException, environ: Mapping[str, str] = os.environ, patience_s: float = PATIENCE_S) -> None:
    """Leave this host's word and write those of the others to stderr, which is the trainer's log.

    environ: as torchrun sets it for a trainer. patience_s: how long the words of others are waited for. A store that
    does not answer (the leader is lost) changes nothing.
    """
    hosts, mine = int(environ.get("GROUP_WORLD_SIZE") or 1), int(environ.get("GROUP_RANK") or 0)
    if hosts < 2:
        return
    from torch.distributed import TCPStore

    words: dict[int, str] = {}
    deadline = time.monotonic() + patience_s
    try:
        store = TCPStore(
            environ["MASTER_ADDR"],
            int(environ["MASTER_PORT"]),
            is_master=False,
            timeout=timedelta(seconds=max(1.0, patience_s)),
        )
        store.set(_key(mine), f"{type(error).__name__}: {' '.join(str(error).split())}"[:LIMIT])
        while True:
            left = [rank for rank in range(hosts) if rank not in (mine, *words) and store.check([_key(rank)])]
            words.update({rank: store.get(_key(rank)).decode("utf-8", "replace") for rank in left})
            if len(words) == hosts - 1 or time.monotonic() > deadline:
                break
            time.sleep(0.1)
    except RuntimeError:  # torch's for a store that is gone
        pass
    for rank, said in sorted(words.items()):
        sys.stderr.write(SAID.format(rank, said))
    sys.stderr.flush()


def read(said: str) -> dict[int, str]:
    """{place in the group: its word} in a trainer's log."""
    return {int(rank): word for rank, word in _SAID.findall(said)}


def _key(rank: int) -> str:
    return f"eyrie/ended/{rank}"

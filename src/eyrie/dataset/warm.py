"""What every worker needs, imported once in the process that they are forked from (and nowhere else).

That process has no threads, and nothing of the stage's own state. It leaves SIGTERM, which a supervisor sends to the
whole group, to the stage: workers are ended by it, or by the kernel when this process ends.
"""

from __future__ import annotations

import signal

import msgspec
import numpy
import orjson
import pyarrow
import xxhash

import eyrie.dataset.process
import eyrie.dataset.worker

__all__ = ["eyrie", "msgspec", "numpy", "orjson", "pyarrow", "xxhash"]

signal.signal(signal.SIGTERM, signal.SIG_IGN)

"""The stage's side of the load generator: start it, ask it, give up on it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from eyrie.core import children
from eyrie.core.errors import EyrieError
from eyrie.serve import key

LAST_LINES = 12
START_TIMEOUT_S = 300.0
COMMAND = (sys.executable, "-m", "eyrie.benchmark.worker")


class Generator:
    """A worker process. `tick` is called while waiting (look at the stop flag there); it may raise.

    Importing goes on in the background from __enter__ on, so that a server can start meanwhile.
    """

    def __init__(self, log: Path, tick: Callable[[], None], command: Sequence[str] = COMMAND):
        self.log, self._tick, self._command = log, tick, list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._ready = False

    def __enter__(self) -> Generator:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        # no hub at measuring time, no progress bars in a log, and the client's maths must not take the server's cores
        quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
        quiet["TOKENIZERS_PARALLELISM"] = "false"
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=children.environment(**quiet, **key.for_openai_clients()),
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None  # a pipe each, see __enter__
        assert process.stdout is not None
        if kind is None:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                self._kill(process)
        else:
            self._kill(process)
            process.stdin.close()
        process.stdout.close()
        self._process = None

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """One request, one answer. Raises EyrieError: it died, it took too long, or it says what went wrong."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        if not self._ready:
            self._read(START_TIMEOUT_S, "starting")
            self._ready = True
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        reply = self._read(timeout_s, str(request["op"]))
        if "error" in reply:
            raise EyrieError(
                "The load generator failed.",
                where=str(self.log),
                why=str(reply["error"]),
                code="bench-failed",
                todo="See the end of its log.",
            )
        return reply

    def _read(self, timeout_s: float, doing: str) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        end = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                self._tick()
                if time.monotonic() > end:
                    raise EyrieError(
                        f"The load generator took longer than {timeout_s:.0f} s ({doing}).",
                        where=str(self.log),
                        code="bench-timeout",
                        todo="Is the server still answering? Raise eyrie_benchmark_cell_timeout_s for a slow host.",
                    )
                if selector.select(0.25):
                    block = os.read(process.stdout.fileno(), 1 << 20)
                    if not block:
                        raise self._died()
                    self._buffer += block
        line, _, self._buffer = self._buffer.partition(b"\n")
        value: dict[str, Any] = json.loads(line)
        return value

    def _died(self) -> EyrieError:
        assert self._process is not None
        status = self._process.wait()
        try:
            tail = self.log.read_text("utf-8", "replace").splitlines()[-LAST_LINES:]
        except OSError:
            tail = []
        return EyrieError(
            f"The load generator ended with status {status}.",
            where=str(self.log),
            why=" | ".join(line.strip() for line in tail if line.strip()),
            code="bench-died",
            todo="See its log; playbooks/provision.yml repairs the environment.",
        )

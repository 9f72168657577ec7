"""The queue of conversations: streamed from the dataset, retries first, late ones last."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Iterator

from eyrie.responses.rows import Job


class Jobs:
    """What is to be done next. Only what is in flight or has been put back is in memory.

    Order: what was put back, then what has waited long enough, then the dataset, then (`last`) what came too late.
    """

    def __init__(self, source: Iterator[Job]):
        self._source: Iterator[Job] | None = source
        self._front: deque[Job] = deque()
        self._later: list[tuple[float, int, Job]] = []
        self._last: deque[Job] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._sequence = 0
        self.outstanding = 0  # taken and not yet resolved or put back
        self.suspects: list[Job] = []  # in flight at more than one crash: to be tried apart from the others
        self.closed = False

    @property
    def drained(self) -> bool:
        """Nothing left but suspects."""
        return not (self._source or self._front or self._later or self._last or self.outstanding)

    @property
    def put_off(self) -> bool:
        """Whether some conversation waits to be asked again later (the server put it off)."""
        return bool(self._later)

    async def get(self) -> Job | None:
        """The next conversation; None once all is done."""
        loop = asyncio.get_running_loop()
        while not self.closed:
            job = self._next(loop.time())
            if job is not None:
                self.outstanding += 1
                return job
            waiter = loop.create_future()
            self._waiters.append(waiter)
            timer = None
            if self._later:
                timer = loop.call_at(self._later[0][0], _wake, waiter)
            try:
                await waiter
            finally:
                if timer:
                    timer.cancel()
        return None

    def _next(self, now: float) -> Job | None:
        if self._front:
            return self._front.popleft()
        if self._later and self._later[0][0] <= now:
            return heapq.heappop(self._later)[2]
        if self._source is not None:
            job = next(self._source, None)
            if job is not None:
                return job
            self._source = None
        if self._last:
            return self._last.popleft()
        return None

    def resolved(self) -> None:
        self.outstanding -= 1

    def put_back(self, job: Job) -> None:
        """To be asked again at once."""
        self.outstanding -= 1
        self._front.append(job)
        self._notify()

    def put_later(self, job: Job, when: float) -> None:
        """To be asked again at a time of the loop's clock."""
        self.outstanding -= 1
        self._sequence += 1
        heapq.heappush(self._later, (when, self._sequence, job))
        self._notify()

    def put_last(self, job: Job) -> None:
        """To be asked again when the rest is done."""
        self.outstanding -= 1
        self._last.append(job)
        self._notify()

    def suspect(self, job: Job) -> None:
        self.outstanding -= 1
        self.suspects.append(job)

    def _notify(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def close(self) -> None:
        """Send every waiting worker home."""
        self.closed = True
        while self._waiters:
            _wake(self._waiters.popleft())


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

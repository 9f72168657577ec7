"""The engine: workers per endpoint, outages waited out, crashes traced to the prompt that causes them.

Nothing here is lost or doubled: an answer is stored once, when it came; a conversation that was in flight when
something broke goes back into the queue with the turns that it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from eyrie.core.errors import EyrieError, GateError
from eyrie.responses.chat import Asker
from eyrie.responses.controller import FIRST, Controller
from eyrie.responses.endpoint import CLOSED, DOWN, UP, Endpoint
from eyrie.responses.http import Gone, TimedOut
from eyrie.responses.jobs import Jobs
from eyrie.responses.rows import Job
from eyrie.responses.settings import Settings
from eyrie.responses.store import Store
from eyrie.responses.turn import Again, Refused, Rules, Unwell, attempt

log = logging.getLogger(__name__)

FLUSH_S = 0.02
REVIVE_S = 5.0  # a supervisor restarts its unit by itself: only then is it told to
POISON = "poison"
#: proofs that fail because the server is not there yet, not because another one is
NOT_YET = {"not-serving", "silent", "server-unreachable"}


@dataclass
class Hooks:
    """What the engine needs of its surroundings.

    prove(url): blocking; raises GateError when what serves there is not the baseline. check_stop(): raises to stop.
    report(engine): called a few times a second. revive(): blocking; brings the own host's server back, or raises.
    """

    prove: Callable[[str], Any]
    check_stop: Callable[[], None] = lambda: None
    report: Callable[[Engine], None] = lambda engine: None
    revive: Callable[[], Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)


class Engine:
    """Runs jobs against endpoints until every one is resolved. Use it once, inside a running loop."""

    def __init__(
        self,
        settings: Settings,
        asker: Asker,
        rules: Rules,
        store: Store,
        urls: list[str],
        source: Iterator[Job],
        hooks: Hooks,
    ):
        self.settings, self.asker, self.rules, self.store, self.hooks = settings, asker, rules, store, hooks
        self.loop = asyncio.get_running_loop()
        self.jobs = Jobs(source)
        start = settings.concurrency or min(FIRST, settings.max_concurrency)
        self.endpoints = [Endpoint(url, start, hooks.headers) for url in urls]
        self.controllers = [Controller(endpoint, settings) for endpoint in self.endpoints]
        self.resolved = self.turns = self.tokens = self.stored_bytes = 0
        self.kinds: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.unresolved: dict[int, tuple[bool, str, str]] = {}  # ordinal -> (dropped, reason, why)
        self.reasons: Counter[str] = Counter()
        self.fatal: asyncio.Future[None] = self.loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flush_timer: asyncio.TimerHandle | None = None
        self._isolating = False

    async def run(self) -> None:
        """Returns when all is resolved; raises EyrieError. What was answered is in the store either way."""
        from eyrie.responses.keeper import keep

        try:
            for endpoint in self.endpoints:
                self._spawn(self._bring_up(endpoint))
            for controller in self.controllers:
                self._spawn(controller.run())
            keeper = self._spawn(keep(self))
            done, _ = await asyncio.wait({self.fatal, keeper}, return_when=asyncio.FIRST_COMPLETED)
            for finished in done:
                finished.result()
            await self._prove_all()
        finally:
            self.jobs.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for endpoint in self.endpoints:
                endpoint.client.close()
            if self._flush_timer:
                self._flush_timer.cancel()
            if not self.fatal.cancel() and not self.fatal.cancelled():
                self.fatal.exception()  # seen: run() raises it, or something worse
            self.store.flush()

    def _spawn(self, coroutine: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the run with this error."""
        if not self.fatal.done():
            self.fatal.set_exception(error)

    # -- endpoints ----------------------------------------------------------------------------------------------

    async def _prove_all(self) -> None:
        """What serves now, after the last answer, is still what was proven before the first."""
        for endpoint in self.endpoints:
            if endpoint.state == UP:
                try:
                    await asyncio.to_thread(self.hooks.prove, endpoint.url)
                except EyrieError as error:
                    if isinstance(error, GateError) and error.code not in NOT_YET:
                        raise
                    endpoint.state = DOWN  # it went away after its last answer: what comes back must be the same
                    endpoint.outages += 1
                    await self._bring_up(endpoint)

    async def _bring_up(self, endpoint: Endpoint) -> None:
        """Wait for an endpoint, prove what serves there, then put it to work."""
        start, delay, revived = self.loop.time(), 0.1, False
        why = "it does not answer /health"
        while True:
            if await endpoint.healthy():
                try:
                    await asyncio.to_thread(self.hooks.prove, endpoint.url)
                    break
                except GateError as error:
                    if error.code in NOT_YET:
                        why = str(error)
                    elif len(self.endpoints) == 1 or endpoint is self.endpoints[0]:
                        raise
                    else:
                        return self._close(endpoint, error)
                except EyrieError as error:
                    why = str(error)
            waited = self.loop.time() - start
            if waited > self.settings.outage_limit_s:
                return self._close(endpoint, _server_gone(endpoint, waited, why))
            if (
                self.hooks.revive
                and not revived
                and endpoint is self.endpoints[0]
                and endpoint.outages
                and waited > REVIVE_S
            ):
                revived, delay = True, 0.1
                try:
                    await asyncio.to_thread(self.hooks.revive)
                except EyrieError as error:
                    why = str(error)
            await asyncio.sleep(delay)
            delay = min(delay * 1.5, 5.0)
        endpoint.max_model_len = int((await endpoint.model()).get("max_model_len") or 0)
        endpoint.state, endpoint.fingerprint = UP, ""
        endpoint.last_answer = endpoint.client.last_bytes = self.loop.time()
        self.man(endpoint)

    def man(self, endpoint: Endpoint) -> None:
        """Start workers up to the endpoint's limit."""
        while endpoint.state == UP and endpoint.workers < endpoint.limit:
            endpoint.workers += 1
            self._spawn(self._worker(endpoint))

    def down(self, endpoint: Endpoint, why: str) -> None:
        """Take an endpoint out of use until it is well again; its conversations go to whoever is free."""
        if endpoint.state == UP:
            endpoint.state = DOWN
            endpoint.outages += 1
            log.warning("%s is gone (%s): waiting for /health", endpoint.url, why)
            endpoint.client.cut()
            self._spawn(self._bring_up(endpoint))

    def _close(self, endpoint: Endpoint, error: EyrieError) -> None:
        endpoint.state = CLOSED
        log.error("%s is given up: %s", endpoint.url, error)
        if all(other.state == CLOSED for other in self.endpoints):
            raise error

    # -- conversations ------------------------------------------------------------------------------------------

    async def _worker(self, endpoint: Endpoint) -> None:
        try:
            while endpoint.state == UP and endpoint.workers <= endpoint.limit:
                pause = endpoint.paused_until - self.loop.time()
                if pause > 0:
                    await asyncio.sleep(pause)
                    continue
                job = await self.jobs.get()
                if job is None:
                    return
                if endpoint.state != UP:
                    self.jobs.put_back(job)
                    return
                await self._converse(endpoint, job)
        finally:
            endpoint.workers -= 1

    async def _converse(self, endpoint: Endpoint, job: Job) -> None:
        """All remaining turns of one conversation; on trouble it goes back into the queue or is resolved."""
        try:
            while not job.script.done:
                await self._turn(endpoint, job)
        except Refused as refused:
            self._give_up(job, refused.reason, refused.why, refused.dropped)
        except Again as again:
            self._again(endpoint, job, again)
        except TimedOut as late:
            self._charge(job, "timeout", str(late), last=True)
        except Unwell as ill:
            self.down(endpoint, str(ill))
            self.jobs.put_back(job)
        except Gone as gone:
            await self._gone(endpoint, job, str(gone))
        else:
            self._resolve()

    async def _turn(self, endpoint: Endpoint, job: Job) -> None:
        key, answer = await attempt(endpoint, job, self.asker, self.rules)
        self._put(key, {"id": job.id, "source": job.source, "turn": job.script.turn, **answer.record()})
        self.turns += 1
        self.tokens += len(answer.output_ids)
        self.kinds[answer.kind] += 1
        job.tries = 0
        job.script.take(answer)

    def _put(self, key: str, record: dict[str, Any]) -> None:
        payload = orjson.dumps(record)
        self.store.append(key, payload)
        self.stored_bytes += len(payload)
        if self._flush_timer is None:
            self._flush_timer = self.loop.call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._flush_timer = None
        try:
            self.store.flush()
        except EyrieError as error:
            self.fail(error)

    def _again(self, endpoint: Endpoint, job: Job, again: Again) -> None:
        self.retries[again.reason] += 1
        if again.endpoint_pause:
            endpoint.paused_until = max(endpoint.paused_until, self.loop.time() + again.delay)
            if again.reason == "http_429":
                self.controllers[self.endpoints.index(endpoint)].refused()
        if again.charged:
            self._charge(job, again.reason, again.why, delay=again.delay * 2**job.tries)
        else:
            self.jobs.put_later(job, self.loop.time() + again.delay)

    def _charge(self, job: Job, reason: str, why: str, delay: float = 0.0, last: bool = False) -> None:
        """One of the prompt's tries is used up."""
        job.tries += 1
        if job.tries >= self.settings.tries:
            self._give_up(job, reason, why)
        elif last:
            self.retries[reason] += 1
            self.jobs.put_last(job)
        else:
            self.jobs.put_later(job, self.loop.time() + delay)

    async def _gone(self, endpoint: Endpoint, job: Job, why: str) -> None:
        """The connection broke. Is the server gone, or was it this request alone?"""
        alive = endpoint.state == UP and await endpoint.healthy()
        self.retries["connection"] += 1
        if alive and endpoint.state == UP:
            job.tries += 1
            if job.tries >= self.settings.tries:
                job.tries = 0
                self.jobs.suspect(job)
            else:
                self.jobs.put_later(job, self.loop.time() + 0.2 * 2**job.tries)
            return
        self.down(endpoint, why)
        job.crashes += 1
        if job.crashes >= 2:
            self.jobs.suspect(job)
        else:
            self.jobs.put_back(job)

    def _give_up(self, job: Job, reason: str, why: str, dropped: bool = False) -> None:
        self.unresolved[job.ordinal] = (dropped, reason, f"{job.where}: {why}" if self.reasons[reason] < 3 else "")
        self.reasons[reason] += not dropped
        self._resolve()

    def _resolve(self) -> None:
        self.resolved += 1
        self.jobs.resolved()

    # -- suspects -----------------------------------------------------------------------------------------------

    async def isolate(self) -> None:
        """Try the suspects with nothing else in flight: all together, then halves of those that crash, then alone."""
        if self._isolating:
            return
        self._isolating = True
        suspects, self.jobs.suspects = self.jobs.suspects, []
        self.jobs.outstanding += len(suspects)
        log.warning("%d conversations were in flight at more than one crash: trying them apart", len(suspects))
        groups = [suspects]
        while groups:
            group = groups.pop()
            crashed = await self._together(group)
            if len(group) == 1 and crashed:
                self._poison(group[0])
            elif crashed:
                middle = (len(crashed) + 1) // 2
                groups += [half for half in (crashed[middle:], crashed[:middle]) if half]
        self._isolating = False

    async def _together(self, group: list[Job]) -> list[Job]:
        """Those of a group that did not get through because the connection or the server broke."""
        endpoint = await self._any_up()
        tries: list[bool] = await asyncio.gather(*(self._apart(endpoint, job) for job in group))
        crashed = [job for job, through in zip(group, tries, strict=True) if not through]
        if crashed and not await endpoint.healthy():
            self.down(endpoint, "it crashed on a suspect")
        return crashed

    async def _apart(self, endpoint: Endpoint, job: Job) -> bool:
        try:
            while not job.script.done:
                await self._turn(endpoint, job)
        except (Gone, Unwell):
            return False
        except Refused as refused:
            self._give_up(job, refused.reason, refused.why, refused.dropped)
        except Again as again:
            self._again(endpoint, job, again)
        except TimedOut as late:
            self._charge(job, "timeout", str(late), last=True)
        else:
            self._resolve()
        return True

    async def _any_up(self) -> Endpoint:
        while True:
            for endpoint in self.endpoints:
                if endpoint.state == UP and await endpoint.healthy():
                    return endpoint
            await asyncio.sleep(0.1)

    def _poison(self, job: Job) -> None:
        """Recorded, so that a later run does not crash the server on it again."""
        asker, script = self.asker, job.script
        sampling = asker.sampling(job.kind, job.key, script.turn)
        key = asker.turn_key(script.history, script.tools, sampling)
        why = "the server breaks the connection or dies on this prompt alone"
        self._put(key, {"id": job.id, "source": job.source, "turn": script.turn, "failed": POISON, "why": why})
        self._give_up(job, POISON, why)


def _server_gone(endpoint: Endpoint, waited: float, why: str) -> EyrieError:
    return EyrieError(
        f"the server has been gone for {waited:.0f} s.",
        where=endpoint.url,
        why=why,
        todo="Bring it back (playbooks/serve.yml) and run again: only what is missing is asked for.",
        code="server-gone",
    )

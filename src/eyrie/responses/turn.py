"""One attempt at one turn on one endpoint: the answer, or what went wrong and what that means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.responses.chat import REASONING_TRUNCATED, Answer, Asker, BadAnswer, parse
from eyrie.responses.endpoint import Endpoint
from eyrie.responses.http import Reply
from eyrie.responses.rows import Job

CHAT = "/v1/chat/completions"
TOO_LONG = "prompt_too_long"
#: tokens that a template may add to what the request's own bytes account for
SCAFFOLD = 1024
SLOWEST_TOK_S = 2.0  # per request, until this endpoint's own rate is measured
_CONTEXT = re.compile(r"maximum context length|max_model_len|context window|reduce the length", re.IGNORECASE)
_LIMIT = re.compile(r"maximum context length (?:is|of) (\d+)")
_COUNT = re.compile(
    r"(\d+) in the messages|contains (?:at least )?(\d+) (?:input )?tokens|has (\d+) input tokens"
    r"|(\d+) tokens from the input messages"
)


class Again(Exception):
    """Ask again after `delay` seconds. charged: it counts as one of the prompt's tries."""

    def __init__(self, reason: str, why: str, delay: float, charged: bool = True, endpoint_pause: bool = False):
        super().__init__(reason)
        self.reason, self.why, self.delay = reason, why, delay
        self.charged, self.endpoint_pause = charged, endpoint_pause


class Refused(Exception):
    """This prompt will never be answered. dropped: a rule of ours excludes it; else the server failed on it."""

    def __init__(self, reason: str, why: str, dropped: bool = False):
        super().__init__(reason)
        self.reason, self.why, self.dropped = reason, why, dropped


class Unwell(Exception):
    """The server itself is ill (5xx while /health says no), or is no longer the one that was proven."""


@dataclass
class Rules:
    """What the attempts of a run share."""

    think_tags: list[str]
    opens_think: bool
    min_answer: int
    reasoning_retry: float
    request_timeout: float
    context: int  # the target's max_model_len; an endpoint's own, smaller one wins


def deadline(rules: Rules, endpoint: Endpoint, max_tokens: int) -> float:
    """Seconds that one request may take: set, or four times what its tokens need at the endpoint's measured rate."""
    if rules.request_timeout:
        return rules.request_timeout
    return 120.0 + max_tokens * 4 / (endpoint.speed or SLOWEST_TOK_S * 4)


async def attempt(endpoint: Endpoint, job: Job, asker: Asker, rules: Rules) -> tuple[str, Answer]:
    """Ask for the job's next turn; (key, answer). Raises Gone, TimedOut, Again, Refused, Unwell."""
    script = job.script
    sampling = asker.sampling(job.kind, job.key, script.turn)
    key = asker.turn_key(script.history, script.tools, sampling)
    wanted = sampling["max_tokens"]
    if job.enlarged:
        wanted = int(wanted * rules.reasoning_retry)
    body = asker.body(script.history, script.tools, sampling, wanted)
    context = min(endpoint.max_model_len or rules.context, rules.context)
    if len(body) + SCAFFOLD + wanted > context:
        wanted = await _clamp(endpoint, job, sampling, wanted, context, rules)
        body = asker.body(script.history, script.tools, sampling, wanted)
    reply, seconds = await _post(endpoint, body, deadline(rules, endpoint, wanted))
    if reply.status == 400 and _CONTEXT.search(reply.body.decode("utf-8", "replace")):
        wanted = _left_by_message(reply, wanted, context, rules)
        body = asker.body(script.history, script.tools, sampling, wanted)
        reply, seconds = await _post(endpoint, body, deadline(rules, endpoint, wanted))
    if reply.status != 200:
        await _raise_for(endpoint, reply)
    try:
        recorded = sampling if wanted == sampling["max_tokens"] else {**sampling, "max_tokens": wanted}
        answer = parse(reply.body, recorded, rules.think_tags, rules.opens_think)
    except BadAnswer as error:
        raise Again("bad_answer", str(error), 0.5) from None
    if answer.server != endpoint.fingerprint:
        if endpoint.fingerprint:
            raise Unwell(f"another server answers: {answer.server or 'unnamed'} instead of {endpoint.fingerprint}")
        endpoint.fingerprint = answer.server
    endpoint.note(len(answer.output_ids), seconds)
    if answer.kind == REASONING_TRUNCATED and not job.enlarged and rules.reasoning_retry > 1:
        job.enlarged = True
        raise Again(REASONING_TRUNCATED, "the reasoning did not end within max_tokens", 0.0, charged=False)
    job.enlarged = False
    return key, answer


async def _post(endpoint: Endpoint, body: bytes, timeout: float) -> tuple[Reply, float]:
    loop = endpoint.client.loop
    start = loop.time()
    endpoint.in_flight += 1
    try:
        reply = await endpoint.client.post(CHAT, body, timeout)
    finally:
        endpoint.in_flight -= 1
    return reply, loop.time() - start


async def _clamp(
    endpoint: Endpoint, job: Job, sampling: dict[str, Any], wanted: int, context: int, rules: Rules
) -> int:
    """max_tokens for a prompt that may not leave room for `wanted`."""
    script = job.script
    count = await endpoint.count_tokens(script.history, script.tools, sampling["chat_template_kwargs"])
    if count is None:
        return wanted  # the server will say
    return _fit(count, wanted, context, rules)


def _left_by_message(reply: Reply, wanted: int, context: int, rules: Rules) -> int:
    """max_tokens from the numbers in the server's refusal of a too long request."""
    text = reply.body.decode("utf-8", "replace")
    limit, count = _LIMIT.search(text), _COUNT.search(text)
    if limit is None or count is None:
        raise Refused(TOO_LONG, text[:200], dropped=True)
    return _fit(int(next(filter(None, count.groups()))), wanted, min(context, int(limit.group(1))), rules)


def _fit(count: int, wanted: int, context: int, rules: Rules) -> int:
    left = context - count
    if left < min(rules.min_answer, wanted):
        raise Refused(TOO_LONG, f"{count} prompt tokens leave {max(left, 0)} of {context}", dropped=True)
    return min(wanted, left)


async def _raise_for(endpoint: Endpoint, reply: Reply) -> None:
    """Say what a status other than 200 means."""
    status, why = reply.status, message_of(reply)
    if status in (401, 403, 404):
        raise EyrieError(
            f"the server refuses every request: {status} {why}",
            where=endpoint.url,
            todo="Check the served model's name and the API key.",
            code="server-refuses",
        )
    wait = retry_after(reply)
    if status in (429, 503):
        if wait is None and status == 503 and not await endpoint.healthy():
            raise Unwell(why)
        raise Again(f"http_{status}", why, 1.0 if wait is None else wait, charged=False, endpoint_pause=True)
    if status in (408, 409, 425):
        raise Again(f"http_{status}", why, 1.0 if wait is None else wait)
    if status >= 500:
        if not await endpoint.healthy():
            raise Unwell(why)
        raise Again(f"http_{status}", why, 0.5)
    raise Refused(f"http_{status}", why)


def message_of(reply: Reply) -> str:
    """The error text of an answer, shortened."""
    import orjson

    try:
        value = orjson.loads(reply.body)
        error = value.get("error", value)
        text = error.get("message") if isinstance(error, dict) else str(error)
    except (orjson.JSONDecodeError, AttributeError):
        text = None
    return str(text or reply.body[:200].decode("utf-8", "replace"))[:300]


def retry_after(reply: Reply, now: float | None = None) -> float | None:
    """Seconds of a Retry-After header, given in seconds or as a date; None without a usable one.

    A date is compared with the answer's own Date where it has one: two clocks need not agree.
    """
    value = reply.headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        return min(max(0.0, float(value)), 3600.0)
    except ValueError:
        pass
    try:
        then = parsedate_to_datetime(value).timestamp()
        sent = parsedate_to_datetime(reply.headers["date"]).timestamp() if now is None else now
    except (KeyError, TypeError, ValueError):
        return None
    return min(max(0.0, then - sent), 3600.0)

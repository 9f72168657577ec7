"""Tell somebody when a stage ends or fails: a command or a webhook. Never makes the stage itself fail.

`execution.notify` of the spec (no part of any fingerprint):

  on        events: done, failed, interrupted
  command   a program and its arguments; the event comes as JSON on standard input, its name in EYRIE_EVENT
  webhook   {url | url_file, token_file}: the event is sent by POST; files keep secrets out of argv, spec and logs
  timeout_s seconds for each way
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from eyrie.core import spec, state
from eyrie.core.errors import EyrieError, SpecError
from eyrie.core.fingerprint import short
from eyrie.core.pipeline import Context
from eyrie.ops.shown import redact, span

log = logging.getLogger("eyrie.notify")
TRIES = 3


@dataclass
class Webhook:
    """Where to POST. url_file and token_file hold one line each and must not be readable by others."""

    url: str = ""
    url_file: str = ""
    token_file: str = ""

    def __post_init__(self) -> None:
        if bool(self.url) == bool(self.url_file):
            raise ValueError("exactly one of url and url_file is needed.")
        if self.url and not self.url.startswith(("https://", "http://")):
            raise ValueError("url must begin with https:// or http://.")


@dataclass
class Settings:
    """Typed form of execution.notify."""

    on: list[Literal["done", "failed", "interrupted"]] = spec.setting(["failed"])
    command: list[str] = spec.setting([])
    webhook: Webhook | None = None
    timeout_s: float = 20.0


def settings(execution: dict[str, Any]) -> Settings | None:
    """The declared hook, None when there is none. Raises SpecError."""
    declared = execution.get("notify")
    if not declared or not (declared.get("command") or declared.get("webhook")):
        return None
    if not declared.get("webhook"):
        declared = {key: value for key, value in declared.items() if key != "webhook"}
    return spec.load(Settings, declared, "execution.notify")


def after(ctx: Context, attempts: int) -> None:
    """Tell of the stage's end, if it was tried beyond `attempts`. Called by the runner once the lock is free."""
    try:
        wanted = settings(ctx.pipeline.execution)
        record = ctx.record()
        tried = int(record.get("attempt", 0)) > attempts  # not by the clock, which may jump
        if wanted is None or not tried or record.get("status") not in wanted.on:
            return
        send(event(ctx, record), wanted)
    except (EyrieError, OSError) as error:
        log.warning("the notification was not sent: %s", redact(str(error)))


def event(ctx: Context, record: dict[str, Any]) -> dict[str, Any]:
    """What is told: {event, text, host, run, stage, status, fingerprint, seconds, account, error, doctor}."""
    status, error = str(record["status"]), record.get("error") or {}
    account = record.get("account") or {}
    finding = _finding(ctx) if status == state.FAILED else None
    where = f"{ctx.pipeline.host or 'host'}/{ctx.pipeline.run}"
    text = f"{where}: {ctx.name} {status} after {span(record.get('seconds'))}"
    if account:
        text += f", {account['kept']:,} of {account['in']:,} kept"
    if error.get("what"):
        text += f". {error['what']}"
    if finding:
        text += f" Cause: {finding['cause']} Cure: {finding['cure']}"
    told = {
        "event": f"stage.{status}",
        "text": text,
        "time": time.time(),
        "host": ctx.pipeline.host,
        "run": ctx.pipeline.run,
        "stage": ctx.name,
        "status": status,
        "fingerprint": short(ctx.fingerprint),
        "seconds": record.get("seconds"),
        "account": account or None,
        "error": error or None,
        "doctor": finding,
    }
    cleaned: dict[str, Any] = json.loads(redact(json.dumps(told)))
    return cleaned


def _finding(ctx: Context) -> dict[str, Any] | None:
    from eyrie.ops.doctor import examine

    found = examine.examine(ctx.pipeline.root, ctx.pipeline.run, [ctx.name])["findings"]
    return found[0] if found else None


def send(told: dict[str, Any], wanted: Settings, sleep: Callable[[float], None] = time.sleep) -> None:
    """Send by every declared way; one failing does not keep the other. Raises EyrieError when any failed."""
    failures = []
    for way, declared in ((_run_command, wanted.command), (_post, wanted.webhook)):
        if declared:
            try:
                way(told, wanted, sleep)
            except EyrieError as error:
                failures.append(str(error))
    if failures:
        raise EyrieError(" ".join(failures), code="notify-failed")


def _run_command(told: dict[str, Any], wanted: Settings, sleep: Callable[[float], None]) -> None:
    environment = {**os.environ, "EYRIE_EVENT": str(told["event"])}
    try:
        answer = subprocess.run(
            wanted.command,
            input=json.dumps(told).encode(),
            env=environment,
            capture_output=True,
            timeout=wanted.timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EyrieError(f"{wanted.command[0]}: {error}", code="notify-command") from None
    if answer.returncode != 0:
        last = answer.stderr.decode("utf-8", "replace").strip()[-200:]
        raise EyrieError(f"{wanted.command[0]} ended with {answer.returncode}: {last}", code="notify-command")


def _post(told: dict[str, Any], wanted: Settings, sleep: Callable[[float], None]) -> None:
    assert wanted.webhook is not None
    url = wanted.webhook.url or secret(Path(wanted.webhook.url_file))
    if not url.startswith(("https://", "http://")):
        raise SpecError("the webhook's address is no http(s) URL.", where=wanted.webhook.url_file)
    headers = {"Content-Type": "application/json", "User-Agent": "eyrie"}
    if wanted.webhook.token_file:
        headers["Authorization"] = f"Bearer {secret(Path(wanted.webhook.token_file))}"
    opener = urllib.request.build_opener(_NoRedirect)
    reason = ""
    for attempt in range(TRIES):
        request = urllib.request.Request(url, json.dumps(told).encode(), headers)  # noqa: S310 (scheme checked above)
        try:
            with opener.open(request, timeout=wanted.timeout_s):
                return
        except urllib.error.HTTPError as error:
            reason = f"HTTP {error.code}"
            if error.code < 500 and error.code != 429:
                break
        except (OSError, ValueError) as error:
            reason = type(error).__name__
        if attempt + 1 < TRIES:
            sleep(2.0**attempt)
    raise EyrieError(f"the webhook did not take the event ({reason}).", code="notify-webhook")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token must not follow a redirection to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def secret(path: Path) -> str:
    """The first line of a secret's file. Raises EyrieError when others may read it."""
    try:
        mode = path.stat().st_mode
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise EyrieError(f"cannot read the secret's file: {error.strerror}", str(path), code="secret-file") from None
    if mode & 0o077:
        raise EyrieError("others may read this secret's file.", str(path), todo=f"chmod 600 {path}", code="secret-mode")
    if not lines or not lines[0].strip():
        raise EyrieError("the secret's file is empty.", str(path), code="secret-file")
    return lines[0].strip()

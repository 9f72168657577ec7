"""A few HTTP calls to a server on this machine. Standard library: planning and proof need nothing heavy."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.serve import key

#: a proxy variable must not send calls to this machine elsewhere
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Answer:
    status: int
    text: str

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.text)
        except ValueError:
            raise EyrieError(
                f"the server answered with something that is not JSON (status {self.status}): {self.text[:200]!r}",
                code="server-not-json",
            ) from None


class Unreachable(EyrieError):
    """Nobody answered: refused, reset, timed out."""


def get(base_url: str, path: str, timeout_s: float = 10.0) -> Answer:
    return _call(urllib.request.Request(base_url + path), timeout_s)  # noqa: S310 - base_url is ours


def post(base_url: str, path: str, body: dict[str, Any], timeout_s: float = 60.0) -> Answer:
    data = json.dumps(body).encode()
    request = urllib.request.Request(base_url + path, data, {"Content-Type": "application/json"})  # noqa: S310
    return _call(request, timeout_s)


def _call(request: urllib.request.Request, timeout_s: float) -> Answer:
    """An answer of any status. Raises Unreachable when there is none."""
    for name, value in key.headers().items():
        request.add_unredirected_header(name, value)
    try:
        with _OPENER.open(request, timeout=timeout_s) as reply:
            return Answer(reply.status, reply.read().decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.read().decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise Unreachable(f"no answer: {reason}", where=request.full_url, code="server-unreachable") from None

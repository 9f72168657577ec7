"""The page that Prometheus scrapes, served on loopback by the standard library's own server."""

from __future__ import annotations

import logging
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.monitor import collect
from eyrie.monitor.text import CONTENT_TYPE

log = logging.getLogger(__name__)

INDEX = b"<!doctype html><title>Eyrie</title><a href=/metrics>metrics</a>\n"


class Exporter(ThreadingHTTPServer):
    """Answers GET /metrics. address: (host, port); port 0 takes a free one."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], root: Path, runs: list[str] | None = None):
        self.root, self.runs = root, runs
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Exporter
    timeout = 30

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            try:
                page = collect.metrics(self.server.root, self.server.runs)
            except Exception as error:  # a scrape that fails must not end the exporter; Prometheus shows up == 0
                log.exception("the metrics cannot be read")
                self._send(500, f"{type(error).__name__}: {error}\n".encode(), "text/plain; charset=utf-8")
                return
            self._send(200, page.encode("utf-8"), CONTENT_TYPE)
        elif path == "/":
            self._send(200, INDEX, "text/html; charset=utf-8")
        else:
            self._send(404, b"there is /metrics\n", "text/plain; charset=utf-8")

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        return None  # a line every few seconds says nothing


def address(text: str) -> tuple[str, int]:
    """'127.0.0.1:9107' -> (host, port). Raises EyrieError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise EyrieError(f"{text!r} is no address.", code="bad-address", todo="Write it as 127.0.0.1:9107.")
    return host.strip("[]"), int(port)


def serve(root: Path, listen: str, runs: list[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    try:
        server = Exporter(address(listen), root, runs)
    except OSError as error:
        raise EyrieError(
            f"cannot listen on {listen}: {error.strerror}",
            code="address-taken",
            todo="Set eyrie_monitoring_exporter_port to a free port.",
        ) from None

    def stop(number: int, frame: object) -> None:
        threading.Thread(target=server.shutdown).start()  # shutdown() waits for the loop that this handler interrupts

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with server:
        server.serve_forever(0.2)

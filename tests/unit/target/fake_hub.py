"""A hub on a loopback port: one repository at one commit, with faults on request."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeHub:
    """files: {name: bytes}. faults: {name: how often it answers 503 first}.

    torn: names whose connection breaks half-way, once. gated: part of the paths that are refused.
    """

    def __init__(self, files: dict[str, bytes], revision: str, repository: str = "maker/small"):
        self.files, self.revision, self.repository = files, revision, repository
        self.faults: Counter[str] = Counter()
        self.torn: set[str] = set()
        self.gated = ""
        self.seen: list[tuple[str, str]] = []
        self.tokens: set[str] = set()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                return

            def do_HEAD(self) -> None:
                hub.answer(self, head=True)

            def do_GET(self) -> None:
                hub.answer(self, head=False)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler, head: bool) -> None:
        self.seen.append(("HEAD" if head else "GET", handler.path))
        self.tokens.add(handler.headers.get("authorization", ""))
        if self.gated and self.gated in handler.path:
            return self._say(handler, 401, {"X-Error-Code": "GatedRepo"}, b"{}")
        if handler.path.startswith(f"/api/models/{self.repository}/revision/{self.revision}"):
            return self._say(handler, 200, {"content-type": "application/json"}, json.dumps(self._listing()).encode())
        match = re.match(rf"/{self.repository}/resolve/{self.revision}/(.+)$", handler.path)
        if not match or match[1] not in self.files:
            code = "EntryNotFound" if match else "RevisionNotFound"
            return self._say(handler, 404, {"X-Error-Code": code}, b"{}")
        name = match[1]
        if self.faults[name] > 0:
            self.faults[name] -= 1
            return self._say(handler, 503, {}, b"busy")
        return self._file(handler, name, head)

    def _file(self, handler: BaseHTTPRequestHandler, name: str, head: bool) -> None:
        data = self.files[name]
        begin = 0
        if (wanted := handler.headers.get("range")) and (found := re.match(r"bytes=(\d+)-", wanted)):
            begin = int(found[1])
        headers = {
            "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
            "X-Repo-Commit": self.revision,
            "X-Linked-Size": str(len(data)),
            "Content-Length": str(len(data) - begin),
            "Accept-Ranges": "bytes",
        }
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        body = data[begin:]
        if name in self.torn and not head:
            self.torn.discard(name)
            body = body[: len(body) // 2]
        self._say(handler, 206 if begin else 200, headers, b"" if head else body)

    @staticmethod
    def _say(handler: BaseHTTPRequestHandler, code: int, headers: dict[str, str], body: bytes) -> None:
        handler.send_response(code)
        for key, value in headers.items():
            handler.send_header(key, value)
        if "Content-Length" not in headers:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _listing(self) -> dict[str, object]:
        siblings = []
        for name, data in self.files.items():
            entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
            if name.endswith(".safetensors"):
                digest = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        return {
            "id": self.repository,
            "sha": self.revision,
            "siblings": siblings,
            "private": False,
            "tags": [],
            "downloads": 0,
        }

"""A small hub on loopback that speaks as much of the protocol as the real client asks for, and misbehaves on demand."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Repository:
    """commits: {sha: {file: bytes}}; branches: {name: sha}."""

    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    gated: bool = False
    card: dict[str, Any] = field(default_factory=dict)


@dataclass
class Hub:
    """token: what opens gated repositories. busy: answers of 429 still to be given, by kind of request. cut: bytes
    after which the next downloads are cut, once each. requests: (method, path, authorization, range)."""

    repositories: dict[str, Repository]
    token: str = "hf_right"
    busy: Counter[str] = field(default_factory=Counter)
    retry_after: str = "1"
    cut: list[int] = field(default_factory=list)
    down: bool = False
    requests: list[tuple[str, str, str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    parallel: int = 0
    most: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def __enter__(self) -> Hub:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def paths(self, method: str = "") -> list[str]:
        return [path for verb, path, _, _ in self.requests if not method or verb == method]


def commit(number: int) -> str:
    return hashlib.sha1(str(number).encode()).hexdigest()


def described(files: dict[str, bytes], path: str) -> list[dict[str, Any]]:
    """A file or a folder as the hub describes it; [] where there is none."""
    if path in files:
        data = files[path]
        digest = hashlib.sha256(data).hexdigest()
        lfs = {"oid": digest, "size": len(data), "pointerSize": 130}
        return [{"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest(), "lfs": lfs}]
    if any(name.startswith(f"{path}/") for name in files):
        return [{"type": "directory", "path": path, "oid": commit(len(path))}]
    return []


def tree(files: dict[str, bytes], folder: str, recursive: bool) -> list[dict[str, Any]]:
    """What lies in a folder, or in all below it."""
    base = f"{folder}/" if folder else ""
    paths = set()
    for name in files:
        if name.startswith(base):
            words = name.removeprefix(base).split("/")
            steps = range(1, len(words) + 1) if recursive else (1,)
            paths |= {base + "/".join(words[:step]) for step in steps}
    return [item for path in sorted(paths) for item in described(files, path)]


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            return None

        def do_HEAD(self) -> None:
            self.serve()

        def do_GET(self) -> None:
            self.serve()

        def do_POST(self) -> None:
            self.form = parse_qs(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
            self.serve()

        def serve(self) -> None:
            path = unquote(urlsplit(self.path).path)
            with hub.lock:
                hub.parallel += 1
                hub.most = max(hub.most, hub.parallel)
                authorization = self.headers.get("Authorization", "")
                self.began = time.monotonic()
                hub.times.append(self.began)
                hub.requests.append((self.command, path, authorization, self.headers.get("Range", "")))
            try:
                self.route(path, authorization)
            finally:
                with hub.lock:
                    hub.parallel -= 1

        def route(self, path: str, authorization: str) -> None:
            kind = "api" if path.startswith("/api/") else self.command
            if not path.startswith(("/api/datasets/", "/datasets/")):
                self.answer(404, b"{}")  # what the hub's other servers answer of data sets that they do not know
                return
            if hub.down:
                self.close_connection = True
                self.connection.shutdown(2)
                return
            with hub.lock:
                refused = hub.busy[kind] > 0
                hub.busy[kind] -= refused
            if refused:
                hub.refused.append(self.began)
                self.answer(429, b'{"error": "slow down"}', {"Retry-After": hub.retry_after} if hub.retry_after else {})
                return
            words = path.removeprefix("/api").removeprefix("/datasets/").split("/")
            name, rest = "/".join(words[:2]), words[2:]
            repository = hub.repositories.get(name)
            if repository is None:
                self.answer(401, b'{"error": "Invalid username or password."}', {"X-Error-Code": "RepoNotFound"})
                return
            if repository.gated and authorization != f"Bearer {hub.token}":
                status = 403 if authorization else 401
                self.answer(
                    status,
                    b'{"error": "gated"}',
                    {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."},
                )
                return
            revision = rest[1] if len(rest) > 1 else "main"
            sha = repository.branches.get(revision, revision)
            if sha not in repository.commits:
                self.answer(404, b'{"error": "Invalid rev id"}', {"X-Error-Code": "RevisionNotFound"})
                return
            if kind == "api":
                files = repository.commits[sha]
                if rest[:1] == ["tree"]:
                    found: Any = tree(files, "/".join(rest[2:]), "recursive=True" in self.path)
                elif rest[:1] == ["paths-info"]:
                    found = [item for path in self.form["paths"] for item in described(files, path)]
                else:
                    found = self.info(name, sha, repository)
                self.answer(200, json.dumps(found).encode())
            else:
                self.file(repository.commits[sha].get("/".join(rest[2:])), sha)

        def info(self, name: str, sha: str, repository: Repository) -> dict[str, Any]:
            siblings = [
                {
                    "rfilename": key,
                    "size": len(data),
                    "blobId": hashlib.sha1(data).hexdigest(),
                    "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130},
                }
                for key, data in repository.commits[sha].items()
            ]
            return {
                "id": name,
                "sha": sha,
                "private": False,
                "downloads": 0,
                "likes": 0,
                "tags": [],
                "siblings": siblings,
                "cardData": repository.card,
            }

        def file(self, data: bytes | None, sha: str) -> None:
            if data is None:
                self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
            headers = {"X-Repo-Commit": sha, "ETag": f'"{hashlib.sha256(data).hexdigest()}"', "Accept-Ranges": "bytes"}
            asked = self.headers.get("Range", "")
            start = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.answer(206 if start else 200, data[start:], headers, self.command == "GET")

        def answer(
            self, status: int, data: bytes, headers: dict[str, str] | None = None, cuttable: bool = False
        ) -> None:
            self.send_response(status)
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "HEAD":
                return
            cut = hub.cut.pop(0) if cuttable and hub.cut else len(data)
            self.wfile.write(data[:cut])
            self.wfile.flush()
            if cut < len(data):
                self.close_connection = True
                self.connection.shutdown(2)

    return Handler

"""Fingerprints: canonical JSON of all that can change an output, and nothing else.

Never part of one: paths, host names, concurrency, log levels.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from eyrie.core import atomic


def canonical(value: Any) -> str:
    """Canonical JSON: sorted keys, no blanks, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def fingerprint(value: Any) -> str:
    """SHA-256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass")).hexdigest()


def short(digest: str | None) -> str:
    """The 12 digits that name folders and appear in messages."""
    return (digest or "")[:12]


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes, streamed."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def tool_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Installed versions of the distributions that decide a stage's bytes ('absent' where missing)."""
    return {name: _version(name) for name in sorted(distributions)}


@cache
def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


class HashCache:
    """Remembers file digests by (size, mtime_ns, inode), so that a plan re-reads only changed files."""

    def __init__(self, path: Path):
        self.path = path
        self._known: dict[str, Any] = atomic.read_json(path, {}) or {}
        self._dirty = False

    def sha256(self, path: Path) -> str:
        info = os.stat(path)
        stamp = [info.st_size, info.st_mtime_ns, info.st_ino]
        known = self._known.get(str(path))
        if known and known[0] == stamp:
            return str(known[1])
        digest = file_sha256(path)
        self._known[str(path)] = [stamp, digest]
        self._dirty = True
        return digest

    def save(self) -> None:
        """Keep what was learned; a read-only disk costs only speed."""
        if self._dirty and self.path.parent.is_dir():
            try:
                atomic.write_json(self.path, self._known)
            except OSError:
                return
            self._dirty = False


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """{'a': {'b': 1}} -> {'a.b': 1}; lists stay whole."""
    if isinstance(value, dict) and value:
        out: dict[str, Any] = {}
        for key in value:
            out.update(flatten(value[key], f"{prefix}.{key}" if prefix else str(key)))
        return out
    return {prefix: value}


def differences(current: Any, desired: Any) -> list[dict[str, Any]]:
    """Differences as data, [{name, current, desired}], by dotted name; None also stands for 'not there'.

    Empty exactly when the two have the same fingerprint: 1 and 1.0, or null and 'not there', differ.
    """
    old, new = flatten(current or {}), flatten(desired or {})
    old.pop("", None), new.pop("", None)
    return [
        {"name": name, "current": old.get(name), "desired": new.get(name)}
        for name in sorted(old.keys() | new.keys())
        if (name in old) != (name in new) or canonical(old[name]) != canonical(new[name])
    ]

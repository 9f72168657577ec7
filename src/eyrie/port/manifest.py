"""The list of what travels: one line of JSON per file with its SHA-256, a header line that says what it is.

A pack is a folder `<stage>/<tree>/<path>` with `manifest.jsonl` beside; an incoming folder on the destination, a
spool on the controller and a saved run are all packs, checked by the same code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from eyrie.core import atomic, registry
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import HashCache, file_sha256
from eyrie.port.survey import BASE, OUT, Item, Place, tree_dir

NAME = "manifest.jsonl"
SCHEMA = 1
#: a saved run's records, beside the stages
STATE = "state"
_THREADS = 4  # hashing releases the GIL; more gains nothing once the disk is the limit


@dataclass(frozen=True)
class Entry:
    """A file (bytes, sha256), a symbolic link (link) or a second name of an earlier file (same: 'tree/path')."""

    stage: str
    tree: str
    path: str
    bytes: int = 0
    mode: int = 0o644
    sha256: str = ""
    link: str = ""
    same: str = ""

    def as_dict(self) -> dict[str, Any]:
        head = {"stage": self.stage, "tree": self.tree, "path": self.path}
        if self.link:
            return {**head, "link": self.link}
        if self.same:
            return {**head, "same": self.same}
        return {**head, "bytes": self.bytes, "mode": self.mode, "sha256": self.sha256}

    def at(self, folder: Path) -> Path:
        """Its place in a pack."""
        return folder / self.stage / self.tree / self.path


@dataclass
class Manifest:
    """header: {schema, host, run, stages: {name: survey of the stage}}."""

    header: dict[str, Any]
    entries: list[Entry] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)

    @property
    def trees(self) -> list[tuple[str, str]]:
        return sorted({(entry.stage, entry.tree) for entry in self.entries})

    def of(self, stage: str, tree: str | None = None) -> list[Entry]:
        return [entry for entry in self.entries if entry.stage == stage and tree in (None, entry.tree)]

    def write(self, path: Path) -> str:
        """Write it durably; returns its own SHA-256, which travels by another way than the files."""
        lines = [json.dumps(self.header, sort_keys=True)]
        lines += [json.dumps(entry.as_dict(), sort_keys=True) for entry in self.entries]
        atomic.write_text(path, "\n".join(lines) + "\n")
        return file_sha256(path)


def build(places: Iterable[tuple[Place, list[Item]]], header: dict[str, Any], hashes: HashCache) -> Manifest:
    """Hash the items of the given places."""
    entries: list[Entry] = []
    for place, found in places:
        entries += _entries(place, found, hashes)
    hashes.save()
    return Manifest({"schema": SCHEMA, **header}, entries)


def _entries(place: Place, found: list[Item], hashes: HashCache) -> list[Entry]:
    first: dict[tuple[int, int], str] = {}
    plain, special = [], []
    for item in found:
        name = f"{item.tree}/{item.path}"
        if item.link:
            special.append(Entry(place.name, item.tree, item.path, link=item.link))
        elif item.node in first:
            special.append(Entry(place.name, item.tree, item.path, same=first[item.node]))
        else:
            first[item.node] = name
            plain.append(item)
    with ThreadPoolExecutor(_THREADS) as pool:
        sums = list(pool.map(lambda item: hashes.sha256(tree_dir(place, item.tree) / item.path), plain))
    files = [
        Entry(place.name, item.tree, item.path, item.bytes, item.mode, digest)
        for item, digest in zip(plain, sums, strict=True)
    ]
    return sorted(files + special, key=lambda entry: (entry.tree, entry.path))


def read(path: Path, expect_sha256: str = "") -> Manifest:
    """Read and check a manifest; raises EyrieError for a torn, altered or hostile one."""
    try:
        if expect_sha256 and file_sha256(path) != expect_sha256:
            raise EyrieError(
                "the manifest is not the one that the source made.", where=str(path), code="manifest-altered"
            )
        lines = path.read_text("utf-8").splitlines()
        header = json.loads(lines[0])
        entries = [Entry(**json.loads(line)) for line in lines[1:]]
    except (OSError, ValueError, TypeError, IndexError) as error:
        raise EyrieError(f"cannot read the manifest: {error}", where=str(path), code="manifest-unreadable") from None
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise EyrieError(f"manifest schema is not {SCHEMA}.", where=str(path), code="manifest-schema")
    for entry in entries:
        _check_entry(entry, path)
    return Manifest(header, entries)


def _check_entry(entry: Entry, where: Path) -> None:
    """A path that leaves its folder is refused, whoever wrote it."""
    names = [entry.path] + ([entry.same.partition("/")[2]] if entry.same else [])
    bad = entry.stage not in (*registry.NAMES, STATE) or entry.tree not in (OUT, BASE)
    bad = bad or any(
        PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or not name for name in names
    )
    if entry.link:
        # an output folder lies in its stage's folder, except a model's, so its links may reach the stores beside it
        depth = len(PurePosixPath(entry.path).parts) - 1 + (entry.tree == OUT and entry.stage != "target")
        goal = os.path.normpath(os.path.join(".", *["x"] * depth, entry.link))
        bad = bad or os.path.isabs(entry.link) or goal.startswith("..")
    if bad:
        raise EyrieError(
            f"entry {entry.stage}/{entry.tree}/{entry.path} leads out of its folder.",
            where=str(where),
            code="manifest-path",
        )


@dataclass(frozen=True)
class Bad:
    """A file of a pack that is not as the manifest says."""

    entry: Entry
    what: str

    def __str__(self) -> str:
        return f"{self.entry.stage}/{self.entry.tree}/{self.entry.path}: {self.what}"


def check(manifest: Manifest, locate: Any, hashes: HashCache) -> Iterator[Bad]:
    """Every file that is missing, of another size or of other bytes. locate(entry) -> Path."""
    files = [entry for entry in manifest.entries if not entry.same]
    with ThreadPoolExecutor(_THREADS) as pool:
        for entry, what in zip(files, pool.map(lambda entry: _fault(entry, locate(entry), hashes), files), strict=True):
            if what:
                yield Bad(entry, what)
    hashes.save()


def _fault(entry: Entry, path: Path, hashes: HashCache) -> str:
    if entry.link:
        if not path.is_symlink():
            return "the link is missing"
        return "" if os.readlink(path) == entry.link else "the link leads elsewhere"
    try:
        info = path.lstat()
        if path.is_symlink() or not path.is_file():
            return "is not a plain file"
        if info.st_size != entry.bytes:
            return f"has {info.st_size} bytes instead of {entry.bytes}"
        return "" if hashes.sha256(path) == entry.sha256 else "SHA-256 differs"
    except FileNotFoundError:
        return "is missing"

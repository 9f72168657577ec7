"""Lists of files: complete, proved on arrival, never a way out of their folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import HashCache
from eyrie.port import manifest
from eyrie.port.manifest import Entry, Manifest
from eyrie.port.survey import items_of


def cache(tmp: Path) -> HashCache:
    return HashCache(tmp / "hashes.json")


def test_items_skip_temporary_files_and_keep_links(hosts: Any) -> None:
    hosts.run("alpha", "target", "dataset", "responses", "tokens", "hidden_states")
    ctx = hosts.alpha.context("hidden_states")
    (ctx.out / "states" / ".hs_9.x1.tmp").write_text("torn")
    (ctx.out / ".eyrie-partial").mkdir()
    (ctx.out / ".eyrie-partial" / "hs_8").write_text("torn")
    found = items_of(ctx)
    assert [(item.tree, item.path, item.link) for item in found] == [
        ("base", "store/ab/k0", ""),
        ("base", "store/ab/k1", ""),
        ("base", "store/ab/k2", ""),
        ("out", "states/hs_0", "../../store/ab/k0"),
        ("out", "states/hs_1", "../../store/ab/k1"),
        ("out", "states/hs_2", "../../store/ab/k2"),
    ]


def test_absolute_link_within_the_stage_becomes_relative(hosts: Any) -> None:
    hosts.run("alpha", "dataset")
    ctx = hosts.alpha.context("dataset")
    (ctx.out / "best").symlink_to(ctx.out / "part")
    assert next(item.link for item in items_of(ctx) if item.path == "best") == "part"


def test_link_that_leads_outside_is_refused(hosts: Any) -> None:
    hosts.run("alpha", "dataset")
    ctx = hosts.alpha.context("dataset")
    (ctx.out / "secret").symlink_to("/etc/passwd")
    with pytest.raises(EyrieError, match="leads outside") as caught:
        items_of(ctx)
    assert caught.value.code == "carry-link"


def test_hard_links_travel_once(hosts: Any, tmp_path: Path) -> None:
    hosts.run("alpha", "dataset")
    ctx = hosts.alpha.context("dataset")
    os.link(ctx.out / "part" / "data", ctx.out / "part" / "again")
    made = manifest.build([(ctx, items_of(ctx))], {}, cache(tmp_path))
    again = next(entry for entry in made.entries if entry.path == "part/data")
    assert again.same == "out/part/again"
    assert made.bytes == sum(entry.bytes for entry in made.entries)


def test_write_and_read_back(hosts: Any, tmp_path: Path) -> None:
    hosts.run("alpha", "target", "dataset", "responses", "tokens", "hidden_states")
    ctx = hosts.alpha.context("hidden_states")
    made = manifest.build([(ctx, items_of(ctx))], {"host": "alpha", "run": "main", "stages": {}}, cache(tmp_path))
    digest = made.write(tmp_path / "m.jsonl")
    assert manifest.read(tmp_path / "m.jsonl", digest) == made


@pytest.mark.parametrize(
    "entry",
    [
        {"stage": "draft", "tree": "out", "path": "../escape", "bytes": 1, "mode": 420, "sha256": "0"},
        {"stage": "draft", "tree": "out", "path": "/etc/cron.d/x", "bytes": 1, "mode": 420, "sha256": "0"},
        {"stage": "draft", "tree": "elsewhere", "path": "x", "bytes": 1, "mode": 420, "sha256": "0"},
        {"stage": "../draft", "tree": "out", "path": "x", "bytes": 1, "mode": 420, "sha256": "0"},
        {"stage": "draft", "tree": "out", "path": "a/b", "link": "../../../x"},
        {"stage": "draft", "tree": "base", "path": "a", "link": "../x"},
        {"stage": "target", "tree": "out", "path": "a", "link": "../x"},
        {"stage": "draft", "tree": "out", "path": "a", "link": "/etc"},
        {"stage": "draft", "tree": "out", "path": "a", "same": "out/../../x"},
        {"stage": "draft", "tree": "out", "path": "", "bytes": 1, "mode": 420, "sha256": "0"},
    ],
)
def test_hostile_entries_are_refused(tmp_path: Path, entry: dict[str, Any]) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps({"schema": 1}) + "\n" + json.dumps(entry) + "\n")
    with pytest.raises(EyrieError, match="leads out of its folder"):
        manifest.read(path)


@pytest.mark.parametrize(
    "text", ["", "{", '{"schema": 2}\n', '{"schema": 1}\n{"stage": "draft"}\n', '{"schema": 1}\n[1]\n']
)
def test_torn_or_foreign_manifests_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(text)
    with pytest.raises(EyrieError, match="manifest"):
        manifest.read(path)


def test_altered_manifest_is_refused(tmp_path: Path) -> None:
    digest = Manifest({"schema": 1}, [Entry("draft", "out", "x", 1, 0o644, "0")]).write(tmp_path / "m.jsonl")
    with open(tmp_path / "m.jsonl", "a") as stream:
        stream.write("\n")
    with pytest.raises(EyrieError, match="not the one that the source made"):
        manifest.read(tmp_path / "m.jsonl", digest)


def test_check_names_every_kind_of_fault(tmp_path: Path) -> None:
    good = "2689367b205c16ce32ed4200942b8b8b1e262dfc70d9bc9fbc77c49699a4f1df"  # of b'ok'
    names = ["good", "short", "rotten", "missing", "folder", "swapped"]
    entries = [Entry("draft", "out", name, 2, 0o644, good) for name in names]
    entries += [Entry("draft", "out", "link", link="good"), Entry("draft", "out", "lost-link", link="good")]
    folder = tmp_path / "draft" / "out"
    folder.mkdir(parents=True)
    (folder / "good").write_bytes(b"ok")
    (folder / "short").write_bytes(b"o")
    (folder / "rotten").write_bytes(b"oK")
    (folder / "folder").mkdir()
    (folder / "swapped").symlink_to("good")
    (folder / "link").symlink_to("rotten")
    found = manifest.check(Manifest({}, entries), lambda entry: entry.at(tmp_path), cache(tmp_path))
    assert {bad.entry.path: bad.what for bad in found} == {
        "short": "has 1 bytes instead of 2",
        "rotten": "SHA-256 differs",
        "missing": "is missing",
        "folder": "is not a plain file",
        "swapped": "is not a plain file",
        "link": "the link leads elsewhere",
        "lost-link": "the link is missing",
    }

"""Draft versions: kept whole, pointed at in one step, pruned, found by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eyrie.benchmark import drafts
from eyrie.core.errors import EyrieError


def checkpoint(root: Path, text: str = "weights") -> Path:
    folder = root / "made"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_text(text)
    (folder / "config.json").write_text("{}")
    return folder


def test_kept_files_are_links_that_outlive_the_run(tmp_path: Path) -> None:
    made = checkpoint(tmp_path)
    place = drafts.keep(tmp_path, "a" * 12, made, {"run": "main"})
    assert os.stat(place / "model.safetensors").st_ino == os.stat(made / "model.safetensors").st_ino
    (made / "model.safetensors").unlink()
    assert (place / "model.safetensors").read_text() == "weights"
    assert drafts.versions(tmp_path)[0]["run"] == "main"
    assert os.stat(place).st_mode & 0o777 == 0o755


def test_a_copy_where_links_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError("cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    place = drafts.keep(tmp_path, "a" * 12, checkpoint(tmp_path), {})
    assert (place / "model.safetensors").read_text() == "weights"


def test_half_a_copy_is_never_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: str) -> str:
        raise OSError("No space left on device")

    monkeypatch.setattr(drafts, "_link", full)
    with pytest.raises(Exception, match="No space left"):
        drafts.keep(tmp_path, "a" * 12, checkpoint(tmp_path), {})
    assert drafts.versions(tmp_path) == []
    assert list(drafts.folder(tmp_path).iterdir()) == []


def test_the_pointer_moves_in_one_step_and_tells_what_it_left(tmp_path: Path) -> None:
    for name in ("a" * 12, "b" * 12):
        drafts.keep(tmp_path, name, checkpoint(tmp_path), {})
    assert drafts.current(tmp_path) == ""
    assert drafts.point(tmp_path, "a" * 12) == ""
    assert drafts.point(tmp_path, "b" * 12) == "a" * 12
    assert drafts.current(tmp_path) == "b" * 12
    assert [item["version"] for item in drafts.versions(tmp_path) if item["current"]] == ["b" * 12]
    assert not [path for path in drafts.folder(tmp_path).iterdir() if path.name.startswith(".")]


def test_nothing_points_at_a_version_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EyrieError, match="none is kept yet"):
        drafts.point(tmp_path, "a" * 12)
    drafts.keep(tmp_path, "abcdef012345", checkpoint(tmp_path), {})
    with pytest.raises(EyrieError, match="Did you mean 'abcdef012345'"):
        drafts.find(tmp_path, "abcdef012346")
    os.symlink("gone", drafts.folder(tmp_path) / "current")
    assert drafts.current(tmp_path) == ""


def test_a_beginning_is_enough_unless_two_begin_so(tmp_path: Path) -> None:
    for name in ("abc000000000", "abd000000000"):
        drafts.keep(tmp_path, name, checkpoint(tmp_path), {})
    assert drafts.find(tmp_path, "abc").name == "abc000000000"
    with pytest.raises(EyrieError, match="several begin so"):
        drafts.find(tmp_path, "ab")


def test_pruning_spares_the_current_and_the_one_before(tmp_path: Path) -> None:
    names = [letter * 12 for letter in "abcdef"]
    for number, name in enumerate(names):
        drafts.keep(tmp_path, name, checkpoint(tmp_path), {"kept": float(number)})
    drafts.point(tmp_path, "a" * 12)
    assert drafts.prune(tmp_path, 3, {"b" * 12}) == ["c" * 12, "d" * 12, "e" * 12]
    assert {item["version"] for item in drafts.versions(tmp_path)} == {"a" * 12, "b" * 12, "f" * 12}

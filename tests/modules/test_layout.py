"""eyrie_layout: folders of a run, and roots that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.modules.conftest import run_module

FOLDERS = ["models", "cache/tmp", "runs"]


def lay(root: object, **options: bool) -> object:
    return run_module("eyrie_layout", {"root": str(root), "folders": FOLDERS}, **options)


def test_parents_are_made_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "not" / "there" / "eyrie"
    first = lay(root)
    assert first.result["changed"] is True
    assert all((root / name).is_dir() for name in FOLDERS)
    again = lay(root)
    assert again.result == {"changed": False, "made": [], "diff": {"before": "", "after": ""}}


def test_check_mode_says_what_it_would_make_and_makes_nothing(tmp_path: Path) -> None:
    call = lay(tmp_path / "eyrie", check=True, diff=True)
    assert call.result["changed"] is True
    assert call.result["made"][-1].endswith("runs")
    assert str(tmp_path / "eyrie" / "cache/tmp") in call.result["diff"]["after"]
    assert not (tmp_path / "eyrie").exists()


def test_a_folder_that_was_removed_comes_back(tmp_path: Path) -> None:
    lay(tmp_path / "eyrie")
    (tmp_path / "eyrie" / "runs").rmdir()
    assert lay(tmp_path / "eyrie").result["made"] == [str(tmp_path / "eyrie" / "runs")]


def test_somebody_else_s_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    call = lay(tmp_path)
    assert call.failed
    assert "holds files that are not Eyrie's: thesis.tex" in call.result["msg"]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["thesis.tex"]


def test_the_lost_and_found_of_a_fresh_disk_is_no_stranger(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    assert not lay(tmp_path).failed


@pytest.mark.parametrize("root", ["/", "//", "relative/root"])
def test_a_root_that_is_no_place_is_refused(root: str) -> None:
    call = lay(root, check=True)
    assert call.failed
    assert "absolute path below /" in call.result["msg"]


def test_a_file_in_the_root_s_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "eyrie").write_text("")
    call = lay(tmp_path / "eyrie")
    assert call.failed
    assert "is not a folder" in call.result["msg"]

"""eyrie_wheel: one wheel per state of the sources."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from unittest import mock

import pytest

from tests.modules.conftest import PROJECT, load, run_module


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    tree = tmp_path / "checkout"
    (tree / "src").mkdir(parents=True)
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(PROJECT / name, tree / name)
    shutil.copytree(PROJECT / "src" / "eyrie", tree / "src" / "eyrie", ignore=shutil.ignore_patterns("__pycache__"))
    return tree


def test_check_mode_hashes_and_builds_nothing(checkout: Path) -> None:
    before = sorted(checkout.rglob("*"))
    call = run_module("eyrie_wheel", {"project": str(checkout), "dest": str(checkout / "build")}, check=True)
    assert call.result["changed"] is True
    assert sorted(checkout.rglob("*")) == before


def test_caches_do_not_count_and_sources_do(checkout: Path) -> None:
    load("eyrie_wheel")
    from ansible.module_utils.eyrie import sources as module

    def digest() -> str:
        return module.tree_sha256(str(checkout), module.files(str(checkout)))

    first = digest()
    (checkout / "src" / "eyrie" / "__pycache__").mkdir()
    (checkout / "src" / "eyrie" / "__pycache__" / "cli.cpython-311.pyc").write_bytes(b"x")
    assert digest() == first
    (checkout / "src" / "eyrie" / "cli.py").write_text("# changed\n")
    assert digest() != first


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    call = run_module("eyrie_wheel", {"project": str(tmp_path), "dest": str(tmp_path / "build")})
    assert call.failed
    assert "is not a checkout of Eyrie" in call.result["msg"]


def test_the_wheel_holds_the_tree_and_is_built_once(checkout: Path) -> None:
    import subprocess

    from ansible.module_utils import basic

    def really(
        self: object, argv: list[str], environ_update: dict[str, str] | None = None, **_: object
    ) -> tuple[int, str, str]:
        import os

        done = subprocess.run(
            argv, capture_output=True, text=True, env={**os.environ, **(environ_update or {})}, check=False
        )
        return done.returncode, done.stdout, done.stderr

    params = {"project": str(checkout), "dest": str(checkout / "build")}
    from ansible.module_utils.testing import patch_module_args

    results = []
    for _ in range(2):
        with (
            patch_module_args(params),
            mock.patch.object(basic.AnsibleModule, "run_command", really),
            mock.patch.object(basic.AnsibleModule, "exit_json", lambda self, **result: results.append(result)),
        ):
            load("eyrie_wheel").main()
    assert [result["changed"] for result in results] == [True, False]
    names = zipfile.ZipFile(results[0]["path"]).namelist()
    assert "eyrie/cli.py" in names
    assert "eyrie/core/estimate.py" in names, "a link in the checkout is a file in the wheel"
    assert not (checkout / "src" / "eagle_eyrie.egg-info").exists()
    assert sorted(item.name for item in checkout.iterdir()) == ["LICENSE", "build", "pyproject.toml", "src"]

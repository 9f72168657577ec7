"""eyrie_venv: what would be installed, what is trusted, and what a failed install leaves."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.modules.conftest import Answer, load, run_module

LOCK = "# two\nsmall-one==1.0\nother.two==2.0+cpu\n"


@pytest.fixture(autouse=True)
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "python3.11"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return program


def probe(version: tuple[int, int, int] = (3, 11, 7), venv: bool = True) -> Answer:
    out = json.dumps({"version": list(version), "executable": sys.executable, "venv": venv})
    return Answer(["-c"], out=out)


def params(root: Path, **more: Any) -> dict[str, Any]:
    return {"path": str(root / "venv"), "lock": LOCK, "python": ["python3.11"], "wheel_sha256": "", **more}


def house(root: Path, marked: bool = True, package: str = "", **versions: str) -> Path:
    """An environment as an install leaves it, in the folder that LOCK's hash names."""
    load("eyrie_venv")
    from ansible.module_utils.eyrie import venv

    digest = venv.digest_of(venv.pins(LOCK), {}, {"version": "3.11.7"})
    folder = root / "venvs" / digest[:12]
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "eyrie"):
        (folder / "bin" / name).write_text("")
        (folder / "bin" / name).chmod(0o755)
    site = folder / "lib" / "python3.11" / "site-packages"
    for name, version in (versions or {"small_one": "1.0", "other_two": "2.0+cpu"}).items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("")
    if marked:
        (folder / "eyrie-venv.json").write_text(json.dumps({"digest": digest}))
    if package:
        (folder / "eyrie-package.json").write_text(json.dumps({"sha256": package}))
    os.symlink(f"venvs/{digest[:12]}", root / "venv")
    return folder


def test_a_bare_host_would_install_everything(tmp_path: Path) -> None:
    call = run_module("eyrie_venv", params(tmp_path, wheel_sha256="f" * 64), [probe()], check=True, diff=True)
    assert call.result["changed"] is True
    assert call.result["msg"] == "Would install: 2 distributions and the node package"
    assert call.result["diff"]["after"] == "other-two==2.0+cpu\nsmall-one==1.0\neagle-eyrie==ffffffffffff\n"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["bin"]


def test_a_complete_environment_is_up_to_date(tmp_path: Path) -> None:
    house(tmp_path, package="f" * 64)
    call = run_module("eyrie_venv", params(tmp_path, wheel_sha256="f" * 64), [probe()])
    assert call.result["changed"] is False
    assert call.result["differences"] == []


def test_an_environment_without_its_mark_is_not_trusted(tmp_path: Path) -> None:
    house(tmp_path, marked=False)
    call = run_module("eyrie_venv", params(tmp_path), [probe()], check=True)
    assert call.result["changed"] is True
    assert call.result["differences"] == [
        {"name": "environment", "current": "incomplete or made otherwise", "desired": "complete"}
    ]


def test_the_diff_names_the_versions_that_move(tmp_path: Path) -> None:
    house(tmp_path)
    newer = LOCK.replace("small-one==1.0", "small-one==1.1")
    call = run_module("eyrie_venv", params(tmp_path, lock=newer), [probe()], check=True)
    assert call.result["differences"] == [{"name": "small-one", "current": "1.0", "desired": "1.1"}]


def test_changed_sources_reinstall_the_node_package_alone(tmp_path: Path) -> None:
    folder = house(tmp_path, package="a" * 64)
    wheel = tmp_path / "eagle_eyrie-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"")
    call = run_module(
        "eyrie_venv",
        params(tmp_path, wheel=str(wheel), wheel_sha256="b" * 64),
        [probe(), Answer(["pip", "install", str(wheel)])],
    )
    assert call.result["differences"] == [{"name": "eagle-eyrie", "current": "a" * 12, "desired": "b" * 12}]
    assert json.loads((folder / "eyrie-package.json").read_text())["sha256"] == "b" * 64
    assert "--no-deps" in call.commands[-1]
    assert "--no-index" in call.commands[-1]


def test_a_package_install_that_failed_is_done_again(tmp_path: Path) -> None:
    folder = house(tmp_path, package="a" * 64)
    wheel = tmp_path / "eagle_eyrie-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"")
    broken = run_module(
        "eyrie_venv",
        params(tmp_path, wheel=str(wheel), wheel_sha256="b" * 64),
        [probe(), Answer(["pip", "install"], rc=1, err="disk is full")],
    )
    assert broken.failed
    assert not (folder / "eyrie-package.json").exists()


def test_no_interpreter_is_said_with_what_was_looked_at(tmp_path: Path) -> None:
    call = run_module(
        "eyrie_venv", params(tmp_path, python=["python3.11", "python3.99"]), [probe((3, 10, 2))], check=True
    )
    assert call.failed
    assert call.result["code"] == "no-python"
    assert "3.10.2" in call.result["msg"]
    assert "python3.99: not there" in call.result["msg"]


def test_an_inactive_shim_is_passed_over(tmp_path: Path, interpreter: Path) -> None:
    other = interpreter.with_name("python3")
    other.write_text("")
    other.chmod(0o755)
    answers = [Answer([str(interpreter)], rc=127, err="pyenv: python3.11: command not found"), probe((3, 12, 1))]
    call = run_module("eyrie_venv", params(tmp_path, python=["python3.11", "python3"]), answers, check=True)
    assert call.result["python"]["version"] == "3.12.1"


def test_a_missing_venv_package_is_named_to_whoever_is_not_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    call = run_module("eyrie_venv", params(tmp_path), [probe(venv=False)], check=True)
    assert call.failed
    assert call.result["todo"] == "As root: apt-get install python3.11-venv"


def test_nothing_is_replaced_while_a_stage_runs(tmp_path: Path) -> None:
    folder = house(tmp_path, marked=False)
    lock = tmp_path / "runs" / "main" / "state" / "draft" / "lock"
    lock.parent.mkdir(parents=True)
    with open(lock, "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        call = run_module("eyrie_venv", params(tmp_path), [probe()])
    assert call.failed
    assert call.result["code"] == "stage-running"
    assert "draft" in call.result["msg"]
    assert folder.is_dir()


@pytest.mark.parametrize("line", ["torch", "torch>=2.13", "torch @ file:///x.whl", "-r more.txt", "torch==2.13.*"])
def test_a_lock_that_pins_nothing_is_refused(tmp_path: Path, line: str) -> None:
    call = run_module("eyrie_venv", params(tmp_path, lock=f"a==1\n{line}\n"), [probe()], check=True)
    assert call.failed
    assert "Line 2 of the lock is no exact pin" in call.result["msg"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("ERROR: No matching distribution found for torch==2.13.0+cpu", "no PyTorch wheel"),
        ("WARNING: ... Temporary failure in name resolution", "index cannot be reached"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("ProtocolError: ('Connection broken: IncompleteRead')", "download was interrupted"),
    ],
)
def test_pip_s_failures_are_told_by_their_cause(said: str, why: str) -> None:
    load("eyrie_venv")
    from ansible.module_utils.eyrie import pip

    assert why in pip.cause(said)[0]


def test_shares_are_disjoint_and_whole() -> None:
    load("eyrie_venv")
    from ansible.module_utils.eyrie import pip

    pinned = {f"p{number}": str(number) for number in range(20)} | {"torch": "2", "triton": "3"}
    parts = pip.shares(pinned, 3)
    assert sorted(pin for part in parts for pin in part) == sorted(
        f"{name}=={version}" for name, version in pinned.items()
    )
    assert not any("torch==2" in part and "triton==3" in part for part in parts)


def test_metadata_only_distributions_are_found_by_importlib(tmp_path: Path) -> None:
    load("eyrie_venv")
    from importlib import metadata

    from ansible.module_utils.eyrie import pip, venv

    site = tmp_path / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    pip.add_metadata_only(str(tmp_path), {"vllm": "0.32.0+cpu"})
    found = next(iter(metadata.distributions(name="vllm", path=[str(site)])))
    assert found.version == "0.32.0+cpu"
    assert venv.installed(str(tmp_path)) == {"vllm": "0.32.0+cpu"}


PIP = """#!/bin/sh
# a pip that takes its time: $0 -m pip install ... -r <lock>
echo started >> "{log}"
sleep {seconds}
echo ended >> "{log}"
exit {rc}
"""


@pytest.fixture
def fake_venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """fake_venv(seconds, rc): `python -m venv` makes a folder whose python is a pip as told; returns its log."""
    log = tmp_path / "pip.log"

    def make(seconds: float = 0, rc: int = 0) -> Path:
        from ansible.module_utils.eyrie import venv

        monkeypatch.setenv("PATH", os.environ["PATH"] + ":/bin:/usr/bin")
        real = venv.Environment.install

        def install(self: Any, folder: str, digest: str, lock: Any) -> None:
            def run_command(argv: list[str], **_: Any) -> tuple[int, str, str]:
                (Path(folder) / "bin").mkdir(parents=True)
                program = Path(folder) / "bin" / "python"
                program.write_text(PIP.format(log=log, seconds=seconds, rc=rc))
                program.chmod(0o755)
                (Path(folder) / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
                return 0, "", ""

            monkeypatch.setattr(self.module, "run_command", run_command)
            real(self, folder, digest, lock)

        monkeypatch.setattr(venv.Environment, "install", install)
        return log

    load("eyrie_venv")
    return make


def test_pip_s_success_is_not_believed(tmp_path: Path, fake_venv: Any) -> None:
    fake_venv()
    call = run_module("eyrie_venv", params(tmp_path), [probe()])
    assert call.failed
    assert "pip ended well, but the environment is not what was asked" in call.result["msg"]
    assert not (tmp_path / "venv").exists()


def test_a_failed_install_leaves_the_old_environment_in_force(tmp_path: Path, fake_venv: Any) -> None:
    before = house(tmp_path)
    log = fake_venv(rc=1)
    call = run_module("eyrie_venv", params(tmp_path, lock=LOCK.replace("1.0", "1.1")), [probe()])
    assert call.failed
    assert call.result["code"] == "pip-failed"
    assert log.read_text().count("started") == 2
    assert (tmp_path / "venv").resolve() == before
    assert run_module("eyrie_venv", params(tmp_path), [probe()]).result["changed"] is False


def test_a_pip_that_outlived_its_play_is_waited_for(tmp_path: Path, fake_venv: Any) -> None:
    """The play is killed in mid-install; its pip goes on. The next install begins only after it has ended."""
    import multiprocessing
    import time

    log = fake_venv(seconds=2)
    killed = multiprocessing.get_context("fork").Process(
        target=run_module, args=("eyrie_venv", params(tmp_path, pip_processes=1), [probe()])
    )
    killed.start()
    deadline = time.monotonic() + 20
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    killed.kill()
    killed.join()
    run_module("eyrie_venv", params(tmp_path, pip_processes=1), [probe()])
    assert log.read_text().split() == ["started", "ended", "started", "ended"]

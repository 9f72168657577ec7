"""GPU memory through a fake nvidia-smi: waited for, named when it stays, strangers never touched."""

import os

import pytest

from eyrie.core.errors import EyrieError
from eyrie.serve import gpu


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """smi(*answers): nvidia-smi on PATH prints them one after another, the last one for ever."""
    script = tmp_path / "bin" / "nvidia-smi"
    script.parent.mkdir()

    def make(*answers, status=0):
        for number, answer in enumerate(answers):
            (tmp_path / f"answer{number}").write_text(answer)
        (tmp_path / "count").write_text("0")
        script.write_text(
            f"#!/bin/sh\nn=$(cat {tmp_path}/count)\necho $((n+1)) > {tmp_path}/count\n"
            f"[ $n -ge {len(answers)} ] && n={len(answers) - 1}\ncat {tmp_path}/answer$n\nexit {status}\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")

    return make


STRANGER = "7777, 2000\n"


def test_without_nvidia_smi_there_is_nothing_to_wait_for(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert gpu.wait_free({1}, 0.1) == {}
    assert gpu.holders() == []


def test_it_waits_until_our_processes_let_go_and_names_strangers(smi):
    smi("4101, 88000\n4102, 88000\n" + STRANGER, "4102, 88000\n" + STRANGER, STRANGER)
    said = []
    assert gpu.wait_free({4101, 4102}, 10, said.append) == {"7777 (gone)": 2000}
    assert "pid 4101 88000 MiB, pid 4102 88000 MiB" in said[0]
    assert len(said) == 2


def test_memory_that_stays_is_an_error_with_pid_and_size(smi):
    smi("4102, 88000\n" + STRANGER)
    with pytest.raises(EyrieError) as caught:
        gpu.wait_free({4101, 4102}, 0.6)
    assert caught.value.code == "gpu-not-free"
    assert "pid 4102 88000 MiB" in caught.value.what
    assert "7777" not in caught.value.what


def test_a_size_that_is_not_said_is_no_crash(smi):
    smi("4102, [N/A]\n" + STRANGER)
    with pytest.raises(EyrieError, match=r"pid 4102 \? MiB"):
        gpu.wait_free({4102}, 0.1)


def test_names_between_pid_and_size_do_not_matter(smi):
    smi("4102, VLLM::Worker_TP1, 88000\n, ,\nnonsense\n")
    assert gpu.holders() == [gpu.Holder(4102, 88000)]


def test_a_failing_driver_is_said(smi):
    smi("NVIDIA-SMI has failed because it couldn't communicate with the driver\n", status=9)
    with pytest.raises(EyrieError) as caught:
        gpu.holders()
    assert caught.value.code == "nvidia-smi-failed"
    assert "couldn't communicate" in caught.value.what

"""A disk that fills up while the stage writes leaves nothing that is trusted; the run goes on once there is room."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest
from dataset_run import prompts, run, spec
from dataset_toy import chat, jsonl

from eyrie.core import planner
from eyrie.core.errors import EyrieError
from eyrie.core.pipeline import Pipeline

pytestmark = pytest.mark.node

SMALL, LARGE = 6 << 20, 64 << 20


def mounted(folder: Path, size: int, remount: bool = False) -> bool:
    options = f"size={size}" + (",remount" if remount else "")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
    return done.returncode == 0


@pytest.fixture
def small_disk(tmp_path):
    """(folder, grow): a small file system of its own; where mounting is not allowed, a limit on file sizes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() == 0 and mounted(folder, SMALL):
        yield folder, lambda: mounted(folder, LARGE, remount=True)
        subprocess.run(["umount", str(folder)], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    yield folder, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def source(tmp_path: Path, rows: int) -> dict[str, dict[str, str]]:
    # text that does not compress, so that the outputs are about as large as the rows
    lines = [chat(f"{number} {os.urandom(400).hex()}", os.urandom(400).hex()) for number in range(rows)]
    return {"one": {"kind": "local", "path": str(jsonl(tmp_path / "one.jsonl", lines)), "adapter": "messages"}}


@pytest.mark.parametrize("rows", [8000, 2600], ids=["while reading", "while writing the table"])
def test_disk_full(tmp_path, small_disk, rows):
    folder, grow = small_disk
    value = spec(folder / "root", source(tmp_path, rows))
    with pytest.raises(EyrieError) as caught:
        run(value)
    assert caught.value.code.endswith("disk-full")
    assert "Free space" in str(caught.value)
    ctx = Pipeline(value).context("dataset")
    assert not (ctx.out / "train.parquet").exists()
    assert not planner.plan(ctx)["up_to_date"]
    assert grow() is not False
    assert len(prompts(run(value))) == rows
    assert run(value).stage.verify(ctx) == []

"""kill -9 of the stage and of its workers, at stated moments, and stop requests: the result is that of a quiet run."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from dataset_run import SRC, command, run, spec
from dataset_toy import chat, jsonl

from eyrie.core import planner, runner
from eyrie.core.errors import Interrupted
from eyrie.core.pipeline import Pipeline
from eyrie.supervise.processes import family

pytestmark = [pytest.mark.node, pytest.mark.slow]

NAMES = ("array", "packed", "table", "lines")

#: imported first by every process of a command: small parts, and what happens when one is written
AT_A_PART = """
import os, signal, time
from multiprocessing import parent_process
from pathlib import Path
import eyrie.dataset.readers as readers
import eyrie.dataset.tasks as tasks
readers.BLOCK = 20000
tasks.PART_ROWS, tasks.STRETCH_BYTES, tasks.STRETCH_GROUPS_BYTES = 400, 60000, 10000
SECOND = ("00000-00001", "00001-00000")
import eyrie.dataset.output as output
import eyrie.dataset.part as part
from eyrie.core import atomic

what, name, times = os.environ.get("AT_A_PART", "::1").split(":")
write, add = part.write, output.Sink.add

def once(folder):
    # True the first few times that any process asks
    for number in range(int(times)):
        try:
            (folder / f"happened-{number}").touch(exist_ok=False)
            return True
        except FileExistsError:
            continue
    return False

def written(folder, called, *args, **more):
    if folder.name.rpartition("-")[0] == name and called in SECOND and once(folder.parent):
        if what == "kill stage":
            os.kill(parent_process().pid, signal.SIGKILL)
            time.sleep(30)
        if what == "kill worker":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "take memory":
            taken = b"x" * (500 << 20)
            time.sleep(60)
        if what == "stop":
            os.killpg(os.getpgid(parent_process().pid), signal.SIGTERM)
    return write(folder, called, *args, **more)

def added(sink, table):
    if what == "kill while writing" and sink.rows and once(sink.path.parent.parent):
        os.kill(os.getpid(), signal.SIGKILL)
    add(sink, table)

part.write, output.Sink.add = written, added
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """Four sources of different shape, each of several parts."""
    folder = tmp_path_factory.mktemp("sources")
    rng = random.Random(1)

    def rows(name, count=2000):
        return [
            chat(f"{name} {n} " + "word " * rng.randrange(9), "answer " * rng.randrange(1, 9)) for n in range(count)
        ]

    array = folder / "array.json"
    array.write_text(json.dumps(rows("array")))
    packed = folder / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows("packed")).encode(), 1))
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows("table")), folder / "table.parquet", row_group_size=400)
    jsonl(folder / "lines.jsonl", rows("lines"))
    return {
        path.stem.split(".")[0]: {"kind": "local", "path": str(path), "adapter": "messages"}
        for path in (array, packed, folder / "table.parquet", folder / "lines.jsonl")
    }


@pytest.fixture(scope="module")
def quiet(registry, tmp_path_factory):
    """The outputs of an undisturbed run."""
    value = spec(tmp_path_factory.mktemp("quiet") / "root", registry, heldout=50)
    return outputs(run(value))


@pytest.fixture
def begin(tmp_path):
    """Start `eyrie run dataset` with something that happens when a part is written."""
    fatal = tmp_path / "fatal"
    fatal.mkdir()
    (fatal / "sitecustomize.py").write_text(AT_A_PART)

    def start(value, what="", name="", times=1):
        return command(value, tmp_path, PYTHONPATH=f"{fatal}:{SRC}", AT_A_PART=f"{what}:{name}:{times}")

    return start


def outputs(ctx) -> dict[str, bytes]:
    return {name: (ctx.out / name).read_bytes() for name in ("train.parquet", "eval.parquet")}


def finished(process, value) -> dict[str, bytes]:
    answer, _ = process.communicate(timeout=120)
    assert json.loads(answer)["status"] == "done", answer
    return outputs(Pipeline(value).context("dataset"))


@pytest.mark.parametrize("name", NAMES)
def test_the_stage_is_killed_during_each_source(tmp_path, registry, quiet, begin, name):
    value = spec(tmp_path / "root", registry, heldout=50)
    process = begin(value, "kill stage", name)
    seen: set[int] = set()
    while process.poll() is None:
        seen |= family(process.pid) - {process.pid}
        time.sleep(0.1)
    assert process.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in seen) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in seen if Path(f"/proc/{pid}").exists()], "workers outlived the stage"
    ctx = Pipeline(value).context("dataset")
    assert planner.plan(ctx)["status"] == "interrupted"
    assert not list(ctx.out.glob("*.parquet"))
    kept = {path: path.stat().st_mtime_ns for path in ctx.base.glob("sources/*/*.rows")}
    assert finished(begin(value), value) == quiet
    assert any(path.stat().st_mtime_ns == stamp for path, stamp in kept.items()), "nothing was resumed"


def test_the_stage_is_killed_while_it_writes_the_table(tmp_path, registry, quiet, begin):
    value = spec(tmp_path / "root", registry, heldout=50)
    process = begin(value, "kill while writing")
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    ctx = Pipeline(value).context("dataset")
    assert [path.name for path in ctx.out.glob("*.parquet")] == []
    assert finished(begin(value), value) == quiet
    assert not list(ctx.out.glob(".*.tmp"))


def test_a_part_that_was_half_written_is_made_again(tmp_path, registry, quiet, begin):
    value = spec(tmp_path / "root", registry, heldout=50)
    assert finished(begin(value), value) == quiet
    ctx = Pipeline(value).context("dataset")
    (ctx.out / "train.parquet").unlink()
    damaged = sorted(ctx.base.glob("sources/*/*.rows"))[::3]
    for path in damaged:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
    kept = {path: path.stat().st_mtime_ns for path in ctx.base.glob("sources/*/*.rows") if path not in damaged}
    assert finished(begin(value), value) == quiet
    assert any(path.stat().st_mtime_ns == stamp for path, stamp in kept.items()), "nothing was resumed"


def test_a_killed_worker_costs_nothing(tmp_path, registry, quiet, begin):
    value = spec(tmp_path / "root", registry, heldout=50)
    assert finished(begin(value, "kill worker", "packed"), value) == quiet
    log = (tmp_path / "root/runs/main/state/dataset/sources/packed.log").read_text()
    assert "a worker ended by signal 9" in log


def test_a_stop_is_answered_at_once_and_resumes(tmp_path, registry, quiet, begin):
    value = spec(tmp_path / "root", registry, heldout=50)
    process = begin(value, "stop", "table")
    answer, _ = process.communicate(timeout=60)
    assert json.loads(answer)["error"]["code"] == "interrupted"
    states = [
        json.loads(path.read_text())["status"] for path in tmp_path.glob("root/runs/main/state/dataset/sources/*.json")
    ]
    assert set(states) <= {"interrupted", "done"}
    assert finished(begin(value), value) == quiet


def test_a_source_that_kills_its_worker_twice_fails_alone(tmp_path, registry, begin):
    """A worker that dies on every try (say, of a defect in a library) ends its source, not the run."""
    bad = tmp_path / "bad.jsonl"
    jsonl(bad, [chat(f"q {n}", "a" * 200) for n in range(1000)])
    value = spec(
        tmp_path / "root",
        {"good": registry["lines"], "bad": {"kind": "local", "path": str(bad), "adapter": "messages"}},
    )
    process = begin(value, "kill worker", "bad", times=2)
    answer, _ = process.communicate(timeout=120)
    error = json.loads(answer)["error"]
    assert error["code"] == "source-failed-worker-died"
    assert "1 of 2 sources failed: bad" in error["what"]
    assert "signal 9" in error["why"]
    assert json.loads((tmp_path / "root/runs/main/state/dataset/sources/good.json").read_text())["status"] == "done"


def test_memory_beyond_the_limit_ends_the_source_only(tmp_path, registry, quiet, begin):
    value = spec(tmp_path / "root", registry, heldout=50, worker_memory_mb=400)
    answer, _ = begin(value, "take memory", "array").communicate(timeout=120)
    error = json.loads(answer)["error"]
    assert error["code"] == "source-failed-worker-memory"
    assert "1 of 4 sources failed: array" in error["what"]
    assert finished(begin(value), value) == quiet


def test_a_silent_worker_is_given_up(tmp_path):
    """A source that never comes to its end (here: a pipe that nobody writes to) fails by itself."""
    stuck = tmp_path / "stuck"
    stuck.mkdir()
    os.mkfifo(tmp_path / "pipe")
    from dataset_toy import source

    from eyrie.dataset.pool import Pool

    pool = Pool(1, stall_s=1)
    pool.order(("s", "cut"), "cut", "s", source(path=str(tmp_path)), [("pipe", tmp_path / "pipe")])
    seen = []
    deadline = time.monotonic() + 20
    while not seen and time.monotonic() < deadline:
        seen += list(pool.events())
    pool.close()
    assert seen[0][1] == "error"
    assert seen[0][2]["code"] == "worker-stalled"


def test_asked_to_stop_while_mixing(tmp_path, registry, monkeypatch):
    value = spec(tmp_path / "root", {"lines": registry["lines"]})
    from eyrie.core.stage import Work

    runner.run(Pipeline(value), "target")
    original = Work.check_stop

    def stop_at_writing(work):
        if work.progress.phase == "writing":
            work.stop_requested = True
        original(work)

    monkeypatch.setattr(Work, "check_stop", stop_at_writing)
    with pytest.raises(Interrupted):
        runner.run(Pipeline(value), "dataset")
    ctx = Pipeline(value).context("dataset")
    assert [path.name for path in ctx.out.iterdir()] == []
    monkeypatch.setattr(Work, "check_stop", original)
    assert run(value).record()["account"]["in"] == 2000

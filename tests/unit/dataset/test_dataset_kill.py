"""kill -9 of the stage and of its workers, at any moment, and stop requests: the result is that of a quiet run."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from dataset_run import command, run, spec
from dataset_toy import chat, jsonl

from eyrie.core import planner, runner
from eyrie.core.errors import EyrieError, Interrupted
from eyrie.core.pipeline import Pipeline

pytestmark = [pytest.mark.node, pytest.mark.slow]


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """Four sources of different shape, together a second or two of work."""
    folder = tmp_path_factory.mktemp("sources")
    rng = random.Random(1)

    def rows(name, count):
        return [chat(f"{name} {n} " + "word " * rng.randrange(60), "answer " * rng.randrange(80)) for n in range(count)]

    array = folder / "array.json"
    array.write_text(json.dumps(rows("array", 20000)))
    import gzip

    packed = folder / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows("packed", 20000)).encode(), 1))
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows("table", 20000)), folder / "table.parquet", row_group_size=4000)
    jsonl(folder / "lines.jsonl", rows("lines", 20000))
    return {
        path.stem.split(".")[0]: {"kind": "local", "path": str(path), "adapter": "messages"}
        for path in (array, packed, folder / "table.parquet", folder / "lines.jsonl")
    }


@pytest.fixture(scope="module")
def quiet(registry, tmp_path_factory):
    """The outputs of an undisturbed run, and how long it took."""
    began = time.monotonic()
    ctx = run(spec(tmp_path_factory.mktemp("quiet") / "root", registry, heldout=50))
    return outputs(ctx), time.monotonic() - began


def outputs(ctx) -> dict[str, bytes]:
    return {name: (ctx.out / name).read_bytes() for name in ("train.parquet", "eval.parquet")}


def descendants(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if parent == pid:
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize("share", [0.15, 0.35, 0.55, 0.75, 0.95])
def test_the_stage_is_killed_and_run_again(tmp_path, registry, quiet, share):
    wanted, seconds = quiet
    value = spec(tmp_path / "root", registry, heldout=50)
    process = command(value, tmp_path)
    time.sleep(seconds * share)
    workers = descendants(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()], "workers outlived the stage"
    assert planner.plan(Pipeline(value).context("dataset"))["status"] in ("interrupted", "absent", "done")
    assert outputs(run(value)) == wanted


def test_a_part_that_was_half_written_is_made_again(tmp_path, registry, quiet):
    value = spec(tmp_path / "root", registry, heldout=50)
    ctx = run(value)
    (ctx.out / "train.parquet").unlink()
    for record in ctx.base.glob("sources/*/unit.json"):
        record.unlink()
    damaged = sorted(ctx.base.glob("sources/*/*.rows"))[::3]
    for path in damaged:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
    kept = {path: path.stat().st_mtime_ns for path in ctx.base.glob("sources/*/*.rows") if path not in damaged}
    assert outputs(run(value)) == quiet[0]
    assert any(path.stat().st_mtime_ns == stamp for path, stamp in kept.items()), "nothing was resumed"


def test_a_killed_worker_costs_nothing(tmp_path, registry, quiet):
    value = spec(tmp_path / "root", registry, heldout=50)
    process = command(value, tmp_path)
    killed = 0
    while process.poll() is None and not killed:
        progress = tmp_path / "root/runs/main/state/dataset/progress.json"
        for pid in descendants(process.pid) if progress.exists() else []:
            if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
                killed += 1
                break
        time.sleep(0.05)
    answer, _ = process.communicate(timeout=120)
    assert killed
    assert json.loads(answer)["status"] == "done", answer
    assert outputs(Pipeline(value).context("dataset")) == quiet[0]
    logs = "".join(path.read_text() for path in tmp_path.glob("root/runs/main/state/dataset/sources/*.log"))
    assert "a worker ended by signal 9" in logs


def test_a_stop_is_answered_at_once_and_resumes(tmp_path, registry, quiet):
    value = spec(tmp_path / "root", registry, heldout=50)
    process = command(value, tmp_path)
    time.sleep(quiet[1] * 0.5)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGTERM)
    answer, _ = process.communicate(timeout=60)
    assert time.monotonic() - began < 10
    assert json.loads(answer)["error"]["code"] == "interrupted"
    states = [
        json.loads(path.read_text())["status"] for path in tmp_path.glob("root/runs/main/state/dataset/sources/*.json")
    ]
    assert set(states) <= {"interrupted", "done"}
    assert outputs(run(value)) == quiet[0]


def test_a_source_that_kills_its_worker_twice_fails_alone(tmp_path, registry, monkeypatch):
    """A worker that dies on every try (say, of a defect in a library) ends its source, not the run."""
    bad = tmp_path / "bad.jsonl"
    jsonl(bad, [chat("q", "a")])
    value = spec(
        tmp_path / "root",
        {"good": registry["lines"], "bad": {"kind": "local", "path": str(bad), "adapter": "messages"}},
    )
    fatal = tmp_path / "fatal"
    fatal.mkdir()
    # the interpreter of every process of the command imports this first
    (fatal / "sitecustomize.py").write_text(
        "import os, signal\n"
        "import eyrie.dataset.process as process\n"
        "quiet = process.run\n"
        "def run(job, task, report):\n"
        "    if job.name == 'bad':\n"
        "        os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    quiet(job, task, report)\n"
        "process.run = run\n"
    )
    from dataset_run import SRC

    process = command(value, tmp_path, PYTHONPATH=f"{fatal}:{SRC}")
    answer, _ = process.communicate(timeout=120)
    error = json.loads(answer)["error"]
    assert error["code"] == "source-failed-worker-died"
    assert "1 of 2 sources failed: bad" in error["what"]
    assert "signal 11" in error["why"]
    assert json.loads((tmp_path / "root/runs/main/state/dataset/sources/good.json").read_text())["status"] == "done"


def test_memory_beyond_the_limit_ends_the_source_only(tmp_path):
    huge = tmp_path / "huge.jsonl"
    with open(huge, "w") as stream:
        stream.write(
            '{"messages":[{"role":"user","content":"' + "x" * (100 << 20) + '"},{"role":"assistant","content":"a"}]}\n'
        )
    good = jsonl(tmp_path / "good.jsonl", [chat("q", "a")])
    registry = {
        name: {"kind": "local", "path": str(path), "adapter": "messages"}
        for name, path in (("good", good), ("huge", huge))
    }
    with pytest.raises(EyrieError, match="1 of 2 sources failed: huge") as caught:
        run(spec(tmp_path / "root", registry, worker_memory_mb=300))
    assert caught.value.code == "source-failed-worker-memory"
    assert run(spec(tmp_path / "root", registry, worker_memory_mb=8000)).record()["account"]["kept"] == 2


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
    assert run(value).record()["account"]["in"] == 20000

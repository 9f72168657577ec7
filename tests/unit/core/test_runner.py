"""The runner: done only after proof, resume after any death, one writer."""

from __future__ import annotations

import errno
import os
import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from eyrie.core import planner, runner
from eyrie.core.errors import EyrieError, GateError, Interrupted
from eyrie.core.pipeline import Pipeline
from eyrie.core.stage import Renamed
from eyrie.core.status import stage_status
from tests.unit.core.conftest import until

Make = Callable[..., Pipeline]


def lines(pipeline: Pipeline, stage: str = "dataset") -> list[str]:
    return (pipeline.context(stage).out / "lines.txt").read_text().splitlines()


def test_a_run_leaves_a_verified_record(pipeline: Make) -> None:
    record = runner.run(pipeline(dataset={"drop": 2}), "dataset")
    assert record["status"] == "done"
    assert record["account"]["in"] == 8
    assert record["account"]["kept"] == 6
    assert record["account"]["dropped"] == {"toy rule": 2}
    assert record["output_sizes"] == {"lines.txt": 24}
    assert planner.plan(pipeline(dataset={"drop": 2}).context("dataset"))["up_to_date"]


def test_a_second_run_does_nothing(pipeline: Make) -> None:
    runner.run(pipeline(), "dataset")
    first = pipeline().context("dataset").record()
    assert runner.run(pipeline(), "dataset") == first


def test_a_stage_whose_input_is_stale_is_refused(pipeline: Make) -> None:
    with pytest.raises(EyrieError, match="responses needs dataset, which is not up to date"):
        runner.run(pipeline(), "responses")
    runner.run(pipeline(), "dataset")
    assert runner.run(pipeline(), "responses")["status"] == "done"


def test_a_gate_that_refuses_is_recorded_and_nothing_is_made(pipeline: Make) -> None:
    refused = pipeline(dataset={"refuse": "the disk is too small"})
    with pytest.raises(GateError, match="the disk is too small"):
        runner.run(refused, "dataset")
    assert refused.context("dataset").record()["status"] == "failed"
    assert not refused.context("dataset").out.exists()


def test_a_failure_keeps_what_was_done_and_the_next_run_resumes(pipeline: Make) -> None:
    with pytest.raises(EyrieError, match="the toy broke"):
        runner.run(pipeline(dataset={"fail_at": 4}), "dataset")
    assert len(lines(pipeline())) == 4
    failed = planner.plan(pipeline().context("dataset"))
    assert failed["differences"] == [{"name": "state", "current": "failed", "desired": "done"}]
    record = runner.run(pipeline(), "dataset")
    assert record["attempt"] == 2
    assert lines(pipeline()) == [f"{n} 1" for n in range(6)]


def test_an_unexpected_error_is_told_with_its_place(
    pipeline: Make, toys: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toys.Toy, "run", lambda self, ctx, work: {}["missing"])
    with pytest.raises(EyrieError, match="KeyError") as caught:
        runner.run(pipeline(), "dataset")
    assert caught.value.code == "unexpected"
    assert "test_runner.py" in caught.value.where


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, "disk-full"), (errno.EROFS, "disk-read-only")])
def test_a_disk_that_refuses_is_told_as_such_whoever_meets_it(
    pipeline: Make, toys: object, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    def run(self: object, ctx: object, work: object) -> None:
        raise OSError(number, os.strerror(number), "/big/disk/part")

    monkeypatch.setattr(toys.Toy, "run", run)
    with pytest.raises(EyrieError, match="run again: what is finished is kept") as caught:
        runner.run(pipeline(), "dataset")
    assert (caught.value.code, caught.value.where) == (code, "/big/disk/part")
    assert pipeline().context("dataset").record()["error"]["code"] == code


def test_zero_kept_is_a_failure(pipeline: Make) -> None:
    with pytest.raises(EyrieError, match="dataset kept nothing of 3"):
        runner.run(pipeline(dataset={"items": 0, "drop": 3}), "dataset")


def test_an_output_that_was_promised_and_is_not_there_is_a_failure(
    pipeline: Make, toys: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = toys.Toy.run

    def forget(self: object, ctx: object, work: object) -> object:
        outcome = real(self, ctx, work)
        outcome.outputs.append("more.txt")
        return outcome

    monkeypatch.setattr(toys.Toy, "run", forget)
    with pytest.raises(EyrieError, match=r"did not leave more\.txt"):
        runner.run(pipeline(), "dataset")


@pytest.mark.parametrize("damage", ["gone", "shorter"])
def test_outputs_that_changed_since_are_made_again(pipeline: Make, damage: str) -> None:
    runner.run(pipeline(), "dataset")
    path = pipeline().context("dataset").out / "lines.txt"
    if damage == "gone":
        path.unlink()
    else:
        path.write_text(path.read_text()[:10])
    stale = planner.plan(pipeline().context("dataset"))
    assert not stale["up_to_date"]
    assert stale["differences"][0]["name"] == "output lines.txt"


def test_the_plan_of_changed_settings_names_the_key(pipeline: Make) -> None:
    for stage in ("dataset", "responses", "tokens"):
        runner.run(pipeline(), stage)
    changed = pipeline(dataset={"inner": {"depth": 2}})
    assert planner.plan(changed.context("dataset"))["differences"] == [
        {"name": "settings.inner.depth", "current": 1, "desired": 2}
    ]
    follows = planner.plan(changed.context("tokens"))["differences"]
    assert [item["name"] for item in follows] == ["input responses"]


def test_going_back_to_earlier_settings_finds_their_outputs(pipeline: Make) -> None:
    runner.run(pipeline(), "dataset")
    runner.run(pipeline(dataset={"items": 3}), "dataset")
    assert planner.plan(pipeline().context("dataset"))["up_to_date"]
    assert len(lines(pipeline())) == 6
    assert len(lines(pipeline(dataset={"items": 3}))) == 3


def test_a_stop_request_ends_between_batches_and_resumes(pipeline: Make, job: Callable[..., object]) -> None:
    slow = {"pause_s": 0.1, "items": 50}
    process = job("dataset", dataset=slow)
    path = pipeline(dataset=slow).context("dataset").out / "lines.txt"
    until(lambda: path.exists() and len(path.read_text().splitlines()) >= 3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 1
    record = pipeline(dataset=slow).context("dataset").record()
    assert record["status"] == "interrupted"
    runner.run(pipeline(dataset={"items": 50}), "dataset")
    assert lines(pipeline(dataset={"items": 50})) == [f"{n} 1" for n in range(50)]


def _came_to(process: object, path: Path, count: int) -> bool:
    return process.poll() is not None or (path.exists() and len(path.read_text().splitlines()) >= count)


def test_kill_9_at_random_moments_loses_and_doubles_nothing(
    pipeline: Make, job: Callable[..., object], tmp_path: Path
) -> None:
    undisturbed = [f"{n} 1" for n in range(40)]
    slow = {"pause_s": 0.02, "items": 40}
    rng = random.Random(7)
    context = pipeline(dataset=slow).context("dataset")
    for _ in range(4):
        process = job("dataset", dataset=slow)
        start = len(lines(pipeline(dataset=slow))) if (context.out / "lines.txt").exists() else 0
        goal = min(start + rng.randrange(0, 10), 39)
        until(partial(_came_to, process, context.out / "lines.txt", goal))
        process.kill()
        process.wait()
        shown = stage_status(tmp_path / "runs" / "main", "dataset")
        assert shown["status"] in ("interrupted", "absent", "done")
    record = runner.run(pipeline(dataset={"items": 40}), "dataset")
    assert record["status"] == "done"
    assert lines(pipeline(dataset={"items": 40})) == undisturbed
    assert record["account"]["in"] == record["account"]["kept"] == 40


def test_the_same_work_twice_is_told_to_attach(pipeline: Make, job: Callable[..., object], tmp_path: Path) -> None:
    slow = {"pause_s": 0.2, "items": 100}
    process = job("dataset", dataset=slow)
    run_dir = tmp_path / "runs" / "main"
    until(lambda: stage_status(run_dir, "dataset")["status"] == "running")
    with pytest.raises(EyrieError) as same:
        runner.run(pipeline(dataset=slow), "dataset")
    assert same.value.code == "running-same"
    assert str(process.pid) in same.value.what
    with pytest.raises(EyrieError) as other:
        runner.run(pipeline(dataset={"items": 3}), "dataset")
    assert other.value.code == "running-other"
    for fingerprint in (pipeline(dataset=slow), pipeline(dataset={"items": 3})):
        assert fingerprint.context("dataset").fingerprint[:12] in other.value.what


def test_a_second_signal_ends_at_once(pipeline: Make, toys: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def stubborn(self: object, ctx: object, work: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(toys.Toy, "run", stubborn)
    with pytest.raises(Interrupted, match="asked to stop twice"):
        runner.run(pipeline(), "dataset")
    assert signal.getsignal(signal.SIGTERM) is before
    assert pipeline().context("dataset").record()["status"] == "interrupted"


def test_a_plan_writes_nothing_but_what_it_learned_of_files(pipeline: Make, tmp_path: Path) -> None:
    planner.plan_all(pipeline())
    assert list(tmp_path.iterdir()) == []


def test_a_stage_may_try_something_again_without_being_stale(
    pipeline: Make, toys: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outputs are used meanwhile, and a try that changes nothing leaves its fingerprint."""
    runner.run(pipeline(), "dataset")
    left = [{"name": "sources", "current": "one failed", "desired": "will be tried again"}]
    monkeypatch.setattr(toys.Toy, "again", lambda self, ctx: left if self.name == "dataset" else [])
    plan = planner.plan(pipeline().context("dataset"))
    assert (plan["up_to_date"], plan["status"], plan["differences"]) == (False, "done", left)
    assert runner.run(pipeline(), "responses")["status"] == "done"
    assert runner.run(pipeline(), "dataset")["attempt"] == 2
    assert planner.plan(pipeline().context("responses"))["up_to_date"]


def test_a_stage_that_is_renamed_goes_on_under_its_new_name(
    pipeline: Make, toys: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity, work_of = toys.Toy.identity, toys.Toy.run
    late: list[str] = []

    def run(self: object, ctx: object, work: object) -> object:
        if not late:
            late.append("a source")
            raise Renamed("a source came in")
        return work_of(self, ctx, work)

    monkeypatch.setattr(toys.Toy, "identity", lambda self, ctx: {**identity(self, ctx), "late": list(late)})
    monkeypatch.setattr(toys.Toy, "run", run)
    before = pipeline().context("dataset")
    old = before.fingerprint
    record = runner.run(before.pipeline, "dataset")
    after = pipeline().context("dataset")
    assert record["fingerprint"] == after.fingerprint != old
    assert planner.plan(after)["up_to_date"]
    assert before.record()["status"] == "done", "who waits for the old name sees the end"
    assert planner.missing_outputs(before, before.record()), "and it vouches for nothing"
    assert stage_status(after.pipeline.run_dir, "dataset")["fingerprint"] == after.fingerprint


def test_a_stage_that_is_renamed_to_itself_is_a_defect(
    pipeline: Make, toys: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: object, ctx: object, work: object) -> object:
        raise Renamed("nothing")

    monkeypatch.setattr(toys.Toy, "run", run)
    with pytest.raises(EyrieError, match="renamed to itself"):
        runner.run(pipeline(), "dataset")

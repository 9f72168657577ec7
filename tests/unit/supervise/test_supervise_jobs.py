"""Jobs under a real supervisord: started once, attached to, refused, stopped, resumed."""

import os
import signal
import threading
import time

import pytest

from eyrie.core import planner
from eyrie.core.errors import EyrieError
from eyrie.core.status import stage_status
from eyrie.supervise import jobs, processes
from eyrie.supervise.supervisord import Supervisord

pytestmark = pytest.mark.node


def wait_for(condition, limit=20.0):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)


def status(run):
    return stage_status(run.run_dir, "dataset")


def test_a_job_runs_to_its_end_and_is_not_started_again(pipeline):
    run = pipeline(word="b")
    first = jobs.start(run, "dataset")
    assert first["started"]
    assert not first["attached"]
    wait_for(lambda: status(run)["status"] == "done")
    assert (run.context("dataset").out / "word").read_text() == "b"
    assert jobs.start(run, "dataset") == {**first, "started": False}


def test_the_same_settings_attach_and_others_are_refused(pipeline):
    run = pipeline(seconds=30)
    first = jobs.start(run, "dataset")
    pid = status(run)["pid"]
    again = jobs.start(pipeline(seconds=30), "dataset")
    assert again == {**first, "started": False, "attached": True}
    assert status(run)["pid"] == pid
    with pytest.raises(EyrieError) as caught:
        jobs.start(pipeline(seconds=30, word="other"), "dataset")
    assert caught.value.code == "running-other"
    assert run.context("dataset").fingerprint[:12] in str(caught.value)
    assert jobs.stop(run, "dataset")["stopped"]
    assert status(run)["status"] == "interrupted"
    assert processes.read(pid) is None


def test_two_starts_at_once_make_one_job(pipeline):
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(jobs.start(pipeline(seconds=20), "dataset"))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer["started"] for answer in answers) == [False, False, True]
    assert sum(answer["attached"] for answer in answers) == 2


def test_a_failed_stage_is_seen_as_failed_and_starts_anew(pipeline):
    run = pipeline(crash=True)
    jobs.start(run, "dataset")
    wait_for(lambda: status(run)["status"] == "failed")
    assert "toy crash" in status(run)["error"]["what"]
    again = pipeline(crash=False)
    assert jobs.start(again, "dataset")["started"]
    assert status(again)["status"] in ("running", "done")  # never the stale failure
    wait_for(lambda: status(again)["status"] == "done")


def test_a_job_that_cannot_even_begin_says_why(pipeline, monkeypatch):
    run = pipeline()
    jobs.start(run, "dataset")
    wait_for(lambda: status(run)["status"] == "done")
    monkeypatch.setattr(jobs, "python_path", lambda: {"PYTHONPATH": "/nonexistent"})
    with pytest.raises(EyrieError) as caught:
        jobs.start(pipeline(word="c"), "dataset")
    assert caught.value.code == "job-died"
    assert "eyrie" in caught.value.why  # No module named eyrie


def test_a_killed_job_is_interrupted_and_resumes(pipeline):
    run = pipeline(seconds=1.5)
    jobs.start(run, "dataset")
    os.kill(status(run)["pid"], signal.SIGKILL)
    wait_for(lambda: status(run)["status"] == "interrupted")
    assert jobs.start(run, "dataset")["started"]
    wait_for(lambda: status(run)["status"] == "done")
    assert run.context("dataset").record()["attempt"] == 2


def test_a_dead_supervisor_is_started_again_and_its_orphan_attached_to(pipeline):
    run = pipeline(seconds=4)
    jobs.start(run, "dataset")
    pid = status(run)["pid"]
    daemon = Supervisord(run.root).daemon_pid()
    os.kill(daemon, signal.SIGKILL)
    wait_for(lambda: processes.read(daemon) is None)
    assert jobs.start(run, "dataset")["attached"]
    assert status(run)["pid"] == pid
    wait_for(lambda: status(run)["status"] == "done")


def test_a_stage_in_the_foreground_is_stopped_too(pipeline):
    import subprocess
    import sys

    from eyrie.core import atomic

    run = pipeline(seconds=30)
    spec = run.root / "spec.json"
    atomic.write_json(spec, run.raw)
    child = subprocess.Popen([sys.executable, "-m", "eyrie", "run", "dataset", "--spec", str(spec)])
    wait_for(lambda: run.context("dataset").record().get("pid") == child.pid)
    threading.Thread(target=child.wait).start()
    assert jobs.stop(run, "dataset")["stopped"]
    assert child.wait() != 0
    assert status(run)["status"] == "interrupted"
    assert jobs.stop(run, "dataset")["stopped"] is False


def test_caches_lie_below_the_root(pipeline):
    run = pipeline()
    run.execution["environment"] = {"HTTP_PROXY": "http://proxy:1"}
    environment = jobs.job_environment(run)
    assert all(environment[key].startswith(str(run.root)) for key in ("HF_HOME", "HF_XET_CACHE", "TMPDIR"))
    assert environment["HTTP_PROXY"] == "http://proxy:1"
    assert "HF_TOKEN_PATH" not in environment
    (run.root / "secrets").mkdir()
    (run.root / "secrets" / "hf_token").write_text("secret")
    assert jobs.job_environment(run)["HF_TOKEN_PATH"] == str(run.root / "secrets" / "hf_token")


def test_planning_starts_nothing(pipeline):
    run = pipeline()
    assert planner.plan(run.context("dataset"))["up_to_date"] is False
    assert Supervisord(run.root).daemon_pid() == 0
    assert jobs.stop(run, "dataset")["stopped"] is False

"""status: data for modules, one screen for people, nothing disturbed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from eyrie import cli
from eyrie.core import atomic
from eyrie.core.fingerprint import fingerprint
from eyrie.core.lock import Lock
from eyrie.core.progress import Progress
from eyrie.core.state import StateDir
from eyrie.ops import host, overview, shown, view
from eyrie.serve import execute, launch, records
from eyrie.supervise import processes


def write(root: Path, stage: str, status: str, **more: Any) -> StateDir:
    folder = StateDir(root / "runs" / "main" / "state" / stage)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.write({"stage": stage, "fingerprint": "ab" * 32, "status": status, "started": time.time() - 60, **more})
    return folder


def answer_of(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert cli.main(["status", *argv]) == 0
    return json.loads(capsys.readouterr().out)


def test_one_stage_is_what_modules_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "dataset", "done", seconds=3.5, account={"in": 4, "kept": 4, "dropped": {}, "failed": {}})
    answer = answer_of(capsys, "dataset", "--root", str(tmp_path))
    assert set(answer) == {"root", "run", "stages"}
    assert answer["stages"][0]["status"] == "done"


def test_whole_run_adds_host_servers_and_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = {"code": "unexpected", "what": "[Errno 30] Read-only file system: 'x'", "where": "", "why": "", "todo": ""}
    write(tmp_path, "tokens", "failed", error=error)
    answer = answer_of(capsys, "--root", str(tmp_path), "--json")
    assert len(answer["stages"]) == 8
    assert answer["host"]["disk"]["total"] > 0
    assert [(f["stage"], f["id"]) for f in answer["findings"]] == [("tokens", "disk-read-only")]


def test_screen_shows_progress_error_and_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        tmp_path,
        "dataset",
        "done",
        seconds=3.5,
        bytes=5_000_000,
        account={"in": 10, "kept": 7, "dropped": {"duplicate": 3}, "failed": {}},
    )
    folder = write(tmp_path, "responses", "running")
    progress = Progress(folder.progress_path)
    progress.start("answers", total=400, unit="prompts", done=100)
    error = {"code": "x", "what": "the disk token=" + "hf_abcdefgh1234", "where": "", "why": "no room", "todo": "make"}
    write(tmp_path, "draft", "failed", error=error)
    with Lock(folder.lock_path, {"fingerprint": "ab" * 32}):
        assert cli.main(["status", "--root", str(tmp_path), "--text"]) == 0
    text = capsys.readouterr().out
    for part in ("7 / 10", "3 duplicate", "100 / 400", "running", "failed", "no room", "do: make", "disk", "free of"):
        assert part in text
    assert "hf_abcdefgh1234" not in text


def test_looking_never_makes_the_next_owner_fail(tmp_path: Path) -> None:
    import threading

    folder = write(tmp_path, "dataset", "running")
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            overview.core_status.stage_status(tmp_path / "runs" / "main", "dataset")

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            Lock(folder.lock_path).acquire().release()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_running_stage_without_news_is_marked_silent() -> None:
    stage = {"status": "running", "progress": {"updated": 1000.0}}
    overview.mark_silent(stage, 1000.0 + overview.SILENT_S + 1)
    assert "no sign of life" in view.note(stage)
    fresh = {"status": "running", "progress": {"updated": 1000.0, "phase": "answers", "detail": {"loss": 1.23456}}}
    overview.mark_silent(fresh, 1001.0)
    assert view.note(fresh) == "answers, loss 1.235"


def test_gpu_lines_of_nvidia_smi() -> None:
    text = (
        "0, NVIDIA RTX PRO 6000 Blackwell Server Edition, 97, 91234, 97887, 71\n"
        "1, NVIDIA RTX PRO 6000 Blackwell Server Edition, [N/A], 12, 97887, [N/A]\n"
        "No devices were found\n"
    )
    gpus = host.parse_gpus(text)
    assert [gpu["busy"] for gpu in gpus] == [97.0, None]
    assert gpus[0]["used"] == 91234 * 2**20
    assert "Server Edition: 97% busy, 95.7 GB of 102.6 GB, 71 C" in view.gpu_line(gpus[0])
    assert view.gpu_line(gpus[1]).endswith("Server Edition: - busy, 12.6 MB of 102.6 GB")


def test_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert host.disk(tmp_path / "a" / "b")["path"] == str(tmp_path)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("Authorization: Bearer abcdef123456", "abcdef123456"),
        ("curl https://user:s3cretpw@host/x", "s3cretpw"),
        ('{"api_key": "zzzz-1111"}', "zzzz-1111"),
        ("HF_TOKEN=hf_QWERTYUIOP12", "hf_QWERTYUIOP12"),
        ("password=hunter22 rest", "hunter22"),
    ],
)
def test_redaction(text: str, hidden: str) -> None:
    assert hidden not in shown.redact(text)
    assert shown.HIDDEN in shown.redact(text)


@pytest.mark.parametrize("text", ["max_tokens=4096", "12,000 tokens: 88 tok/s", "token: none", "tokens.parquet"])
def test_redaction_leaves_figures_alone(text: str) -> None:
    assert shown.redact(text) == text


def test_sizes_and_spans() -> None:
    assert [shown.size(n) for n in (0, 999, 11e12, None)] == ["0 B", "999 B", "11.0 TB", "-"]
    assert [shown.span(n) for n in (45, 3599, 11100, 187200)] == ["45 s", "1 h 00 min", "3 h 05 min", "2 d 4 h"]


def test_servers_are_read_from_records_and_processes(tmp_path: Path) -> None:
    assert overview.servers(tmp_path) == []
    body = {"profile": "baseline", "base_url": "http://127.0.0.1:1", "served_model_name": "tiny", "method": ""}
    launch.write(tmp_path, {**body, "fingerprint": fingerprint(body)})
    me = processes.read(os.getpid())
    assert me is not None
    started = {"pid": me.pid, "start": me.start, "time": time.time() - 90, "fingerprint": "x"}
    atomic.write_json(execute.launched_path(tmp_path, "baseline"), started)
    assert overview.servers(tmp_path)[0]["state"] == "up, not proven yet"
    atomic.write_json(records.serving_path(tmp_path), {"profile": "baseline", "pid": me.pid, "start": me.start})
    server = overview.servers(tmp_path)[0]
    assert view.server_line(server) == f"baseline: serving, proven, http://127.0.0.1:1, tiny, pid {me.pid}, up 90 s"
    atomic.write_json(execute.launched_path(tmp_path, "baseline"), {**started, "start": 1})
    atomic.write_json(records.switching_path(tmp_path), {"to": "extract", "since": time.time()})
    states = [(found["profile"], found["state"]) for found in overview.servers(tmp_path)]
    assert states == [("baseline", "was stopped or died"), ("extract", "switch under way")]

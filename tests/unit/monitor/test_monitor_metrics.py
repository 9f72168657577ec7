"""What the exporter tells of a root folder, and that it disturbs nothing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from eyrie.core import children, state
from eyrie.core.errors import EyrieError
from eyrie.core.lock import Lock
from eyrie.core.state import StateDir
from eyrie.monitor import collect, exporter, text
from eyrie.serve import metrics as reader

LABEL = r'[a-z_]+="(\\.|[^"\\])*"'
LINE = re.compile(rf"^[a-z_:][a-z0-9_:]*(\{{{LABEL}(,{LABEL})*\}})? (NaN|[+-]Inf|-?[0-9.e+-]+)$")


def write(root: Path, run: str, stage: str, **record: Any) -> StateDir:
    folder = StateDir(root / "runs" / run / "state" / stage)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.write({"stage": stage, "fingerprint": "f" * 64, **record})
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    account = {"in": 10, "kept": 7, "dropped": {"duplicate": 2}, "failed": {"not JSON": 1}, "examples": {}}
    write(tmp_path, "main", "dataset", status=state.DONE, seconds=2.5, bytes=640, account=account)
    write(tmp_path, "main", "responses", status=state.FAILED, seconds=9, error={"what": 'it said "no"\n'})
    return tmp_path


def page(root: Path) -> dict[str, float]:
    shown = collect.metrics(root)
    for line in shown.splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or LINE.match(line), line
    return reader.parse(shown)


def of(samples: dict[str, float], name: str, **labels: str) -> float | None:
    """The value of a metric with these labels among others."""
    found = [
        value
        for key, value in samples.items()
        if key.split("{")[0] == name and all(f'{label}="{text}"' in key for label, text in labels.items())
    ]
    assert len(found) <= 1, (name, labels, found)
    return found[0] if found else None


def test_stages_are_in_exactly_one_state(root: Path) -> None:
    samples = page(root)
    for stage, expected in (("dataset", "done"), ("responses", "failed"), ("tokens", "absent")):
        states = {name: of(samples, "eyrie_stage_state", stage=stage, state=name) for name in collect.STATES}
        assert states == {name: float(name == expected) for name in collect.STATES}


def test_books_of_a_finished_stage_balance(root: Path) -> None:
    samples = page(root)
    books = {
        name: of(samples, "eyrie_stage_items", stage="dataset", outcome=name)
        for name in ("in", "kept", "dropped", "failed")
    }
    assert books == {"in": 10, "kept": 7, "dropped": 2, "failed": 1}
    assert of(samples, "eyrie_stage_progress_ratio", stage="dataset") == 1
    assert of(samples, "eyrie_stage_progress_ratio", stage="tokens") == 0
    assert of(samples, "eyrie_stage_seconds", stage="dataset") == 2.5
    assert of(samples, "eyrie_stage_bytes", stage="dataset") == 640


def test_a_running_stage_shows_where_it_is(root: Path) -> None:
    folder = write(root, "main", "draft", status=state.RUNNING, started=1.0)
    progress = {"phase": "epoch 2", "done": 30, "total": 120, "unit": "steps", "rate": 1.5, "eta_s": 60.0, "bytes": 5}
    progress |= {"detail": {"loss": 4.25, "paused": True, "note": "text"}, "updated": 1.0, "pid": 1}
    folder.progress_path.write_text(json.dumps(progress))
    with Lock(folder.lock_path, {"fingerprint": "f" * 64}):
        samples = page(root)
    shown = {name: of(samples, f"eyrie_stage_{name}", stage="draft") for name in ("done", "total", "rate")}
    assert shown == {"done": 30, "total": 120, "rate": 1.5}
    assert of(samples, "eyrie_stage_progress_ratio", stage="draft") == 0.25
    assert of(samples, "eyrie_stage_eta_seconds", stage="draft") == 60
    assert of(samples, "eyrie_stage_figure", stage="draft", figure="loss") == 4.25
    assert [key for key in samples if 'figure="' in key] == [
        'eyrie_stage_figure{run="main",stage="draft",figure="loss"}'
    ]
    assert (of(samples, "eyrie_stage_report_age_seconds", stage="draft") or 0) > 1e9
    # its holder gone, the same record is a killed stage
    assert of(page(root), "eyrie_stage_state", stage="draft", state="interrupted") == 1


def test_every_run_is_shown_or_the_named_ones(root: Path) -> None:
    write(root, "second", "dataset", status=state.DONE)
    assert collect.runs_of(root) == ["main", "second"]
    shown = reader.parse(collect.metrics(root, ["second"]))
    assert {key.split('run="')[1].split('"')[0] for key in shown if 'run="' in key} == {"second"}


def test_an_empty_root_still_has_a_host(tmp_path: Path) -> None:
    samples = page(tmp_path / "nowhere")
    assert not [key for key in samples if key.startswith("eyrie_stage")]
    assert (of(samples, "eyrie_disk_size_bytes", place="root") or 0) > 0
    assert [of(samples, "eyrie_server_up", profile=name) for name in ("baseline", "extract", "eagle3")] == [0, 0, 0]


def test_no_text_that_people_write_is_told(root: Path) -> None:
    shown = collect.metrics(root)
    assert "it said" not in shown
    assert "/log" not in shown


def test_looking_changes_no_file(root: Path) -> None:
    def files() -> dict[Path, tuple[int, int]]:
        return {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in root.rglob("*") if p.is_file()}

    before = files()
    collect.metrics(root)
    assert files() == before


def test_gpus_have_what_nvidia_smi_says() -> None:
    found = [{"index": 0, "name": 'A "big" GPU', "busy": 50.0, "used": 1024, "total": None, "celsius": 61.0}]
    assert (
        text.render(collect.gpus(found)).splitlines()[2] == 'eyrie_gpu_busy_ratio{gpu="0",model="A \\"big\\" GPU"} 0.5'
    )
    assert "eyrie_gpu_memory_size_bytes" not in text.render(collect.gpus(found))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (12, "12"),
        (0.25, "0.25"),
        (float("nan"), "NaN"),
        (float("inf"), "+Inf"),
        (-float("inf"), "-Inf"),
        (1e20, "1e+20"),
    ],
)
def test_values_as_prometheus_reads_them(value: float, shown: str) -> None:
    assert text.number(float(value)) == shown
    if shown != "NaN":
        assert float(shown) == value


def test_labels_are_escaped() -> None:
    family = text.Family("m", "one\nline \\ more")
    family.add(1, name='a"b\\c\nd')
    assert text.render([family]) == '# HELP m one\\nline \\\\ more\n# TYPE m gauge\nm{name="a\\"b\\\\c\\nd"} 1\n'


# the exporter as a process


def test_the_exporter_serves_until_it_is_told_to_stop(root: Path) -> None:
    server = exporter.Exporter(("127.0.0.1", 0), root)
    port = server.server_port
    server.server_close()  # a port that was free a moment ago
    argv = [sys.executable, "-m", "eyrie", "monitor", "exporter", "--root", str(root), "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(argv, env=children.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        url = f"http://127.0.0.1:{port}"
        body = wait_for(f"{url}/metrics", process)
        assert b'eyrie_stage_state{run="main",stage="dataset",state="done"} 1' in body
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/other", timeout=10)
        with urllib.request.urlopen(url, timeout=10) as reply:
            assert b"href=/metrics" in reply.read()
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert json.loads(out) == {"stopped": True}


def wait_for(url: str, process: subprocess.Popen[bytes]) -> bytes:
    import time

    for _ in range(600):
        assert process.poll() is None, process.communicate()
        try:
            with urllib.request.urlopen(url, timeout=10) as reply:
                assert reply.headers["Content-Type"] == text.CONTENT_TYPE
                return bytes(reply.read())
        except urllib.error.URLError:
            time.sleep(0.05)
    raise AssertionError("the exporter did not come up")


def test_a_port_in_use_is_named(root: Path) -> None:
    server = exporter.Exporter(("127.0.0.1", 0), root)
    with server, pytest.raises(EyrieError, match="cannot listen") as caught:
        exporter.serve(root, f"127.0.0.1:{server.server_port}")
    assert caught.value.code == "address-taken"


@pytest.mark.parametrize("value", ["9107", "127.0.0.1:", "127.0.0.1:http", ":1", "127.0.0.1:70000"])
def test_an_address_is_host_and_port(value: str) -> None:
    with pytest.raises(EyrieError) as caught:
        exporter.address(value)
    assert caught.value.code == "bad-address"
    assert exporter.address("127.0.0.1:9107") == ("127.0.0.1", 9107)

"""The main job on the embedded default, at a small budget: plan, run, no-op, change, kill, same result.

One real run of the whole chain (real model, real vLLM, real trainer), so the tests depend on their order.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from e2e_project import PROJECT, Project

from eyrie.supervise.processes import family

STAGES = ["target", "dataset", "responses", "tokens", "hidden_states", "draft", "benchmark", "report"]
SMALL = {
    "eyrie_dataset_samples": 96,
    "eyrie_responses_max_tokens": 64,
    "eyrie_draft_epochs": 2,
    "eyrie_benchmark_rounds": 1,
    "eyrie_server_port": int(os.environ.get("EYRIE_E2E_PORT", "8000")),
    # In bf16 the shape of a batch moves the last bits, and a kill changes the batches: a near tie would fall otherwise.
    "eyrie_server_baseline_args": {"dtype": "float32"},
}


@pytest.fixture(scope="module")
def project() -> Project:
    root = Path(os.environ.get("EYRIE_E2E_ROOT", PROJECT / ".eyrie"))
    return Project(root, f"e2e-{os.getpid()}", {**SMALL, "eyrie_artifacts": str(root / "e2e-artifacts")})


@pytest.fixture(scope="module", autouse=True)
def _port_is_free(project: Project) -> None:
    """A draft that won in an earlier run of this root serves on: to the bare host it would be a stranger."""
    if (project.root / "venv").exists():
        project.play("playbooks/serve.yml", profile="none")


def test_a_bare_host_is_planned_and_nothing_changes(tmp_path: Path) -> None:
    bare = Project(tmp_path / "bare", "main", SMALL)
    play = bare.play("train.yml", "--check", "--diff")
    assert play.recap("failed") == 0
    assert not bare.root.exists()
    for stage in STAGES:
        assert stage in play.out
    assert "up to date" not in play.out.split("PLAY RECAP")[0].lower()


def test_the_whole_chain_runs_and_reports_what_it_measured(project: Project) -> None:
    play = project.play()
    assert play.recap("failed") == 0
    report = json.loads((Path(project.variables["eyrie_artifacts"]) / "report.json").read_text())
    assert [stage["name"] for stage in report["stages"]][: len(STAGES) - 1] == STAGES[:-1]
    for stage in report["stages"]:
        books = stage["in"], stage["kept"] + sum(stage["dropped"].values()) + sum(stage["failed"].values())
        assert books[0] == books[1], stage
    acceptance = report["acceptance"]
    assert acceptance["trained"] > acceptance["untrained"] >= 1.0
    assert {cell["concurrency"] for cell in report["throughput"]} >= {1, 8}
    assert all(cell["baseline_tok_s"] > 0 and cell["eagle3_tok_s"] > 0 for cell in report["throughput"])
    assert report["verdict"]


def test_a_second_run_changes_nothing_and_starts_no_server(project: Project) -> None:
    before = {stage: project.record(stage) for stage in STAGES}
    play = project.play()
    assert play.recap("changed") == 0
    assert {stage: project.record(stage) for stage in STAGES} == before


def test_the_plan_says_up_to_date_for_every_stage(project: Project) -> None:
    play = project.play("train.yml", "--check", "--diff")
    assert play.recap("changed") == 0
    for stage in STAGES:
        assert any(stage in line and "up to date" in line for line in play.out.splitlines()), stage


@pytest.mark.parametrize(
    ("change", "key", "reruns"),
    [
        ({"eyrie_draft_lr": 0.0011}, "lr", ["draft", "benchmark", "report"]),
        ({"eyrie_server_eagle3_num_speculative_tokens": 2}, "num_speculative_tokens", ["benchmark", "report"]),
        (
            {"eyrie_target_chat_template": "one text for every conversation"},
            "chat_template",
            ["responses", "tokens", "hidden_states", "draft", "benchmark", "report"],
        ),
        (
            {"eyrie_dataset_samples": 95},
            "samples",
            ["dataset", "responses", "tokens", "hidden_states", "draft", "benchmark", "report"],
        ),
    ],
)
def test_one_change_reruns_exactly_what_depends_on_it(
    project: Project, change: dict[str, object], key: str, reruns: list[str]
) -> None:
    play = project.play("train.yml", "--check", "--diff", **change)
    rows = [line for line in play.out.splitlines() if "up to date" in line]
    for stage in STAGES:
        assert any(stage in row for row in rows) == (stage not in reruns), (stage, rows)
    assert key in play.out


def test_kills_at_random_moments_lose_and_double_nothing(project: Project) -> None:
    """kill -9 of the server, then of the playbook and the stage's process, while each stage works: the same data."""
    undisturbed = _data(project)
    again = Project(project.root, f"{project.run}-kill", project.variables)
    again.variables["eyrie_run"] = again.run
    dice = random.Random(7)
    for stage, server in (("responses", "baseline"), ("hidden_states", "extract"), ("draft", None)):
        play = subprocess.Popen(
            again.command("train.yml"), cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
        pid = _wait_running(again, stage)
        if server:
            _kill(_wait_serving(again, server))
            time.sleep(dice.uniform(0.5, 4.0))
        time.sleep(dice.uniform(0.5, 4.0))
        for one in sorted(family(play.pid)):  # Ansible's workers have sessions of their own, and would wait for ever
            _kill(one)
        play.wait()
        _kill(pid)
    again.play("train.yml", "--skip-tags", "benchmark,report,summary")
    assert _data(again) == undisturbed  # none lost, none doubled, same order, same tokens


def test_nothing_serves_once_told_so(project: Project) -> None:
    project.play("playbooks/serve.yml", profile="baseline")
    port = int(str(SMALL["eyrie_server_port"]))
    with socket.create_connection(("127.0.0.1", port), timeout=10):
        pass
    play = project.play("playbooks/serve.yml", "--check", profile="none")
    assert play.recap("changed") == 1
    assert project.play("playbooks/serve.yml", profile="none").recap("changed") == 1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=10)
    assert project.play("playbooks/serve.yml", profile="none").recap("changed") == 0


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _wait_serving(project: Project, profile: str, limit_s: float = 300) -> int:
    """The pid of the proven server of this profile."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            serving = json.loads((project.root / "server" / "serving.json").read_text())
            if serving.get("profile") == profile and Path(f"/proc/{serving['pid']}").exists():
                return int(serving["pid"])
        time.sleep(0.2)
    raise AssertionError(f"{profile} did not come up")


def _wait_running(project: Project, stage: str, limit_s: float = 600) -> int:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            record = project.record(stage)
        except (FileNotFoundError, json.JSONDecodeError):
            record = {}
        if record.get("status") == "running":
            return int(str(record["pid"]))
        time.sleep(0.2)
    raise AssertionError(f"{stage} did not start")


def _data(project: Project) -> dict[str, list[object]]:
    """What a disturbed and an undisturbed run have in common (T = 0)."""
    run_dir = project.root / "runs" / project.run

    def out(stage: str) -> Path:
        return run_dir / stage / str(project.record(stage)["fingerprint"])[:12]

    responses = pq.read_table(out("responses") / "responses.parquet").to_pylist()
    samples = pq.read_table(out("tokens") / "samples.parquet").to_pylist()
    return {
        "rows": [(row["id"], row["turn"]) for row in responses],
        "outputs": [row["output_ids"] for row in responses],
        "samples": sorted((row["id"], row["turn"]) for row in samples),
        "states": sorted(path.name for path in (out("hidden_states") / "states").iterdir()),
    }

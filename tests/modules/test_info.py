"""eyrie_info: plans, waiting, states, faults and the report, with and without the node package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.modules.conftest import MODULES, STAGE_OF, Answer, load, run_module, spec_of


def planned(stage: str, **more: object) -> dict[str, object]:
    base = {
        "stage": stage,
        "fingerprint": "a" * 64,
        "up_to_date": False,
        "status": "absent",
        "differences": [{"name": "state", "current": "absent", "desired": "done"}],
        "forecast": {"bytes": 2_500_000, "seconds": 130, "basis": "counted"},
        "gates": [],
        "running": None,
    }
    return {**base, **more}


def test_a_bare_host_is_forecast_stage_by_stage(tmp_path: Path) -> None:
    call = run_module("eyrie_info", {"spec": spec_of(tmp_path)}, check=True)
    assert not call.failed
    assert call.commands == []
    assert call.result["changed"] is False
    assert call.result["installed"] is False
    assert [plan["stage"] for plan in call.result["stages"]][:2] == ["target", "dataset"]
    lines = "\n".join(call.result["lines"])
    assert "would install" in lines
    assert "Nothing is installed on this host yet" in lines
    states = next(plan for plan in call.result["stages"] if plan["stage"] == "hidden_states")
    # 1,000 samples x 150 tokens x (4 layers x 8 wide x 2 bytes + 8 bytes of token id) + 200 bytes a file
    assert states["forecast"]["bytes"] == 150_000 * (64 + 8) + 1000 * 200
    assert not list(tmp_path.iterdir())


def test_the_plan_names_each_stage_s_verdict(node: Path) -> None:
    plans = [
        planned("target", up_to_date=True, forecast={"bytes": 0, "seconds": 0, "basis": "up to date"}),
        planned("dataset", differences=[{"name": "settings.samples", "current": 350, "desired": 600}]),
        planned("responses", status="interrupted"),
        planned("tokens", gates=[{"name": "disk", "ok": False, "message": "too little disk"}]),
        planned("draft", running={"pid": 7, "fingerprint": "a" * 64}),
        planned("benchmark", running={"pid": 8, "fingerprint": "c" * 64}),
    ]
    call = run_module(
        "eyrie_info", {"spec": spec_of(node)}, [Answer(["plan", "all"], out=json.dumps({"stages": plans}))]
    )
    rows = {line.split()[0]: line for line in call.result["lines"] if line.split()}
    assert "up to date" in rows["target"]
    assert rows["target"].rstrip().endswith("-")
    assert "would run: settings.samples: 350 -> 600" in rows["dataset"]
    assert "would resume" in rows["responses"]
    assert "refused: too little disk" in rows["tokens"]
    assert "running (pid 7)" in rows["draft"]
    assert "other settings are running (pid 8)" in rows["benchmark"]
    assert "12.5 MB" in rows["total"]
    assert "11 min" in rows["total"]


def test_a_run_that_is_up_to_date_has_no_total(node: Path) -> None:
    done = [planned(stage, up_to_date=True, forecast={"bytes": 0, "seconds": 0}) for stage in ("target", "dataset")]
    call = run_module(
        "eyrie_info", {"spec": spec_of(node)}, [Answer(["plan", "all"], out=json.dumps({"stages": done}))]
    )
    assert not any(line.startswith("total") for line in call.result["lines"])
    assert sum("up to date" in line for line in call.result["lines"]) == 2


WAIT = {"query": "wait", "stage": "draft", "fingerprint": "a" * 64, "since": 12.5}


def looked(**more: object) -> Answer:
    base = {
        "status": "running",
        "finished": False,
        "record": None,
        "error": None,
        "seconds": 30,
        "log": "/log",
        "progress": None,
    }
    return Answer(["wait"], out=json.dumps({**base, **more}))


def test_a_look_at_a_running_job_says_how_far_it_is(node: Path) -> None:
    progress = {
        "phase": "train",
        "done": 12340,
        "total": 83288,
        "unit": "samples",
        "rate": 14.23,
        "eta_s": 11520.0,
        "bytes": 1.9e12,
    }
    call = run_module("eyrie_info", {"spec": spec_of(node), **WAIT}, [looked(progress=progress)])
    assert call.result["finished"] is False
    assert call.result["progress_text"] == "draft: train 12,340/83,288 samples, 1.9 TB, 14.2/s, 3 h 12 min left"
    assert call.commands[0][call.commands[0].index("--since") :][:2] == ["--since", "12.5"]


def test_the_first_look_does_not_wait_for_a_job_that_has_ended(node: Path) -> None:
    call = run_module(
        "eyrie_info", {"spec": spec_of(node), **WAIT}, [looked(status="done", finished=True, record={"seconds": 4})]
    )
    assert call.result["finished"] is True
    assert len(call.commands) == 1


@pytest.mark.parametrize(("ran_s", "looks_s"), [(10, 5.0), (600, 10.0), (36000, 60.0)])
def test_looks_grow_with_the_age_of_the_job(node: Path, ran_s: int, looks_s: float) -> None:
    call = run_module("eyrie_info", {"spec": spec_of(node), **WAIT}, [looked(seconds=ran_s)])
    assert float(call.commands[1][call.commands[1].index("--seconds") + 1]) == looks_s


def test_waiting_needs_a_stage_and_its_fingerprint(node: Path) -> None:
    call = run_module("eyrie_info", {"spec": spec_of(node), "query": "wait", "stage": "draft"})
    assert call.failed
    assert "fingerprint" in call.result["msg"]


def test_a_job_that_failed_fails_the_look(node: Path) -> None:
    failed = looked(
        status="failed", error={"what": "loss is NaN", "where": "step 12", "why": "", "todo": "Lower the rate."}
    )
    call = run_module(
        "eyrie_info", {"spec": spec_of(node), **WAIT}, [failed, Answer(["doctor"], out='{"findings": []}')]
    )
    assert call.failed
    assert call.result["msg"] == "draft failed. step 12: loss is NaN Do: Lower the rate."


def test_status_is_a_table_of_where_stages_stand(node: Path) -> None:
    stages = [
        {"stage": "target", "status": "done", "seconds": 20, "bytes": 269000000, "progress": None, "error": None},
        {
            "stage": "draft",
            "status": "failed",
            "seconds": 90,
            "bytes": None,
            "progress": None,
            "error": {"what": "loss is NaN"},
        },
    ]
    call = run_module(
        "eyrie_info",
        {"spec": spec_of(node), "query": "status"},
        [Answer(["status"], out=json.dumps({"stages": stages}))],
    )
    assert "269.0 MB" in call.result["lines"][2]
    assert call.result["lines"][3].endswith("loss is NaN")


def test_verify_names_each_fault(node: Path) -> None:
    faults = {"draft": [], "tokens": [{"where": "/t/samples.parquet", "what": "is missing", "todo": "Run again."}]}
    call = run_module(
        "eyrie_info",
        {"spec": spec_of(node), "query": "verify"},
        [Answer(["verify", "all"], out=json.dumps({"ok": False, "faults": faults}))],
    )
    assert call.result["ok"] is False
    assert call.result["lines"] == ["tokens: /t/samples.parquet: is missing Run again."]


def test_summary_reads_the_report_of_exactly_these_settings(node: Path) -> None:
    folder = node / "runs" / "main" / "report" / "abc"
    folder.mkdir(parents=True)
    report = {"verdict": "serve the draft", "summary_lines": ["dataset  10  8", "verdict    serve the draft"]}
    (folder / "report.json").write_text(json.dumps(report))
    call = run_module(
        "eyrie_info",
        {"spec": spec_of(node), "query": "summary"},
        [Answer(["plan", "report"], out=json.dumps({"outputs": str(folder)}))],
    )
    assert call.result["report"] == report
    assert call.result["lines"] == report["summary_lines"]


def test_summary_without_a_report_says_so(node: Path) -> None:
    call = run_module(
        "eyrie_info",
        {"spec": spec_of(node), "query": "summary"},
        [Answer(["plan", "report"], out='{"outputs": "/nowhere"}')],
    )
    assert not call.failed
    assert call.result["report"] is None
    assert "There is no report yet" in call.result["lines"][0]


@pytest.mark.parametrize("query", ["status", "verify", "summary"])
def test_a_bare_host_answers_every_query(tmp_path: Path, query: str) -> None:
    call = run_module("eyrie_info", {"spec": spec_of(tmp_path), "query": query})
    assert not call.failed
    assert call.commands == []


@pytest.mark.parametrize("name", [name for name in MODULES if name not in STAGE_OF])
def test_what_is_documented_is_what_is_taken(
    name: str, documented: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load(name)
    taken: dict[str, object] = {}

    def stop(**arguments: object) -> None:
        taken.update(arguments)
        raise RuntimeError

    monkeypatch.setattr(module, "AnsibleModule", stop)
    with pytest.raises(RuntimeError):
        module.main()
    options = documented[name]["options"]
    arguments = taken["argument_spec"]
    assert set(options) == set(arguments)
    for option, known in arguments.items():
        said = options[option]
        for key in ("type", "default", "required", "elements"):
            assert said.get(key, False if key == "required" else None) == known.get(
                key, False if key == "required" else None
            ), (option, key)
        assert sorted(said.get("choices", [])) == sorted(known.get("choices", [])), option


def older(node: Path) -> dict[str, object]:
    (node / "venv" / "eyrie-package.json").write_text(json.dumps({"sha256": "a" * 64}))
    return {**spec_of(node), "execution": {"package": "b" * 64}}


def test_an_older_package_that_cannot_plan_does_not_stop_the_play_that_replaces_it(node: Path) -> None:
    broken = Answer(["plan", "all"], rc=1, out="Traceback: no module")
    call = run_module("eyrie_info", {"spec": older(node)}, [broken])
    assert not call.failed
    assert "aaaaaaaaaaaa -> bbbbbbbbbbbb" in call.result["lines"][2]
    assert "not JSON" in call.result["lines"][-1]


def test_the_same_package_that_cannot_plan_is_a_failure(node: Path) -> None:
    spec = older(node)
    spec["execution"] = {"package": "a" * 64}
    assert run_module("eyrie_info", {"spec": spec}, [Answer(["plan", "all"], rc=1, out="Traceback")]).failed


def test_check_mode_of_a_stage_survives_an_older_package(node: Path) -> None:
    refused = Answer(["plan"], rc=2, out='{"error": {"code": "spec-unknown-key", "what": "unknown setting"}}')
    call = run_module("eyrie_dataset", {"spec": older(node)}, [refused], check=True)
    assert call.result["plan"]["differences"] == [{"name": "node package", "current": "a" * 12, "desired": "b" * 12}]
    assert run_module("eyrie_dataset", {"spec": older(node)}, [refused]).failed

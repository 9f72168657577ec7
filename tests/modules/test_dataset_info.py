"""eyrie_dataset_info: what each source would do, with and without the node package."""

from __future__ import annotations

import json

import pytest

from tests.modules.conftest import Answer, run_module

REGISTRY = {
    "hub": {"kind": "hub", "repository": "a/b", "revision": "c" * 40, "bytes": 1_500_000, "adapter": "messages"},
    "mine": {"kind": "local", "path": "/x", "adapter": "messages"},
    "bench": {"kind": "hub", "repository": "a/c", "revision": "", "bytes": 50_000, "adapter": "prompt"},
    "unused": {"kind": "hub", "repository": "a/d", "bytes": 10**9, "adapter": "messages"},
}
SPEC = {
    "root": "/nowhere",
    "run": "main",
    "stages": {"dataset": {"registry": REGISTRY, "sources": ["hub", "mine"], "exclude_sources": ["bench"]}},
}


@pytest.fixture
def cli(tmp_path):
    path = tmp_path / "eyrie"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("check", [False, True])
def test_a_bare_host_goes_by_the_registry(check):
    call = run_module("eyrie_dataset_info", {"spec": SPEC}, check=check)
    assert not call.failed
    assert call.result["changed"] is False
    assert [(item["name"], item["act"], item["fetch"]) for item in call.result["sources"]] == [
        ("hub", "fetch and process", 1_500_000),
        ("mine", "process", 0),
        ("bench", "fetch and process", 50_000),
    ]
    assert call.result["lines"][0] == "hub    fetch and process, 1.5 MB to download, revision cccccccccccc"
    assert call.result["lines"][-1] == "Downloads: 1.6 MB. Gates: open."
    assert call.commands == []


def test_the_plan_says_what_is_kept_and_what_moved(cli):
    plan = {
        "up_to_date": False,
        "differences": [{"name": "settings.source.hub.revision", "current": "a", "desired": "c"}],
        "gates": [{"name": "token for hub", "ok": False, "message": "hub is gated."}],
        "forecast": {
            "sources": [
                {
                    "name": "hub",
                    "act": "fetch and process",
                    "fetch": 9,
                    "read": 9,
                    "revision": "c" * 40,
                    "was": "a" * 40,
                },
                {"name": "mine", "act": "keep", "fetch": 0, "read": 0, "revision": "", "was": ""},
            ]
        },
    }
    call = run_module(
        "eyrie_dataset_info", {"spec": SPEC, "cli": cli}, [Answer(["plan", "dataset"], out=json.dumps(plan))], diff=True
    )
    assert call.result["lines"] == [
        "hub   fetch and process, 9 B to download, revision cccccccccccc (was aaaaaaaaaaaa)",
        "mine  keep",
        "Downloads: 9 B. Gates: hub is gated.",
    ]
    assert call.result["diff"]["before"] == 'settings.source.hub.revision: "a"\n'
    assert call.result["diff"]["after"] == 'settings.source.hub.revision: "c"\n'


def test_a_source_that_failed_last_time_will_be_tried_again(cli):
    again = {"name": "sources", "current": "1 source failed last time: hub", "desired": "will be tried again"}
    tried = {"name": "hub", "act": "try again", "fetch": 9, "read": 9, "revision": "", "was": ""}
    plan = {"up_to_date": False, "differences": [again], "gates": [], "forecast": {"sources": [tried]}}
    call = run_module("eyrie_dataset_info", {"spec": SPEC, "cli": cli}, [Answer(["plan"], out=json.dumps(plan))])
    assert call.result["lines"] == [
        "hub  try again, 9 B to download",
        "1 source failed last time: hub: will be tried again.",
        "Downloads: 9 B. Gates: open.",
    ]


def test_nothing_to_do(cli):
    plan = {"up_to_date": True, "differences": [], "gates": [], "forecast": {}}
    call = run_module("eyrie_dataset_info", {"spec": SPEC, "cli": cli}, [Answer(["plan"], out=json.dumps(plan))])
    assert call.result["up_to_date"] is True
    assert call.result["lines"] == ["The dataset is up to date: nothing is fetched, nothing is processed."]


def test_a_refused_spec_is_the_tasks_failure(cli):
    error = {"error": {"code": "spec-unknown-key", "what": "unknown setting 'sampels'. Did you mean 'samples'?"}}
    call = run_module("eyrie_dataset_info", {"spec": SPEC, "cli": cli}, [Answer(["plan"], rc=2, out=json.dumps(error))])
    assert call.failed
    assert "Did you mean 'samples'" in call.result["msg"]

"""eyrie_preflight through its own entry point, on hosts as recorded."""

from __future__ import annotations

from typing import Any

import pytest

from tests.modules.conftest import load, run_module
from tests.unit.preflight.conftest import RecordedHost, profile, recorded, spec_of


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """on(host): the host that the module finds itself on."""

    def place(host: RecordedHost) -> None:
        load("eyrie_preflight")
        import ansible.module_utils.eyrie.preflight.host as place_of_hosts

        monkeypatch.setattr(place_of_hosts, "Host", lambda module: host)

    return place


def params(name: str, **more: Any) -> dict[str, Any]:
    expect = {key: value for key, value in profile(name, "preflight").items() if key != "json"}
    return {"spec": spec_of(name), "expect": {**expect, "memory_bytes": 0}, **more}


@pytest.mark.parametrize("check", [False, True])
def test_a_fit_host_is_left_alone(on: Any, check: bool) -> None:
    on(recorded("rtx6000bw-good"))
    call = run_module("eyrie_preflight", params("rtx6000bw"), check=check)
    assert not call.failed, call.result
    assert call.result["changed"] is False
    assert call.result["fit"] is True


def test_an_error_stops_the_play_with_its_cure(on: Any) -> None:
    on(recorded("rtx6000bw-seven"))
    call = run_module("eyrie_preflight", params("rtx6000bw"))
    assert call.failed
    assert call.result["msg"].startswith("The host is not fit for the run. gpus: 7 GPUs are there, the profile has 8.")
    assert any(line.startswith("error   gpus") for line in call.result["lines"])
    assert any("Xid 79" in item["what"] for item in call.result["findings"])


def test_without_fatal_the_findings_are_data(on: Any) -> None:
    on(recorded("rtx6000bw-seven"))
    call = run_module("eyrie_preflight", params("rtx6000bw", fatal=False))
    assert not call.failed
    assert call.result["fit"] is False
    assert set(call.result["findings"][0]) == {"check", "level", "what", "why", "cure"}


def test_a_host_without_gpus_is_fit_for_the_embedded_default(on: Any) -> None:
    on(recorded("cpu-only"))
    assert run_module("eyrie_preflight", params("local")).result["fit"] is True


def test_a_disk_that_cannot_take_the_states_stops_the_run(on: Any) -> None:
    """100,000 samples of 2,300 tokens at 57 kB: 13 TB in bf16, with 2 TB free."""
    host = recorded("rtx6000bw-good")
    host.data["space"] = {"total": 4e12, "free": 2e12, "inodes": 10**9}
    on(host)
    call = run_module("eyrie_preflight", params("rtx6000bw"))
    assert call.failed
    (found,) = [item for item in call.result["findings"] if item["check"] == "disk"]
    assert "hidden_states, 13.2 TB" in found["why"]


def test_an_expectation_that_nobody_checks_is_refused(on: Any) -> None:
    on(recorded("cpu-only"))
    given = params("local")
    given["expect"]["gpu_cuont"] = 8
    call = run_module("eyrie_preflight", given)
    assert call.failed
    assert "gpu_cuont" in call.result["msg"]


def test_an_unknown_variable_stops_the_run(on: Any) -> None:
    on(recorded("cpu-only"))
    unknown = [{"name": "eyrie_drat_epochs", "nearest": "eyrie_draft_epochs", "where": ""}]
    call = run_module("eyrie_preflight", params("local", names=unknown), check=True)
    assert call.failed
    assert "Unknown variable eyrie_drat_epochs. Write eyrie_draft_epochs." in call.result["msg"]

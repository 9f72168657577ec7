"""verify all: every kind of damage is named, and a whole run has no faults."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_house import House, safetensors

from eyrie.cli import main
from eyrie.core.fingerprint import short
from eyrie.ops import verify


def faults(house: House, **settings: Any) -> dict[str, list[str]]:
    answer = verify.everything(house.pipeline(**settings))
    assert answer["ok"] == (not answer["faults"])
    return {place: [fault["what"] for fault in found] for place, found in answer["faults"].items()}


def test_whole_run_has_no_faults(house: House) -> None:
    house.promote(house.run())
    assert faults(house) == {}


def test_stages_that_never_ran_have_no_faults(house: House) -> None:
    house.run("tokens")
    answer = verify.everything(house.pipeline())
    assert answer["ok"]
    assert answer["checked"]["tokens"] == "verified"
    assert answer["checked"]["draft"] == "has not run with these settings"


def test_missing_output_and_torn_record(house: House) -> None:
    ctx = house.run().context("tokens")
    (ctx.out / "data.txt").unlink()
    (ctx.state.path / "latest.json").write_text('{"stage": "tok')
    found = faults(house)
    assert found["tokens"] == ["is not JSON", "output is missing"]


def test_changed_outputs_of_earlier_settings(house: House) -> None:
    old = house.run(dataset={"value": 1}).context("dataset")
    house.run(dataset={"value": 2})
    (old.out / "data.txt").write_text("x")
    assert list(faults(house, dataset={"value": 2})) == ["earlier settings"]
    shutil.rmtree(old.out)
    assert faults(house, dataset={"value": 2}) == {}


def test_kept_draft_that_is_cut_off(house: House) -> None:
    version = house.promote(house.run())
    path = house.root / "drafts" / version / "model.safetensors"
    data = path.read_bytes()
    path.unlink()  # it is a hard link to the run's own checkpoint
    path.write_bytes(data[:-3])
    assert faults(house)["drafts"] == [f"is {len(data) - 3} bytes, its header says {len(data)}"]


def test_current_that_leads_nowhere(house: House) -> None:
    version = house.promote(house.run())
    shutil.rmtree(house.root / "drafts" / version)
    assert faults(house)["drafts"] == [f"leads to {version}, which is not there"]


def test_broken_chain_is_told_once_for_two_drafts(house: House) -> None:
    house.promote(house.run(draft={"value": 1}))
    house.promote(house.run(draft={"value": 2}))
    ctx = house.pipeline(draft={"value": 2}).context("dataset")
    (ctx.state.path / f"{short(ctx.fingerprint)}.json").unlink()
    assert faults(house, draft={"value": 2})["provenance"] == ["no record of it is left on this host"]


def test_verify_that_breaks_is_a_fault(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = house.run()

    def broken(ctx: Any) -> list[Any]:
        raise ValueError("no table")

    monkeypatch.setattr(pipeline.context("tokens").stage, "verify", broken)
    assert faults(house)["tokens"] == ["ValueError: no table"]


def test_command(house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    house.run()
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(house.spec()))
    assert main(["verify", "all", "--spec", str(spec)]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (safetensors(b"abc"), ""),
        (safetensors(b"abc")[:-1], "its header says"),
        (safetensors(b"abc") + b"x", "its header says"),
        (b"", "cut off"),
        (b"\xff" * 16, "cut off"),
        ((4).to_bytes(8, "little") + b"{}{}", "damaged header"),
        ((4).to_bytes(8, "little") + b"null", "damaged header"),
    ],
)
def test_safetensors_that_are_not_whole(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    assert problem in verify.safetensors_problem(path)
    assert bool(verify.safetensors_problem(path)) == bool(problem)


def test_a_disk_that_refuses_is_a_clear_answer(
    house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(house.spec()))

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device", "/srv/state")

    monkeypatch.setattr("eyrie.core.atomic.write_bytes", full)
    assert main(["run", "target", "--spec", str(spec)]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "io-error"
    assert error["where"] == "/srv/state"
    assert "No space left on device" in error["what"]

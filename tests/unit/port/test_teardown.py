"""Leaving a host: nothing unsaved is wiped unasked, nothing foreign is touched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from eyrie.benchmark import drafts
from eyrie.core.errors import EyrieError, GateError, SpecError
from eyrie.core.lock import Lock
from eyrie.port import carry, manifest, teardown, teardown_cli
from eyrie.port.manifest import STATE


def ask(pipeline: Any, action: str, **request: Any) -> dict[str, Any]:
    return teardown_cli.answer(action, {"spec": pipeline.raw, **request})


def save(hosts: Any, tmp_path: Path, *also: str) -> Path:
    """As the playbook saves: pack on the host, pull and prove on the controller, mark on the host."""
    packed = ask(hosts.alpha, "pack", save=list(also))
    folder = tmp_path / "artifacts"
    carry.send({**packed, "pull": True, "to": {"folder": str(folder)}})
    listed = manifest.read(folder / manifest.NAME, packed["sha256"])
    from eyrie.core.fingerprint import HashCache

    assert not list(manifest.check(listed, lambda entry: entry.at(folder), HashCache(tmp_path / "h.json")))
    ask(hosts.alpha, "mark", packed=packed, where=str(folder))
    return folder


def test_says_what_would_be_lost_and_refuses(hosts: Any) -> None:
    hosts.run("alpha")
    made = ask(hosts.alpha, "plan")
    assert not made["ok"]
    assert made["unsaved"] == ["draft", "responses", "benchmark", "report", "tokens", "dataset", "state"]
    kinds = {item["key"]: item["saved"] for item in made["holdings"]}
    assert kinds["hidden_states"] is None
    assert kinds["models"] is None
    with pytest.raises(GateError, match="draft is not saved"):
        ask(hosts.alpha, "wipe", what=["data"])
    assert (hosts.alpha.context("draft").out / "result").exists()
    assert any("NOT SAVED" in line for line in made["lines"])


def test_saved_results_may_be_wiped(hosts: Any, tmp_path: Path) -> None:
    hosts.run("alpha")
    folder = save(hosts, tmp_path)
    assert (folder / "draft" / "base").is_dir()
    assert (folder / "state" / "base" / "draft" / "latest.json").exists()
    assert not (folder / "hidden_states").exists()
    assert ask(hosts.alpha, "plan")["ok"]
    answer = ask(hosts.alpha, "wipe", what=["data"])
    assert answer["bytes"] > 10_000
    assert not (hosts.alpha.root / "runs").exists()
    assert not (hosts.alpha.root / "models").exists()


def test_what_changes_after_the_save_is_unsaved_again(hosts: Any, tmp_path: Path) -> None:
    hosts.run("alpha")
    save(hosts, tmp_path)
    (hosts.alpha.context("draft").out / "part" / "data").write_bytes(b"trained further")
    assert ask(hosts.alpha, "plan")["unsaved"] == ["draft"]


def test_unfinished_work_counts(hosts: Any, tmp_path: Path) -> None:
    hosts.run("alpha", "target", "dataset", "responses", "tokens", "hidden_states")
    save(hosts, tmp_path)
    hosts.run_stopped("alpha", "draft")
    assert ask(hosts.alpha, "plan")["unsaved"] == ["draft", "state"]


def test_drafts_of_earlier_settings_count_and_are_saved(hosts: Any, tmp_path: Path) -> None:
    hosts.run("alpha")
    first = hosts.alpha.context("draft").out
    hosts.set("alpha", "draft", text="second")
    hosts.run("alpha", "draft")
    folder = save(hosts, tmp_path)
    assert (folder / "draft" / "base" / first.name / "result").exists()
    assert (folder / "draft" / "base" / hosts.alpha.context("draft").out.name / "result").exists()


def test_other_runs_of_the_host_count(hosts: Any, tmp_path: Path) -> None:
    hosts.run("alpha")
    save(hosts, tmp_path)
    os.rename(hosts.alpha.root / "runs" / "main", hosts.alpha.root / "runs" / "earlier")
    hosts.run("alpha")
    save(hosts, tmp_path / "second")
    made = ask(hosts.alpha, "plan")
    assert "earlier/draft" in made["unsaved"]
    assert "draft" not in made["unsaved"]


def test_losses_may_be_accepted_by_name_only(hosts: Any) -> None:
    hosts.run("alpha", "dataset")
    with pytest.raises(SpecError, match="names everything, which is not here"):
        ask(hosts.alpha, "wipe", what=["data"], accept=["everything"])
    with pytest.raises(GateError):
        ask(hosts.alpha, "wipe", what=["data"], accept=["dataset"])
    ask(hosts.alpha, "wipe", what=["data"], accept=["dataset", STATE])
    assert not (hosts.alpha.root / "runs").exists()


def test_nothing_is_wiped_or_saved_under_running_work(hosts: Any, tmp_path: Path) -> None:
    hosts.run("alpha")
    save(hosts, tmp_path)
    with Lock(hosts.alpha.context("draft").state.lock_path):
        with pytest.raises(GateError, match="still running: draft of run main"):
            ask(hosts.alpha, "wipe", what=["data"])
        with pytest.raises(EyrieError, match="runs on this host"):
            ask(hosts.alpha, "pack")


def test_secrets_go_alone_and_are_overwritten(hosts: Any, tmp_path: Path) -> None:
    hosts.run("alpha", "dataset")
    root = hosts.alpha.root
    token, tool = root / "secrets" / "hf_token", root / "cache" / "hf" / "token"
    for path in (token, tool):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("hf_planted")
    other_name = tmp_path / "hardlink"  # shows what the blocks hold after the wipe
    os.link(token, other_name)
    made = ask(hosts.alpha, "plan")
    assert made["secrets"] == [str(tool), str(token)]
    assert "hf_planted" not in str(made)
    answer = ask(hosts.alpha, "wipe", what=["secrets"])
    assert answer["wiped"] == [str(tool), str(token)]
    assert not token.exists()
    assert not tool.exists()
    assert b"hf_planted" not in other_name.read_bytes()
    assert (hosts.alpha.context("dataset").out / "result").exists(), "data stays"


def test_foreign_files_and_what_links_lead_to_stay(hosts: Any, tmp_path: Path) -> None:
    hosts.run("alpha", "dataset")
    root = hosts.alpha.root
    elsewhere = tmp_path / "nfs"
    elsewhere.mkdir()
    (elsewhere / "model.safetensors").write_text("shared")
    (root / "models").symlink_to(elsewhere)
    (root / "notes.txt").write_text("of the operator")
    answer = ask(hosts.alpha, "wipe", what=["data"], accept=["dataset", "state"])
    assert (elsewhere / "model.safetensors").read_text() == "shared"
    assert (root / "notes.txt").exists()
    assert answer["left"] == ["notes.txt"]


def test_a_kept_version_goes_with_the_data_and_not_unasked_when_no_run_has_it(hosts: Any, tmp_path: Path) -> None:
    hosts.run("alpha", "dataset")
    root = hosts.alpha.root
    weights = tmp_path / "checkpoint"
    weights.mkdir()
    (weights / "model.safetensors").write_text("weights")
    for version, run in (("aaaaaaaaaaaa", "main"), ("bbbbbbbbbbbb", "gone")):
        drafts.keep(root, version, weights, {"run": run})
    (root / "runs" / "main" / "draft" / "aaaaaaaaaaaa").mkdir(parents=True)
    (root / "prompts").mkdir()
    lines = ask(hosts.alpha, "plan", accept=["dataset", "state"])
    assert [item["key"] for item in lines["holdings"] if item["key"].startswith("drafts")] == ["drafts/bbbbbbbbbbbb"]
    with pytest.raises(GateError, match=r"drafts/bbbbbbbbbbbb is not saved: .* its run is gone"):
        ask(hosts.alpha, "wipe", what=["data"], accept=["dataset", "state"])
    assert (root / "drafts" / "bbbbbbbbbbbb" / "model.safetensors").exists()
    answer = ask(hosts.alpha, "wipe", what=["data"], accept=["dataset", "state", "drafts/bbbbbbbbbbbb"])
    assert not (root / "drafts").exists()
    assert answer["left"] == []


def test_the_environment_goes_with_what_its_link_names(hosts: Any) -> None:
    hosts.run("alpha", "dataset")
    root = hosts.alpha.root
    (root / "venvs" / "0123").mkdir(parents=True)
    (root / "venv").symlink_to("venvs/0123")
    ask(hosts.alpha, "wipe", what=["environment"], accept=["dataset", "state"])
    assert not (root / "venvs").exists()
    assert not (root / "venv").is_symlink()
    assert (root / "runs").exists()


@pytest.mark.parametrize("root", ["/", "/srv", "/home", "/nonexistent/eyrie"])
def test_a_root_that_is_not_eyries_is_never_wiped(root: str) -> None:
    with pytest.raises(EyrieError) as caught:
        teardown._guarded(Path(root))
    assert caught.value.code == "teardown-root"


def test_unknown_kinds_and_stages_are_refused(hosts: Any) -> None:
    hosts.run("alpha", "dataset")
    with pytest.raises(SpecError, match="cannot wipe 'everything'"):
        ask(hosts.alpha, "wipe", what=["everything"])
    with pytest.raises(SpecError, match="'model' cannot be saved"):
        ask(hosts.alpha, "pack", save=["model"])
    with pytest.raises(SpecError, match="lacks what"):
        ask(hosts.alpha, "wipe")


def test_states_are_saved_on_request(hosts: Any, tmp_path: Path) -> None:
    hosts.run("alpha")
    folder = save(hosts, tmp_path, "hidden_states")
    assert (folder / "hidden_states" / "base" / "store" / "ab" / "k0").exists()
    kinds = {item["key"]: item["saved"] for item in ask(hosts.alpha, "plan")["holdings"]}
    assert kinds["hidden_states"] is True


def test_a_saved_run_goes_on_elsewhere(hosts: Any, tmp_path: Path) -> None:
    """The first host is gone: what teardown saved is the source of a port."""
    hosts.run("alpha", "target", "dataset", "responses", "tokens", "hidden_states")
    hosts.run_stopped("alpha", "draft")
    folder = save(hosts, tmp_path)
    alpha = hosts.alpha.context("draft").fingerprint
    ask(hosts.alpha, "wipe", what=["data"])
    source = carry.survey(None, {"saved": str(folder)})
    hosts.set("beta", "responses", tool="9.9")
    plan = carry.plan(hosts.beta, {"source": source, "link": {"mb_s": 1000.0}, "options": {}})
    actions = {item["stage"]: item["action"] for item in plan["decisions"]}
    assert actions["hidden_states"] == "recompute", "the save does not hold them"
    assert [name for name, action in actions.items() if action == "copy"] == ["dataset", "responses", "tokens", "draft"]
    packed = carry.pack(None, {"saved": str(folder), "decisions": plan["decisions"]})
    place = carry.prepare(hosts.beta, {"source": source, "trees": packed["trees"]})
    carry.send({**packed, "to": {"folder": place["folder"]}})
    carry.land(hosts.beta, {"plan": plan, "folder": place["folder"], "sha256": packed["sha256"]})
    record = hosts.beta.context("draft").record()
    assert record["status"] == "interrupted"
    assert record["imported_from"]["fingerprint"] == alpha
    hosts.run("beta")
    assert hosts.beta.context("draft").record()["status"] == "done"


def test_rot_in_a_saved_run_is_refused(hosts: Any, tmp_path: Path) -> None:
    hosts.run("alpha")
    folder = save(hosts, tmp_path)
    source = carry.survey(None, {"saved": str(folder)})
    plan = carry.plan(hosts.beta, {"source": source, "link": {"mb_s": 1000.0}, "options": {}})
    data = next((folder / "dataset" / "base").rglob("data"))
    data.write_bytes(b"rot" + data.read_bytes()[3:])
    with pytest.raises(EyrieError, match="not what was saved"):
        carry.pack(None, {"saved": str(folder), "decisions": plan["decisions"]})
    proved = carry.prove({"folder": str(folder), "sha256": ""})
    assert proved["faults"] == [f"{data.relative_to(folder).as_posix()}: SHA-256 differs"]


def test_a_folder_that_is_no_save_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EyrieError, match="cannot read the manifest"):
        carry.survey(None, {"saved": str(tmp_path)})

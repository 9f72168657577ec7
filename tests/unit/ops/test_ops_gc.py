"""Retention: what goes can be made again; what a kept draft or the present settings need stays, whatever happens."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_house import House

from eyrie.cli import main
from eyrie.core import planner, registry
from eyrie.core.errors import EyrieError, SpecError
from eyrie.core.fingerprint import short
from eyrie.core.lock import Lock
from eyrie.core.pipeline import Pipeline
from eyrie.hidden_states.store import Entry, Store
from eyrie.ops import provenance, verify
from eyrie.ops.gc import apply, find


def with_retention(house: House, retention: dict[str, Any], run: str = "main", **stages: Any) -> Pipeline:
    return Pipeline({**house.spec(run, **stages), "execution": {"retention": retention}})


def rules(plan: find.Plan) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in plan.items:
        found.setdefault(item.rule, []).append(item.stage or Path(item.path).name)
    return found


def age(path: Path, days: float) -> None:
    then = time.time() - days * find.DAY_S
    os.utime(path, (then, then), follow_symlinks=False)


def test_fresh_run_has_nothing_to_delete(house: House) -> None:
    assert find.plan(house.run()).items == []


def test_outputs_of_earlier_settings_go_and_present_ones_stay(house: House) -> None:
    first = house.run(tokens={"value": 1})
    house.run(tokens={"value": 2})
    pipeline = house.run(tokens={"value": 3})
    plan = find.plan(with_retention(house, {"keep_superseded": 1}, tokens={"value": 3}))
    assert rules(plan) == {"superseded": ["tokens", "hidden_states", "draft", "benchmark", "report"]}
    assert {item.digest for item in plan.items} >= {short(first.context("tokens").fingerprint)}
    assert "made again from" in plan.items[0].because
    answer = apply.apply(with_retention(house, {"keep_superseded": 1}, tokens={"value": 3}))
    assert answer["bytes"] == plan.as_dict()["bytes"] > 0
    assert not first.context("tokens").out.exists()
    assert all(planner.is_up_to_date(pipeline.context(name)) for name in registry.NAMES)
    assert find.plan(with_retention(house, {"keep_superseded": 1}, tokens={"value": 3})).items == []


def test_going_back_to_deleted_settings_makes_them_again(house: House) -> None:
    first = house.run(tokens={"value": 1})
    before = (first.context("report").out / "data.txt").read_text()
    house.run(tokens={"value": 2})
    apply.apply(with_retention(house, {"keep_superseded": 0}, tokens={"value": 2}))
    again = house.pipeline(tokens={"value": 1})
    assert not planner.is_up_to_date(again.context("report"))
    house.run(tokens={"value": 1})
    assert (again.context("report").out / "data.txt").read_text() == before


def test_promoted_draft_keeps_its_chain(house: House) -> None:
    house.promote(house.run(dataset={"value": 1}))
    house.run(dataset={"value": 2})
    plan = find.plan(with_retention(house, {"keep_superseded": 0}, dataset={"value": 2}))
    assert rules(plan) == {"superseded": ["benchmark", "report"]}  # made from the draft, not the other way round
    apply.apply(with_retention(house, {"keep_superseded": 0}, dataset={"value": 2}))
    assert provenance.why(house.root, "current")["ok"]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(registry.NAMES[:6]), st.integers(1, 3), st.booleans(), st.booleans()),
        min_size=1,
        max_size=5,
    ),
    keep=st.integers(0, 1),
)
def test_whatever_was_run_promoted_and_deleted_kept_drafts_and_present_settings_are_whole(
    house: House, steps: list[tuple[str, int, bool, bool]], keep: int
) -> None:
    shutil.rmtree(house.root, ignore_errors=True)
    stages: dict[str, dict[str, Any]] = {}
    for name, value, promote, collect in steps:
        stages[name] = {"value": value}
        pipeline = house.run(**stages)
        if promote:
            house.promote(pipeline)
        if collect:
            apply.apply(with_retention(house, {"keep_superseded": keep, "unused_targets": True}, **stages))
        assert verify.everything(house.pipeline(**stages))["faults"] == {}
        assert all(planner.is_up_to_date(house.pipeline(**stages).context(stage)) for stage in registry.NAMES)


def test_running_stage_protects_its_run(house: House) -> None:
    house.run(tokens={"value": 1})
    pipeline = house.run(tokens={"value": 2})
    with Lock(pipeline.context("draft").state.lock_path):
        plan = find.plan(with_retention(house, {"keep_superseded": 0}, tokens={"value": 2}))
    assert plan.items == []
    assert "works now" in plan.kept[0]["why"]


def test_stage_that_started_after_the_plan_keeps_its_files(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    old = house.run(tokens={"value": 1})
    pipeline = house.run(tokens={"value": 2})
    planned = find.plan(with_retention(house, {"keep_superseded": 0}, tokens={"value": 2}))
    monkeypatch.setattr(find, "plan", lambda _: planned)
    with Lock(pipeline.context("draft").state.lock_path):
        answer = apply.apply(with_retention(house, {"keep_superseded": 0}, tokens={"value": 2}))
    assert answer["deleted"] == []
    assert "a stage works there now" in answer["skipped"][0]["why"]
    assert old.context("tokens").out.exists()


def test_another_plan_than_the_one_looked_at_is_refused(house: House) -> None:
    house.run(tokens={"value": 1})
    house.run(tokens={"value": 2})
    old = find.plan(with_retention(house, {"keep_superseded": 0}, tokens={"value": 2})).as_dict()["id"]
    house.run(tokens={"value": 3})
    with pytest.raises(EyrieError, match="has changed since"):
        apply.apply(with_retention(house, {"keep_superseded": 0}, tokens={"value": 3}), old)


def test_crash_in_the_middle_leaves_no_lie(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    old = house.run(tokens={"value": 1})
    house.run(tokens={"value": 2})
    pipeline = with_retention(house, {"keep_superseded": 0}, tokens={"value": 2})

    def crash(path: Path, **kwargs: Any) -> None:
        if not kwargs:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("eyrie.ops.gc.apply.shutil.rmtree", crash)
        with pytest.raises(KeyboardInterrupt):
            apply.apply(pipeline)
    assert list((house.root / apply.TRASH).iterdir())
    assert old.context("tokens").record()["deleted"]["by"] == "gc"
    apply.apply(with_retention(house, {"keep_superseded": 0}, tokens={"value": 2}))
    assert not (house.root / apply.TRASH).exists() or not list((house.root / apply.TRASH).iterdir())
    house.run(tokens={"value": 1})
    assert verify.everything(house.pipeline(tokens={"value": 1}))["ok"]


def test_folder_without_a_record_stays(house: House) -> None:
    pipeline = house.run()
    foreign = pipeline.context("tokens").base / "0123456789ab"
    foreign.mkdir()
    plan = find.plan(with_retention(house, {"keep_superseded": 0}))
    assert {"path": str(foreign), "why": "no record says what it is"} in plan.kept


def test_link_to_elsewhere_is_removed_and_what_it_leads_to_stays(house: House, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    old = house.run(tokens={"value": 1}).context("tokens")
    house.run(tokens={"value": 2})
    shutil.rmtree(old.out)
    old.out.symlink_to(elsewhere)
    apply.apply(with_retention(house, {"keep_superseded": 0}, tokens={"value": 2}))
    assert not old.out.is_symlink()
    assert (elsewhere / "precious").read_text() == "x"


def test_run_folder_that_is_a_link_out_of_the_root_is_left_alone(house: House, tmp_path: Path) -> None:
    house.run(tokens={"value": 1})
    pipeline = house.run(tokens={"value": 2})
    shutil.move(str(pipeline.context("tokens").base), tmp_path / "moved")
    pipeline.context("tokens").base.symlink_to(tmp_path / "moved")
    answer = apply.apply(with_retention(house, {"keep_superseded": 0}, tokens={"value": 2}))
    skipped = [item for item in answer["skipped"] if item["stage"] == "tokens"]
    assert skipped[0]["why"] == "it lies outside the root"


def test_hard_link_of_a_kept_draft_frees_nothing(house: House) -> None:
    version = house.promote(house.run(draft={"value": 1}))
    kept = house.root / "drafts" / version / "model.safetensors"
    assert kept.stat().st_nlink == 2
    assert find.size_of(kept) == 0


def store_states(house: House, pipeline: Pipeline, keys: list[str]) -> Path:
    """What the capture leaves for these keys: store files, manifest rows, one line per row."""
    ctx = pipeline.context("hidden_states")
    with Store(ctx.base / "store") as store:
        for key in keys:
            store.file(key).parent.mkdir(parents=True, exist_ok=True)
            store.file(key).write_bytes(b"s" * 1000)
        store.record([Entry(key, 4, 1000, "bf16", "2,6,9,12", "c", "d") for key in keys])
    lines = [json.dumps({"row": row, "key": key}) for row, key in enumerate(keys)]
    (ctx.out / "manifest.jsonl").write_text("\n".join(lines) + "\n")
    return ctx.base / "store"


KEYS = [f"{n:02x}" * 16 for n in range(6)]


def test_states_of_a_promoted_draft_are_given_up_only_when_asked(house: House) -> None:
    pipeline = house.run()
    store = store_states(house, pipeline, KEYS[:3])
    house.promote(pipeline)
    assert find.plan(with_retention(house, {"states": "keep"})).items == []
    plan = find.plan(with_retention(house, {"states": "after_promotion"}))
    assert rules(plan) == {"states": ["hidden_states"]}
    assert plan.items[0].bytes >= 3000
    apply.apply(with_retention(house, {"states": "after_promotion"}))
    assert list(store.glob("??/*.safetensors")) == []
    assert all(planner.is_up_to_date(house.pipeline().context(name)) for name in registry.NAMES)
    assert provenance.why(house.root, "current")["ok"]
    assert verify.everything(house.pipeline())["ok"]
    changed = house.pipeline(draft={"value": 9})
    assert not planner.is_up_to_date(changed.context("hidden_states"))  # another draft needs them: captured again


def test_states_stay_before_a_draft_is_trained_or_promoted(house: House) -> None:
    pipeline = house.run("hidden_states")
    store_states(house, pipeline, KEYS[:2])
    assert find.plan(with_retention(house, {"states": "after_training"})).items == []
    house.run("draft")
    assert find.plan(with_retention(house, {"states": "after_promotion"})).items == []
    assert rules(find.plan(with_retention(house, {"states": "after_training"}))) == {"states": ["hidden_states"]}


def test_states_shared_with_other_settings_stay(house: House) -> None:
    store_states(house, house.run(tokens={"value": 1}), KEYS[:4])
    pipeline = house.run("hidden_states", tokens={"value": 2})
    store = store_states(house, pipeline, KEYS[2:])
    apply.apply(with_retention(house, {"states": "after_training", "keep_superseded": 9}, tokens={"value": 2}))
    left = sorted(path.stem for path in store.glob("??/*.safetensors"))
    assert left == KEYS[2:]


def test_unreferenced_states_go_and_those_of_an_unfinished_capture_stay(house: House) -> None:
    pipeline = house.run()
    store_states(house, pipeline, KEYS)
    lines = (pipeline.context("hidden_states").out / "manifest.jsonl").read_text().splitlines()
    (pipeline.context("hidden_states").out / "manifest.jsonl").write_text("\n".join(lines[:4]) + "\n")
    plan = find.plan(pipeline)
    assert [(item.rule, item.bytes, item.keys) for item in plan.items] == [("unreferenced", 2000, tuple(KEYS[4:]))]
    record = pipeline.context("hidden_states").record()
    pipeline.context("hidden_states").state.write({**record, "status": "interrupted"})
    assert find.plan(pipeline).items == []
    pipeline.context("hidden_states").state.write(record)
    apply.apply(pipeline)
    assert find.plan(pipeline).items == []


def test_old_canary_goes_and_a_young_one_stays(house: House) -> None:
    house.run(dataset={"value": 1})
    house.run(run="main-canary", dataset={"value": 5})
    assert find.plan(with_retention(house, {}, dataset={"value": 1})).items == []
    later = find.plan(with_retention(house, {"canary_days": 7}, dataset={"value": 1}), now=time.time() + 8 * find.DAY_S)
    assert rules(later) == {"canary": ["main-canary"]}


def test_target_that_nothing_uses(house: House) -> None:
    house.run(target={"value": 1})
    house.run(run="other", target={"value": 2})
    house.promote(house.run(run="third", target={"value": 3}))
    shutil.rmtree(house.root / "runs" / "other")
    plan = find.plan(with_retention(house, {"unused_targets": True}, target={"value": 1}))
    stale = short(house.pipeline(target={"value": 2}).context("target").fingerprint)
    assert [(item.rule, item.digest) for item in plan.items] == [("target", stale)]
    assert find.plan(with_retention(house, {"unused_targets": False}, target={"value": 1})).items == []


def test_leftovers_and_old_logs_go_by_age(house: House) -> None:
    pipeline = house.run()
    base = pipeline.context("tokens").base
    places = {
        base / ".samples.parquet.x8.tmp": "leftover",
        house.root / "models" / "weights.safetensors.incomplete": "leftover",
        house.root / "drafts" / ".0123456789ab.q7": "leftover",
        house.root / "cache" / "tmp" / "torch-abc": "leftover",
        house.root / "server" / "log" / "baseline.log.2": "log",
    }
    for path in places:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (house.root / "server" / "log" / "baseline.log").write_text("x")
    assert find.plan(pipeline).items == []
    for path in places:
        age(path, 40)
    age(house.root / "server" / "log" / "baseline.log", 40)
    assert {item.path: item.rule for item in find.plan(pipeline).items} == {str(k): v for k, v in places.items()}
    apply.apply(pipeline)
    assert not any(path.exists() for path in places)
    assert verify.everything(pipeline)["ok"]


def test_plan_changes_nothing_on_disk(house: House) -> None:
    store_states(house, house.run(tokens={"value": 1}), KEYS)
    house.run(tokens={"value": 2})

    def picture() -> dict[str, tuple[int, int]]:
        return {str(p): (p.lstat().st_mtime_ns, p.lstat().st_size) for p in house.root.rglob("*")}

    before = picture()
    find.plan(with_retention(house, {"states": "after_training", "keep_superseded": 0}, tokens={"value": 2}))
    assert picture() == before


def test_command(house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    house.run(tokens={"value": 1})
    house.run(tokens={"value": 2})
    spec = tmp_path / "spec.json"
    declared = {**house.spec(tokens={"value": 2}), "execution": {"retention": {"keep_superseded": 0}}}
    spec.write_text(json.dumps(declared))
    assert main(["gc", "--spec", str(spec)]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert any(line.startswith("would free") for line in plan["lines"])
    assert main(["gc", "--spec", str(spec), "--apply", "--expect", plan["id"], "--text"]) == 0
    assert capsys.readouterr().out.strip().splitlines()[-1].startswith("freed ")


def test_misspelt_retention_is_refused(house: House) -> None:
    with pytest.raises(SpecError, match="Did you mean 'keep_superseded'"):
        find.plan(with_retention(house, {"keep_supersede": 1}))

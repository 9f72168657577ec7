"""A checkpoint folder that is there already: linked, checked, checksummed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eyrie.core import planner, runner
from eyrie.core.errors import EyrieError
from eyrie.core.pipeline import Pipeline
from tests.unit.target.conftest import CONFIG, files, write

Make = Callable[..., Pipeline]


def test_a_folder_is_linked_and_left_as_it_is(pipeline: Make, tmp_path: Path) -> None:
    source = write(tmp_path / "model", {**files(), "deep/more.json": b"{}"})
    before = sorted(source.rglob("*"))
    run = pipeline({"kind": "path", "path": str(source)})
    record = runner.run(run, "target")
    out = run.context("target").out
    assert out.parent == tmp_path / "root" / "models"
    assert (out / "model.safetensors").resolve() == source / "model.safetensors"
    assert (out / "deep" / "more.json").read_bytes() == b"{}"
    assert sorted(source.rglob("*")) == before
    assert record["account"]["kept"] == 6
    assert record["bytes"] == sum(len(data) for data in files().values()) + 2
    assert run.context("target").stage.verify(run.context("target")) == []


def test_the_files_are_the_identity_and_the_place_is_not(pipeline: Make, tmp_path: Path) -> None:
    one = write(tmp_path / "one", files())
    other = write(tmp_path / "other", files())
    source = {"kind": "path", "path": str(one)}
    first = pipeline(source).context("target").fingerprint
    assert pipeline({"kind": "path", "path": str(other)}).context("target").fingerprint == first
    (other / "config.json").write_text(json.dumps({**CONFIG, "rope_theta": 5}))
    assert pipeline({"kind": "path", "path": str(other)}).context("target").fingerprint != first


def test_what_only_later_stages_use_does_not_bring_the_model_again(pipeline: Make, tmp_path: Path) -> None:
    source = {"kind": "path", "path": str(write(tmp_path / "model", files()))}
    first = pipeline(source).context("target").fingerprint
    for change in ({"chat_template": "{{ x }}"}, {"aux_layers": [1, 2, 3]}, {"max_model_len": 99}):
        assert pipeline(source, target=change).context("target").fingerprint == first


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**CONFIG, "hidden_size": 16}, "hidden_size is 16, declared 8"),
        ({**CONFIG, "num_hidden_layers": 13}, "num_hidden_layers is 13, declared 12"),
        ({"text_config": {**CONFIG, "vocab_size": 41}}, "vocab_size is 41, declared 40"),
    ],
)
def test_another_model_than_the_declared_one_is_refused(
    pipeline: Make, tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    source = write(tmp_path / "model", files(config))
    with pytest.raises(EyrieError, match=message):
        runner.run(pipeline({"kind": "path", "path": str(source)}), "target")


def test_a_multimodal_config_is_read_where_its_text_model_is(pipeline: Make, tmp_path: Path) -> None:
    source = write(tmp_path / "model", files({"model_type": "vision", "text_config": CONFIG}))
    assert runner.run(pipeline({"kind": "path", "path": str(source)}), "target")["status"] == "done"


@pytest.mark.parametrize(
    ("lost", "code"),
    [
        ("config.json", "gate-refused"),
        ("model.safetensors", "target-no-weights"),
        ("tokenizer.json", "target-no-tokenizer"),
        ("chat_template.jinja", "target-no-template"),
    ],
)
def test_what_a_server_would_miss_is_missed_now(pipeline: Make, tmp_path: Path, lost: str, code: str) -> None:
    content = files()
    del content[lost]
    source = write(tmp_path / "model", content)
    with pytest.raises(EyrieError) as caught:
        runner.run(pipeline({"kind": "path", "path": str(source)}), "target")
    assert caught.value.code == code


def test_a_shard_that_the_index_names_must_be_there(pipeline: Make, tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    content = {**files(), "model.safetensors.index.json": json.dumps(index).encode(), "model-1.safetensors": b"x"}
    source = write(tmp_path / "model", content)
    with pytest.raises(EyrieError, match=r"Weights are missing: model-2\.safetensors"):
        runner.run(pipeline({"kind": "path", "path": str(source)}), "target")


def test_a_declared_template_stands_in_for_the_model_s_own(pipeline: Make, tmp_path: Path) -> None:
    source = write(tmp_path / "model", files(template=False))
    run = pipeline({"kind": "path", "path": str(source)}, target={"chat_template": "{{ messages }}"})
    assert runner.run(run, "target")["status"] == "done"


def test_damage_is_named_and_mended_by_the_next_run(pipeline: Make, tmp_path: Path) -> None:
    source = write(tmp_path / "model", files())
    run = pipeline({"kind": "path", "path": str(source)})
    runner.run(run, "target")
    ctx = run.context("target")
    (ctx.out / "tokenizer.json").unlink()
    (ctx.out / "config.json").unlink()
    (ctx.out / "config.json").write_text("{" + " " * (len(files()["config.json"]) - 2) + "}")
    assert sorted(Path(fault.where).name for fault in ctx.stage.verify(ctx)) == ["config.json", "tokenizer.json"]
    assert planner.plan(ctx)["up_to_date"] is False
    assert runner.run(pipeline({"kind": "path", "path": str(source)}), "target")["status"] == "done"
    assert ctx.stage.verify(ctx) == []
    assert not [item for item in ctx.out.parent.iterdir() if item.name.startswith(".")]


def test_a_second_run_name_finds_the_model_that_is_there(pipeline: Make, tmp_path: Path) -> None:
    source = {"kind": "path", "path": str(write(tmp_path / "model", files()))}
    runner.run(pipeline(source), "target")
    second = Pipeline({**pipeline(source).raw, "run": "second"})
    before = second.context("target").out.stat().st_ino
    assert runner.run(second, "target")["status"] == "done"
    assert second.context("target").out.stat().st_ino == before


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"kind": "package", "package": "no-such-model", "file": "m/model.gguf"}, "'no-such-model' is not installed"),
        ({"kind": "package", "package": "pytest", "file": "pytest/model.gguf"}, "holds no pytest/model.gguf"),
        ({"kind": "path", "path": "/nowhere"}, "holds no config.json"),
    ],
)
def test_a_model_that_is_not_there_is_refused_by_the_plan(pipeline: Make, source: dict[str, str], words: str) -> None:
    gates = planner.plan(pipeline(source).context("target"))["gates"]
    assert [gate["ok"] for gate in gates] == [False]
    assert words in gates[0]["message"]


def test_a_package_file_with_another_digest_is_refused(pipeline: Make) -> None:
    source = {"kind": "package", "package": "pytest", "file": "pytest/__init__.py", "sha256": "0" * 64}
    with pytest.raises(EyrieError, match="declared is 0000") as caught:
        runner.run(pipeline(source), "target")
    assert caught.value.code == "model-file-changed"

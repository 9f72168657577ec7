"""Download from a hub at a pinned commit, against one on a loopback port."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eyrie.core import runner
from eyrie.core.errors import EyrieError
from eyrie.core.pipeline import Pipeline
from tests.unit.target.conftest import files
from tests.unit.target.fake_hub import FakeHub

pytestmark = pytest.mark.node
REVISION = "0123456789abcdef0123456789abcdef01234567"
Make = Callable[..., Pipeline]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setattr("eyrie.target.hub.FIRST_PAUSE_S", 0.01)
    fake = FakeHub({**files(), "original/weights.pth": b"other format", ".gitattributes": b""}, REVISION)
    yield fake
    fake.close()


def declared(pipeline: Make, hub: FakeHub, revision: str = REVISION, **stage: object) -> Pipeline:
    source = {"kind": "hub", "repository": hub.repository, "revision": revision}
    return pipeline(source, stage={"endpoint": hub.endpoint, "workers": 2, **stage})


def test_every_file_of_the_commit_arrives_and_other_formats_do_not(pipeline: Make, hub: FakeHub) -> None:
    run = declared(pipeline, hub)
    record = runner.run(run, "target")
    out = run.context("target").out
    assert {name: (out / name).read_bytes() for name in files()} == files()
    assert record["account"]["kept"] == len(files())
    assert not (out / "original").exists()
    assert not (out / ".cache").exists()
    assert all((out / name).stat().st_mode & 0o044 == 0o044 for name in files())


def test_a_busy_hub_and_a_broken_connection_are_tried_again(pipeline: Make, hub: FakeHub) -> None:
    hub.faults["tokenizer.json"] = 2
    hub.torn.add("model.safetensors")
    run = declared(pipeline, hub)
    assert runner.run(run, "target")["status"] == "done"
    assert (run.context("target").out / "model.safetensors").read_bytes() == files()["model.safetensors"]


def test_an_interrupted_download_goes_on_with_what_is_missing(pipeline: Make, hub: FakeHub) -> None:
    hub.gated = "model.safetensors"
    with pytest.raises(EyrieError, match=r"maker/small/model\.safetensors"):
        runner.run(declared(pipeline, hub), "target")
    run = declared(pipeline, hub)
    assert not (run.context("target").out / "config.json").exists(), "nothing half-made stands in the model's place"
    hub.gated = ""
    hub.seen.clear()
    assert runner.run(run, "target")["status"] == "done"
    fetched = {path.rpartition("/")[2] for verb, path in hub.seen if verb == "GET" and "/resolve/" in path}
    assert fetched == {"model.safetensors"}


def test_a_file_that_is_not_what_the_hub_lists_is_refused(
    pipeline: Make, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = hub._listing

    def lies() -> dict[str, object]:
        listing = real()
        for entry in listing["siblings"]:
            if "lfs" in entry:
                entry["lfs"]["sha256"] = "f" * 64
        return listing

    monkeypatch.setattr(hub, "_listing", lies)
    with pytest.raises(EyrieError) as caught:
        runner.run(declared(pipeline, hub), "target")
    assert caught.value.code == "hub-file-damaged"


def test_a_gated_repository_says_what_to_do_and_no_token(pipeline: Make, hub: FakeHub, tmp_path: Path) -> None:
    hub.gated = "/"
    secret = tmp_path / "token"
    secret.write_text("hf_secretsecret\n")
    with pytest.raises(EyrieError) as caught:
        runner.run(declared(pipeline, hub, token_file=str(secret)), "target")
    assert caught.value.code == "hub-no-access"
    assert "eyrie_target_fetch_token_file" in caught.value.todo
    assert "hf_secret" not in str(caught.value)
    assert "Bearer hf_secretsecret" in hub.tokens
    state = declared(pipeline, hub).context("target").state.path
    assert not any("hf_secret" in item.read_text(errors="replace") for item in state.iterdir() if item.is_file())


def test_the_environment_s_token_is_used_when_no_file_is_declared(
    pipeline: Make, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_fromenv")
    runner.run(declared(pipeline, hub), "target")
    assert "Bearer hf_fromenv" in hub.tokens


def test_a_token_file_that_cannot_be_read_is_named(pipeline: Make, hub: FakeHub) -> None:
    with pytest.raises(EyrieError, match="/no/such/token"):
        runner.run(declared(pipeline, hub, token_file="/no/such/token"), "target")


def test_a_commit_that_is_not_there_is_named(pipeline: Make, hub: FakeHub) -> None:
    with pytest.raises(EyrieError) as caught:
        runner.run(declared(pipeline, hub, revision="f" * 40), "target")
    assert caught.value.code == "hub-no-revision"
    assert "f" * 40 in caught.value.where


def test_a_hub_that_is_not_there_is_said_after_some_tries(
    pipeline: Make, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eyrie.target.hub.TRIES", 2)
    hub.close()
    with pytest.raises(EyrieError) as caught:
        runner.run(declared(pipeline, hub), "target")
    assert caught.value.code == "hub-unreachable", caught.value
    assert "what has arrived is kept" in caught.value.todo


def test_a_disk_that_is_too_small_is_said_before_the_first_byte(
    pipeline: Make, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(EyrieError) as caught:
        runner.run(declared(pipeline, hub), "target")
    assert caught.value.code == "target-disk"
    assert not any("/resolve/" in path for _, path in hub.seen)


def test_offline_mode_of_other_stages_does_not_stop_this_one(
    pipeline: Make, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert runner.run(declared(pipeline, hub), "target")["status"] == "done"
    assert os.environ["HF_HUB_OFFLINE"] == "0"


@pytest.mark.parametrize(
    "name", ["../../escaped.safetensors", "/tmp/escaped.safetensors", "a/../../escaped.json", "..\\x.json"]
)
def test_a_file_that_would_lie_elsewhere_is_refused(pipeline: Make, hub: FakeHub, tmp_path: Path, name: str) -> None:
    hub.files[name] = b"hostile"
    with pytest.raises(EyrieError, match="would lie elsewhere") as caught:
        runner.run(declared(pipeline, hub), "target")
    assert caught.value.code == "hub-hostile-name"
    assert not list(tmp_path.rglob("*escaped*"))

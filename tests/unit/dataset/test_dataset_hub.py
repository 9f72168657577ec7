"""Hub sources against a small hub on loopback, with the real client: pins, gates, limits, cuts, offline."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path

import pytest
from dataset_hub import Hub, Repository, commit
from dataset_run import command, prompts, run, spec, summary
from dataset_toy import chat

from eyrie.core import planner
from eyrie.core.errors import EyrieError, GateError
from eyrie.core.pipeline import Pipeline
from eyrie.core.spec import load
from eyrie.dataset.hub import Access, fetch
from eyrie.dataset.settings import Source

pytestmark = pytest.mark.node

ONE, TWO = commit(1), commit(2)
SECRET = "hf_right"


def lines(prefix: str, count: int = 5) -> bytes:
    return "".join(json.dumps(chat(f"{prefix} {n}", "a" * 200)) + "\n" for n in range(count)).encode()


def repository(**more):
    commits = {
        ONE: {"train.jsonl": lines("old"), "README.md": b"#"},
        TWO: {"train.jsonl": lines("new"), "README.md": b"#"},
    }
    return Repository(**{"commits": commits, "branches": {"main": ONE}, **more})


@pytest.fixture(autouse=True)
def no_token_from_outside(monkeypatch):
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub():
    with Hub({"org/chat": repository(), "org/gated": repository(gated=True)}) as server:
        yield server


def entry(name="org/chat", **more):
    return {"kind": "hub", "repository": name, "revision": ONE, "files": ["train.jsonl"], "adapter": "messages", **more}


def value(tmp_path, hub, registry, **settings):
    return spec(tmp_path / "root", registry, **{"endpoint": hub.url, "retries": 0, **settings})


def locked_by(tmp_path):
    return json.loads((tmp_path / "root/runs/main/dataset/lock.json").read_text())


def test_a_pinned_revision_is_what_is_read_and_locked(tmp_path, hub):
    hub.repositories["org/chat"].branches["main"] = TWO
    ctx = run(value(tmp_path, hub, {"one": entry()}))
    assert sorted(prompts(ctx)) == [f"old {n}" for n in range(5)]
    locked = locked_by(tmp_path)["one"]
    assert (locked["revision"], list(locked["files"])) == (ONE, ["train.jsonl"])
    assert all(ONE in path for path in hub.paths() if "resolve" in path)
    assert json.loads((ctx.out / "lock.json").read_text())["one"]["files"] == locked["files"]
    assert str(tmp_path / "root/cache/hf") in str(next((tmp_path / "root").rglob("train.jsonl")))


def test_another_pin_is_a_difference_in_the_plan(tmp_path, hub):
    run(value(tmp_path, hub, {"one": entry()}))
    plan = planner.plan(Pipeline(value(tmp_path, hub, {"one": entry(revision=TWO)})).context("dataset"))
    assert [(item["name"], item["current"], item["desired"]) for item in plan["differences"]] == [
        ("settings.source.one.revision", ONE, TWO)
    ]
    assert (plan["forecast"]["sources"][0]["act"], plan["forecast"]["sources"][0]["was"]) == ("fetch and process", ONE)
    assert sorted(prompts(run(value(tmp_path, hub, {"one": entry(revision=TWO)})))) == [f"new {n}" for n in range(5)]


def test_a_source_without_revision_is_resolved_locked_and_stays(tmp_path, hub):
    ctx = run(value(tmp_path, hub, {"one": entry(revision="")}))
    assert locked_by(tmp_path)["one"]["revision"] == ONE
    assert any("Pin it" in line for line in ctx.record()["figures"]["warnings"])
    hub.repositories["org/chat"].branches["main"] = TWO
    asked = len(hub.requests)
    again = run(value(tmp_path, hub, {"one": entry(revision="")}, samples=3))
    assert len(hub.requests) == asked, "a locked commit in the cache needs no request"
    assert all(prompt.startswith("old") for prompt in prompts(again))
    fresh = run(value(tmp_path, hub, {"one": entry(revision="")}, refresh=1))
    assert all(prompt.startswith("new") for prompt in prompts(fresh))
    assert locked_by(tmp_path)["one"]["revision"] == TWO


def test_a_branch_that_moved_stops_until_told(tmp_path, hub):
    run(value(tmp_path, hub, {"one": entry(revision="main")}))
    hub.repositories["org/chat"].branches["main"] = TWO
    with pytest.raises(EyrieError, match=f"has moved from {ONE[:12]} to {TWO[:12]}") as caught:
        run(value(tmp_path, hub, {"one": entry(revision="main")}, samples=3))
    assert "eyrie_dataset_refresh" in str(caught.value)
    offline = run(value(tmp_path, hub, {"one": entry(revision="main")}, samples=2, offline=True))
    assert all(prompt.startswith("old") for prompt in prompts(offline))
    told = run(value(tmp_path, hub, {"one": entry(revision="main")}, samples=3, refresh=1))
    assert all(prompt.startswith("new") for prompt in prompts(told))


@pytest.mark.parametrize("name", ["org/gated", "org/nowhere"])
@pytest.mark.parametrize("token", ["", "hf_wrong"])
def test_gated_or_no_token(tmp_path, hub, name, token, monkeypatch, caplog, capfd):
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    registry = {"fine": entry(), "closed": entry(name)}
    with pytest.raises(EyrieError, match="1 of 2 sources failed: closed") as caught:
        run(value(tmp_path, hub, registry))
    assert caught.value.code == "source-failed-gated-or-no-token"
    assert ("the token at hand has no access" if token else "there is no token") in caught.value.why
    assert len([path for path in hub.paths() if name in path]) == 1, "a closed door is not knocked at twice"
    if token:
        everything = str(caught.value) + caplog.text + "".join(capfd.readouterr())
        everything += "".join(
            path.read_text("latin-1") for path in (tmp_path / "root/runs").rglob("*") if path.is_file()
        )
        assert token not in everything


def test_declared_gated_without_a_token_is_refused_by_the_plan(tmp_path, hub):
    gated = value(tmp_path, hub, {"one": entry("org/gated", gated=True)})
    with pytest.raises(GateError, match="is gated and there is no token"):
        run(gated)
    assert hub.requests == []


@pytest.mark.parametrize("way", ["environment", "file", "path"])
def test_the_token_goes_into_headers_and_nowhere_else(tmp_path, hub, way, monkeypatch):
    root = tmp_path / "root"
    if way == "environment":
        monkeypatch.setenv("HF_TOKEN", SECRET)
    else:
        path = root / "secrets" / "hf_token" if way == "file" else tmp_path / "token"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SECRET + "\n")
        path.chmod(0o600)
        if way == "path":
            monkeypatch.setenv("HF_TOKEN_PATH", str(path))
    ctx = run(value(tmp_path, hub, {"one": entry("org/gated", gated=True)}))
    assert len(prompts(ctx)) == 5
    assert {seen for _, _, seen, _ in hub.requests} == {f"Bearer {SECRET}"}
    for path in root.rglob("*"):
        if path.is_file() and "secrets" not in path.parts:
            assert SECRET.encode() not in path.read_bytes(), path


@pytest.fixture
def slept(monkeypatch):
    """What was waited for, without waiting: by the client between its attempts, and by us between its rounds."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    return waits


def fetched(tmp_path, hub, retries=0, **more):
    """Fetch in this process; (name, bytes) of each file."""
    source = load(Source, entry(**more), "registry.one")
    access = Access(str(tmp_path / "root/cache/hf/hub"), endpoint=hub.url, retries=retries)
    found = fetch("one", source, access, {}, lambda *told: None)
    return [(name, Path(path).read_bytes()) for name, path in found.files]


def test_busy_answers_are_waited_out_as_long_as_asked(tmp_path, hub, slept):
    hub.retry_after = "7"
    hub.busy["api"], hub.busy["HEAD"], hub.busy["GET"] = 2, 1, 1
    assert fetched(tmp_path, hub, retries=2) == [("train.jsonl", lines("old"))]
    assert len(hub.refused) == 4
    assert [wait >= 7 for wait in slept] == [True] * 4


def test_a_busy_hub_without_a_time_is_asked_less_and_less_often(tmp_path, hub, slept):
    hub.retry_after = ""
    hub.busy["api"] = 3
    assert fetched(tmp_path, hub, retries=3) == [("train.jsonl", lines("old"))]
    assert slept == sorted(slept)
    assert slept[0] >= 1


def test_the_stage_waits_too(tmp_path, hub):
    hub.busy["api"] = 1
    began = time.monotonic()
    assert len(prompts(run(value(tmp_path, hub, {"one": entry()}, retries=1)))) == 5
    assert time.monotonic() - began >= 1
    assert len(hub.refused) == 1


def test_a_hub_that_stays_busy_fails_the_source_and_keeps_the_rest(tmp_path, hub, slept):
    hub.busy["HEAD"] = 100
    with pytest.raises(EyrieError, match=r"stayed busy \(HTTP 429\) through 3 rounds") as caught:
        fetched(tmp_path, hub, retries=2)
    assert caught.value.code == "hub-busy"
    assert len(slept) == 2
    assert min(slept) >= 1
    hub.busy.clear()
    assert len(prompts(run(value(tmp_path, hub, {"one": entry()})))) == 5


def test_ten_sources_ask_a_few_at_a_time(tmp_path, hub):
    for number in range(10):
        hub.repositories[f"org/r{number}"] = Repository({ONE: {"train.jsonl": lines(f"r{number}", 3)}}, {"main": ONE})
    registry = {f"r{number}": entry(f"org/r{number}") for number in range(10)}
    ctx = run(value(tmp_path, hub, registry, downloads=3))
    assert len(prompts(ctx)) == 30
    assert hub.most <= 3


def test_a_connection_that_is_cut_resumes_where_it_was(tmp_path, hub, slept, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50_000)
    data = lines("big", 2000)
    hub.repositories["org/chat"].commits[ONE]["train.jsonl"] = data
    hub.cut = [150_000, 140_000]
    assert fetched(tmp_path, hub) == [("train.jsonl", data)]
    starts = [int(asked.removeprefix("bytes=").split("-")[0]) for _, _, _, asked in hub.requests if asked]
    assert len(starts) == 2
    assert 0 < starts[0] < starts[1] < len(data)
    asked = len([path for path in hub.paths("GET") if "resolve" in path])
    assert len(prompts(run(value(tmp_path, hub, {"one": entry()})))) == 2000
    assert len([path for path in hub.paths("GET") if "resolve" in path]) == asked, (
        "what was fetched is not fetched again"
    )


def test_a_file_other_than_announced_is_not_trusted(tmp_path, hub):
    """The hub's list names a checksum; a proxy that serves something else is found out, and nothing is kept."""
    import dataset_hub

    original = dataset_hub.hashlib.sha256
    data = hub.repositories["org/chat"].commits[ONE]["train.jsonl"]
    wrong = data.replace(b"old 1", b"OLD 1")

    class Lying(dict):
        def get(self, key, default=None):
            return wrong if key == "train.jsonl" else super().get(key, default)

    hub.repositories["org/chat"].commits[ONE] = Lying({"train.jsonl": data})
    with pytest.raises(EyrieError, match="has checksum") as caught:
        run(value(tmp_path, hub, {"one": entry()}))
    assert caught.value.code == "source-failed-checksum"
    assert original is dataset_hub.hashlib.sha256
    hub.repositories["org/chat"].commits[ONE] = {"train.jsonl": data}
    assert len(prompts(run(value(tmp_path, hub, {"one": entry()})))) == 5


def test_offline_uses_the_cache_and_names_it(tmp_path, hub, monkeypatch):
    with pytest.raises(EyrieError, match="is not in the cache") as caught:
        run(value(tmp_path, hub, {"one": entry()}, offline=True))
    assert "HF_HUB_OFFLINE" in str(caught.value)
    assert str(tmp_path / "root/cache/hf/hub") in str(caught.value)
    assert hub.requests == []
    run(value(tmp_path, hub, {"one": entry()}))
    asked = len(hub.requests)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert len(prompts(run(value(tmp_path, hub, {"one": entry()}, samples=3)))) == 3
    assert len(hub.requests) == asked


def test_without_a_network_the_error_says_so(tmp_path, hub, slept):
    hub.down = True
    with pytest.raises(EyrieError, match="could not be fetched") as caught:
        fetched(tmp_path, hub, retries=1)
    assert "eyrie_dataset_offline" in str(caught.value)
    assert slept, "it was tried more than once"


def test_a_revision_that_is_not_there(tmp_path, hub):
    with pytest.raises(EyrieError, match="has no revision"):
        run(value(tmp_path, hub, {"one": entry(revision="f" * 40)}))


def test_files_that_are_not_there_are_answered_with_those_that_are(tmp_path, hub):
    with pytest.raises(EyrieError, match=r"matches data/train-\*") as caught:
        run(value(tmp_path, hub, {"one": entry(files=["data/train-*"])}))
    assert "train.jsonl" in str(caught.value)


def test_a_repository_with_a_loading_script_only(tmp_path, hub):
    hub.repositories["org/script"] = Repository(
        {ONE: {"script.py": b"raise SystemExit", "README.md": b""}}, {"main": ONE}
    )
    with pytest.raises(EyrieError, match="loading script") as caught:
        run(value(tmp_path, hub, {"one": entry("org/script")}))
    assert "refs/convert/parquet" in str(caught.value)
    assert not [path for path in hub.paths("GET") if path.endswith(".py")]


@pytest.mark.parametrize(
    ("card", "names"),
    [
        ({}, ["data/train-0.jsonl"]),
        (
            {"configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/train-*"}]}]},
            ["data/train-0.jsonl"],
        ),
        (
            {
                "configs": [
                    {"config_name": "other", "data_files": [{"split": "train", "path": ["x/a.jsonl"]}]},
                    {"config_name": "default", "data_files": "data/*"},
                ]
            },
            ["data/test-0.jsonl", "data/train-0.jsonl"],
        ),
    ],
)
def test_a_split_is_found_by_the_card_or_by_custom(tmp_path, hub, card, names):
    tree = {"data/train-0.jsonl": lines("train"), "data/test-0.jsonl": lines("test"), "x/a.jsonl": lines("x")}
    hub.repositories["org/split"] = Repository({ONE: tree}, {"main": ONE}, card=card)
    run(value(tmp_path, hub, {"one": entry("org/split", files=[], split="train")}))
    assert list(locked_by(tmp_path)["one"]["files"]) == names


def test_packed_files_from_the_hub(tmp_path, hub):
    hub.repositories["org/chat"].commits[ONE]["train.jsonl"] = gzip.compress(lines("packed"))
    assert len(prompts(run(value(tmp_path, hub, {"one": entry()})))) == 5


@pytest.mark.slow
def test_kill_during_a_download(tmp_path, hub):
    """A run that is killed while it fetches leaves nothing that the next one takes for whole."""
    hub.repositories["org/chat"].commits[ONE]["train.jsonl"] = lines("big", 4000)
    hub.repositories["org/second"] = Repository({ONE: {"train.jsonl": lines("second")}}, {"main": ONE})
    wanted = value(tmp_path, hub, {"one": entry(), "second": entry("org/second")})
    hub.cut = [100_000] * 50
    process = command(wanted, tmp_path)
    deadline = time.monotonic() + 60
    while not [path for path in hub.paths("GET") if "resolve" in path] and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.communicate()
    hub.cut = []
    ctx = run(wanted)
    assert len(prompts(ctx)) == 4005
    assert summary(ctx)["sources"]["one"]["kept"] == 4000
    assert os.environ.get("HF_TOKEN") is None

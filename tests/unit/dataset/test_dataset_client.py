"""The real `datasets` library and the stage, side by side on one small hub: the same revision, the same rows, the same
refusals."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys

import pytest
from dataset_hub import Hub, Repository, commit
from dataset_run import rows, run, spec
from dataset_toy import chat

from eyrie.core.errors import EyrieError

pytestmark = pytest.mark.node

ONE, TWO = commit(1), commit(2)

#: answers a list of [load_dataset arguments] with [rows] or an error's text each
CLIENT = """
import json, sys
import datasets
datasets.disable_progress_bars()
out = []
for arguments in json.loads(sys.stdin.read()):
    try:
        out.append(list(datasets.load_dataset(**arguments)))
    except Exception as error:
        out.append(f"{type(error).__name__}: {error}")
print(json.dumps(out))
"""

CONFIGS = [
    {
        "config_name": "short",
        "default": True,
        "data_files": [
            {"split": "train", "path": "short/train-*.parquet"},
            {"split": "test", "path": "short/test-*.parquet"},
        ],
    },
    {"config_name": "long", "data_files": [{"split": "train", "path": "long/train-*"}]},
]
NAMED = [{"config_name": "mine", "data_files": [{"split": "train", "path": ["one.jsonl", "two.jsonl.gz"]}]}]


def card(configs: list[dict]) -> bytes:
    """README.md of a repository; YAML reads JSON."""
    return f"---\nconfigs: {json.dumps(configs)}\n---\n".encode()


def table(name: str, count: int) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([chat(f"{name} {n}", "a", "b", f"c {n}") for n in range(count)]), sink)
    return sink.getvalue()


def lines(name: str, count: int) -> bytes:
    return "".join(json.dumps(chat(f"{name} {n} \u00fc", "a\n")) + "\n" for n in range(count)).encode()


def tables(prefix: str) -> dict[str, bytes]:
    return {
        "README.md": card(CONFIGS),
        "short/train-00000-of-00002.parquet": table(f"{prefix} first", 4),
        "short/train-00001-of-00002.parquet": table(f"{prefix} second", 3),
        "short/test-00000-of-00001.parquet": table(f"{prefix} test", 2),
        "long/train-00000-of-00001.parquet": table(f"{prefix} long", 6),
    }


def texts(prefix: str) -> dict[str, bytes]:
    return {
        "README.md": card(NAMED),
        "one.jsonl": lines(f"{prefix} one", 3),
        "two.jsonl.gz": gzip.compress(lines(f"{prefix} two", 3)),
        "three.jsonl": lines(f"{prefix} three", 3),
    }


@pytest.fixture(scope="module")
def hub():
    """Repositories with configurations whose branch has moved on, a gated one, and one that is a script."""
    plain = Repository({ONE: {"data/train-0.jsonl": lines("by custom", 5), "README.md": b""}}, {"main": ONE})
    repositories = {
        "org/tables": Repository({ONE: tables("old"), TWO: tables("new")}, {"main": TWO}, card={"configs": CONFIGS}),
        "org/texts": Repository({ONE: texts("old"), TWO: texts("new")}, {"main": TWO}, card={"configs": NAMED}),
        "org/plain": plain,
        "org/gated": Repository(plain.commits, plain.branches, gated=True),
        "org/script": Repository({ONE: {"script.py": b"raise SystemExit", "README.md": b""}}, {"main": ONE}),
    }
    with Hub(repositories) as server:
        yield server


@pytest.fixture(scope="module")
def client(hub, tmp_path_factory):
    """What the library answers, by name of the question."""
    pinned = {"revision": ONE, "split": "train"}
    asked = {
        "short": pinned | {"path": "org/tables", "name": "short"},
        "long": pinned | {"path": "org/tables", "name": "long"},
        "default": pinned | {"path": "org/tables"},
        "texts": pinned | {"path": "org/texts"},
        "streamed": pinned | {"path": "org/texts", "streaming": True},
        "plain": pinned | {"path": "org/plain"},
        "gated": pinned | {"path": "org/gated"},
        "opened": pinned | {"path": "org/gated", "token": hub.token},
        "script": pinned | {"path": "org/script"},
    }
    home = tmp_path_factory.mktemp("home")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CLIENT],
        input=json.dumps(list(asked.values())),
        capture_output=True,
        text=True,
        env=environment,
        cwd=home,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(asked, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.fixture(autouse=True)
def no_token_from_outside(monkeypatch):
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


def ours(tmp_path, hub, registry):
    """{source: its rows} of one run over all of them, in the order of the files."""
    entries = {
        name: {"kind": "hub", "revision": ONE, "split": "train", "adapter": "messages", **entry}
        for name, entry in registry.items()
    }
    ctx = run(spec(tmp_path / "root", entries, endpoint=hub.url, retries=0, dedup="none"))
    found: dict[str, list] = {name: [] for name in registry}
    for row in sorted(rows(ctx), key=lambda row: row["row"]):
        found[row["source"]].append({"messages": json.loads(row["conversation"])})
    return found


def test_the_library_and_the_stage_read_the_same_rows(tmp_path, hub, client):
    found = ours(
        tmp_path,
        hub,
        {
            "short": {"repository": "org/tables", "config": "short"},
            "long": {"repository": "org/tables", "config": "long"},
            "default": {"repository": "org/tables"},
            "texts": {"repository": "org/texts"},
            "plain": {"repository": "org/plain"},
        },
    )
    assert {name: len(mine) for name, mine in found.items()} == {
        "short": 7,
        "long": 6,
        "default": 7,
        "texts": 6,
        "plain": 5,
    }
    for name, mine in found.items():
        assert mine == client[name], name
    assert found["short"][0]["messages"][0]["content"] == "old first 0", "the pin is read, not the branch"
    assert client["streamed"] == client["texts"]


def test_a_token_opens_the_gate_for_both(tmp_path, hub, client, monkeypatch):
    assert client["gated"].startswith("DatasetNotFoundError"), client["gated"]
    with pytest.raises(EyrieError, match="is gated or does not exist for us") as caught:
        ours(tmp_path, hub, {"gated": {"repository": "org/gated"}})
    assert caught.value.code == "source-failed-gated-or-no-token"
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert ours(tmp_path, hub, {"gated": {"repository": "org/gated"}})["gated"] == client["opened"] == client["plain"]


def test_neither_runs_a_loading_script(tmp_path, hub, client):
    assert "scripts are no longer supported" in client["script"]
    with pytest.raises(EyrieError, match="loading script"):
        ours(tmp_path, hub, {"script": {"repository": "org/script"}})

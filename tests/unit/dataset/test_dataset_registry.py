"""The registry as it is shipped: entries that load, pins that are commits, schemas that the adapters read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dataset_toy import jsonl, read

from eyrie.core import spec
from eyrie.dataset.settings import Settings

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.node

GROUPS = Path(__file__).parents[3] / "inventory" / "group_vars"
TEN = [
    "sharegpt",
    "ultrachat",
    "perfectblend",
    "magpie",
    "gsm8k",
    "evol_code",
    "magicoder",
    "hermes_tools",
    "wildchat",
    "openthoughts",
]


def settings(profile: str) -> Settings:
    values = {}
    for group in ("all", profile):
        values |= yaml.safe_load((GROUPS / group / "dataset.yml").read_text())
    composed = values.pop("eyrie_dataset")
    plain = {name: values[f"eyrie_dataset_{name}"] for name in composed}
    assert {f"eyrie_dataset_{name}" for name in composed} == {
        name for name in values if name != "eyrie_dataset_hub_token"
    }
    return spec.load(Settings, plain, "dataset")


@pytest.mark.parametrize("profile", ["local", "rtx6000bw", "b200nvl8"])
def test_every_profile_loads(profile):
    loaded = settings(profile)
    assert set(loaded.registry) >= set(TEN)
    assert loaded.sources == (["generated", "chatterbot"] if profile == "local" else TEN)


def test_hub_entries_are_pinned_to_commits():
    from eyrie.dataset.hub import is_commit

    for name, entry in settings("rtx6000bw").registry.items():
        if entry.kind == "hub":
            assert is_commit(entry.revision), name
            assert entry.licence, name
            assert entry.bytes > 0, name


#: one made-up row in the schema of each of the ten, and the roles that it must give
ROWS = {
    "sharegpt": (
        {"id": "a_0", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        "ua",
    ),
    "ultrachat": (
        {
            "prompt": "q",
            "prompt_id": "0f",
            "messages": [{"content": "q", "role": "user"}, {"content": "a", "role": "assistant"}],
        },
        "ua",
    ),
    "perfectblend": (
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "source": "s"},
        "ua",
    ),
    "magpie": (
        {
            "uuid": "u",
            "instruction": "q",
            "response": "a",
            "task_category": "Math",
            "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
        },
        "ua",
    ),
    "gsm8k": ({"question": "q", "answer": "a #### 4"}, "ua"),
    "evol_code": ({"instruction": "q", "output": "a"}, "ua"),
    "magicoder": ({"lang": "python", "raw_index": 1, "index": 2, "seed": "s", "problem": "q", "solution": "a"}, "ua"),
    "hermes_tools": (
        {
            "id": "h",
            "conversations": [
                {"from": "system", "value": "Function signatures are within <tools>[]</tools>."},
                {"from": "human", "value": "q"},
                {"from": "gpt", "value": '<tool_call>\n{"arguments": {"n": 1}, "name": "f"}\n</tool_call>\n'},
                {"from": "tool", "value": '<tool_response>\n{"name": "f", "content": 1}\n</tool_response>\n'},
                {"from": "gpt", "value": "a"},
            ],
            "tools": json.dumps([{"type": "function", "function": {"name": "f", "parameters": {}}}]),
            "category": "c",
        },
        "uata",
    ),
    "wildchat": (
        {
            "conversation_hash": "0",
            "model": "m",
            "language": "German",
            "toxic": False,
            "conversation": [
                {
                    "content": "q",
                    "role": "user",
                    "language": "German",
                    "header": {"user-agent": None},
                    "turn_identifier": 1,
                },
                {"content": "a", "role": "assistant", "language": "German", "header": None, "turn_identifier": 1},
            ],
        },
        "ua",
    ),
    "openthoughts": (
        {
            "system": "Think.",
            "conversations": [
                {"from": "user", "value": "q"},
                {
                    "from": "assistant",
                    "value": "<|begin_of_thought|>\n\nr\n\n<|end_of_thought|>\n\n"
                    "<|begin_of_solution|>\n\na\n\n<|end_of_solution|>",
                },
            ],
        },
        "sua",
    ),
}


@pytest.mark.parametrize("name", TEN)
@pytest.mark.parametrize("form", ["lines", "table"])
def test_an_entry_reads_its_schema(tmp_path, name, form):
    row, roles = ROWS[name]
    entry = settings("rtx6000bw").registry[name]
    if form == "lines":
        path = jsonl(tmp_path / "in.jsonl", [row])
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = tmp_path / "in.parquet"
        pq.write_table(pa.Table.from_pylist([row]), path)
    got = read(
        path, tmp_path / "out", adapter=entry.adapter, columns=entry.columns, think=entry.think, answer=entry.answer
    )
    assert "".join(turn["role"][0] for turn in got.rows[0]["conversation"]) == roles
    assert got.rows[0]["conversation"][-1]["content"].startswith("a")
    if name == "openthoughts":
        assert got.rows[0]["conversation"][-1] == {"role": "assistant", "content": "a", "reasoning": "r"}
    if name == "hermes_tools":
        call, result = got.rows[0]["conversation"][1:3]
        assert call["tool_calls"][0]["id"] == result["tool_call_id"]

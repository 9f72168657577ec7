"""Prompt sets from question files and from what the dataset held back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from eyrie.benchmark import prompts
from eyrie.benchmark.settings import PromptFile
from eyrie.core.errors import EyrieError


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"turns": ["first?", "second?"]}, [{"role": "user", "content": "first?"}]),
        ({"prompt": "say"}, [{"role": "user", "content": "say"}]),
        (
            {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
            [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        ),
        ({"turns": []}, None),
        ({"turns": [""]}, None),
        ({"turns": [7]}, None),
        ({"question": "how many?", "answer": "#### 3"}, [{"role": "user", "content": "how many?"}]),
        ({"task_id": "T/0", "prompt": "def f():\n", "test": "assert f"}, [{"role": "user", "content": "def f():\n"}]),
        ({"instruction": "Sum up.", "input": "", "output": "x"}, [{"role": "user", "content": "Sum up."}]),
        ({"instruction": "Sum up.", "input": "A.", "output": "x"}, [{"role": "user", "content": "Sum up.\n\nA."}]),
        ({"turns": [""], "prompt": "say"}, [{"role": "user", "content": "say"}]),
        ({"answer": "?"}, None),
        ({"input": "alone"}, None),
        (["turns"], None),
    ],
)
def test_rows_of_question_files(row: object, expected: object) -> None:
    assert prompts.as_messages(row) == expected


@pytest.mark.parametrize(
    ("roles", "count"),
    [
        (["user", "assistant"], 1),
        (["system", "user", "assistant", "user"], 2),
        (["assistant", "user"], None),
        ([], None),
    ],
)
def test_the_first_turn_ends_at_the_first_user(roles: list[str], count: int | None) -> None:
    found = prompts.first_turn([{"role": role, "content": role, "tool_calls": None} for role in roles])
    assert (len(found) if found is not None else None) == count
    assert found is None or "tool_calls" not in found[0]


def test_lines_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text('{"turns": ["a"]}\n{"turns"\n\n{"other": 1}\n{"turns": ["b"]}\n{"turns": ["c"]}\n')
    found = prompts.from_file(PromptFile("own", "q"), file)
    assert [row["messages"][0]["content"] for row in found.rows] == ["a", "b", "c"]
    assert found.skipped == {"not JSON": 1, "no question": 1}
    assert len(prompts.from_file(PromptFile("own", "q", limit=2), file).rows) == 2


#: lines as the public sets have them: MT-bench, GSM8K, HumanEval, question answering, summaries
SETS = {
    "mt_bench": {"question_id": 81, "category": "writing", "turns": ["Write a limerick.", "Now a haiku."]},
    "gsm8k": {"question_id": 0, "category": "math", "turns": ["Two and two?"], "reference": ["4\n#### 4"]},
    "humaneval": {"question_id": 3, "category": "code", "turns": ["def f(x):\n    "], "reference": ["return x"]},
    "qa": {"question_id": 321, "category": "qa", "turns": ["who wrote it"]},
    "alpaca": {"question_id": 1, "category": "", "turns": ["Name one."], "reference": ["One."]},
    "sum": {"question_id": 241, "category": "summarization", "turns": ["Summarize: it rained\u2026"]},
}


@pytest.mark.parametrize("name", list(SETS))
def test_lines_of_the_public_sets_are_asked_with_their_first_turn(tmp_path: Path, name: str) -> None:
    file = tmp_path / f"{name}.jsonl"
    file.write_text(json.dumps(SETS[name]) + "\n", "utf-8")
    found = prompts.from_file(PromptFile(name, file.name), file)
    assert [row["messages"] for row in found.rows] == [[{"role": "user", "content": SETS[name]["turns"][0]}]]
    assert found.skipped == {}


def test_question_files_are_read_whole(tmp_path: Path) -> None:
    """Files of all sets; with EYRIE_BENCH_PROMPTS those of that folder instead: every line is a question."""
    given = Path(os.environ.get("EYRIE_BENCH_PROMPTS") or tmp_path)
    if given == tmp_path:
        for name, line in SETS.items():
            (tmp_path / f"{name}.jsonl").write_text(3 * (json.dumps(line) + "\n"), "utf-8")
    files = sorted(given.glob("*.jsonl"))
    assert len(files) >= 3
    for file in files:
        found = prompts.from_file(PromptFile(file.stem, file.name), file)
        assert found.skipped == {}
        assert len(found.rows) == sum(bool(line.strip()) for line in file.read_text("utf-8").splitlines()) > 0


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00bad"])
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "q.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(EyrieError) as caught:
        prompts.from_file(PromptFile("own", "q"), file)
    assert caught.value.code == "prompt-file-unreadable"
    assert str(file) in str(caught.value)


def rendered(*lengths: int) -> list[dict]:
    return [{"text": f"prompt {number}", "tokens": length} for number, length in enumerate(lengths)]


def test_too_long_prompts_are_passed_over_and_counted() -> None:
    found = prompts.PromptSet("open", "eval.parquet")
    prompts.take(found, rendered(10, 999, 20, 30), 2, room=100)
    assert found.tokens == [10, 20]
    assert found.skipped == {"longer than the server's context": 1}
    assert found.as_dict()["mean_tokens"] == 15.0


def test_a_set_in_which_nothing_fits_is_an_error() -> None:
    with pytest.raises(EyrieError, match="fits into 5 tokens"):
        prompts.take(prompts.PromptSet("open", "x"), rendered(10), 2, room=5)


def test_prompts_are_repeated_only_where_there_are_too_few(tmp_path: Path) -> None:
    found = prompts.PromptSet("open", "x")
    prompts.take(found, rendered(1, 2), 4, room=100)
    file = tmp_path / "p.jsonl"
    assert prompts.write(found, 2, file) is False
    assert prompts.write(found, 3, file) is True
    assert [json.loads(line)["prompt"] for line in file.read_text().splitlines()] == [
        "prompt 0",
        "prompt 1",
        "prompt 0",
    ]

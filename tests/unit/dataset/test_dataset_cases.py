"""Known ways in which data sets are malformed, each with its right outcome."""

from __future__ import annotations

import json

import pytest
from dataset_toy import chat, jsonl, read

pytestmark = pytest.mark.node

USER, BOT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


def turns(*items):
    return {"messages": list(items)}


def test_sharegpt_turns_become_roles(tmp_path):
    rows = [
        {"conversations": [{"from": "human", "value": "What is a prism?"}, {"from": "gpt", "value": "A glass body."}]},
        {
            "conversations": [
                {"from": "system", "value": "Short."},
                {"from": "human", "value": "1+1?"},
                {"from": "gpt", "value": "2"},
            ]
        },
    ]
    got = read(jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out", adapter="sharegpt")
    assert got.roles() == [["user", "assistant"], ["system", "user", "assistant"]]
    assert got.texts()[0] == ["What is a prism?", "A glass body."]
    assert (got.dropped, got.failed, got.notes) == ({}, {}, {})


@pytest.mark.parametrize("adapter", ["messages", "sharegpt"])
def test_both_schemas_in_one_row_take_what_is_not_null(tmp_path, adapter):
    first = [
        {"from": None, "value": None, "role": "user", "content": "Name a lake."},
        {"from": None, "value": None, "role": "assistant", "content": "The Mueritz."},
    ]
    second = [
        {"from": "human", "value": "Name a peak.", "role": None, "content": None},
        {"from": "gpt", "value": "The Brocken.", "role": float("nan"), "content": None},
    ]
    got = read(
        jsonl(tmp_path / "in.jsonl", [{"messages": first}, {"messages": second}]), tmp_path / "out", adapter=adapter
    )
    assert got.roles() == [["user", "assistant"]] * 2
    assert got.texts() == [["Name a lake.", "The Mueritz."], ["Name a peak.", "The Brocken."]]


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ({"role": "user", "from": "gpt", "content": "x"}, "role_conflict"),
        ({"role": "user", "content": "x", "value": "y"}, "content_conflict"),
        ({"role": "narrator", "content": "x"}, "unknown_role"),
        ({"role": 3, "content": "x"}, "unknown_role"),
        ({"content": "x"}, "unknown_role"),
        ("just text", "bad_turn"),
        ({"role": "user", "content": 7}, "bad_content"),
        ({"role": "user", "content": {"a": 1}}, "bad_content"),
    ],
)
def test_a_turn_that_cannot_be_read_rejects_the_row(tmp_path, turn, reason):
    """In particular an unknown role is never an assistant."""
    got = read(jsonl(tmp_path / "in.jsonl", [turns(USER, BOT), turns(turn, BOT)]), tmp_path / "out")
    assert got.dropped == {reason: 1}
    assert got.examples[reason] == ["in.jsonl:2"]
    assert len(got.rows) == 1


@pytest.mark.parametrize(
    ("spelling", "role"),
    [
        ("User", "user"),
        (" HUMAN ", "user"),
        ("prompter", "user"),
        ("ASSISTANT ", "assistant"),
        ("GPT", "assistant"),
        ("ChatGPT", "assistant"),
        ("model", "assistant"),
        ("Bot\n", "assistant"),
        ("System", "system"),
        ("developer", "system"),
        ("Tool", "tool"),
        ("function-response", "tool"),
        ("Tool Result", "tool"),
    ],
)
def test_any_spelling_of_a_role(tmp_path, spelling, role):
    row = turns(USER, {"role": spelling, "content": "mine"}, {"role": "user", "content": "z"})
    got = read(jsonl(tmp_path / "in.jsonl", [row]), tmp_path / "out")
    assert {turn["content"]: turn["role"] for turn in got.rows[0]["conversation"]}.get("mine", "user") == role


def test_rows_without_a_question(tmp_path):
    rows = [
        {"messages": []},
        turns({"role": "assistant", "content": "me first"}, USER, BOT),
        turns({"role": "system", "content": "only system"}),
        turns({"role": "assistant", "content": "only me"}),
        {"messages": None},
        {"id": "nothing"},
    ]
    got = read(jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out")
    assert got.texts() == [["q", "a"]]
    assert got.dropped == {"empty": 3, "no_user": 2}
    assert got.notes == {"leading_assistant": 1}
    assert (got.book.entered, got.book.kept) == (6, 1)


def test_neighbours_of_one_role_are_merged(tmp_path):
    row = turns(
        {"role": "user", "content": "one"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "x", "reasoning": "r1"},
        {"role": "assistant", "content": "y", "reasoning": "r2"},
        USER,
        BOT,
    )
    got = read(jsonl(tmp_path / "in.jsonl", [row]), tmp_path / "out")
    assert got.texts() == [["one\n\ntwo", "x\n\ny", "q", "a"]]
    assert got.rows[0]["conversation"][1]["reasoning"] == "r1\n\nr2"
    assert got.notes == {"merged_turns": 2}


CALL = {"id": "t1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}


def test_null_content_is_legal_only_with_tool_calls(tmp_path):
    rows = [
        turns(
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "t1", "content": "12:00"},
            {"role": "assistant", "content": "Noon."},
        ),
        turns(USER, {"role": "assistant", "content": None}),
        turns(USER, {"role": "assistant", "content": "fine"}, USER, {"role": "assistant", "content": None}),
    ]
    got = read(jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out")
    assert got.texts() == [["q", "", "12:00", "Noon."], ["q", "fine"]]
    assert got.dropped == {"null_content": 1}
    assert got.notes == {"cut_at_null_content": 1}


@pytest.mark.parametrize("blank", ["", "  \n\t", "\u00a0"])
def test_a_blank_answer_is_no_answer(tmp_path, blank):
    rows = [chat("q", blank), chat("q", "a", "more", blank), chat("q", "a", blank, "b")]
    got = read(jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out")
    assert got.texts() == [["q", "a"], ["q", "a"]]
    assert got.dropped == {"blank_content": 1}


def test_content_as_a_list_of_parts(tmp_path):
    rows = [
        turns(
            {"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "hi"}]},
        ),
        turns({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, BOT),
        turns({"role": "user", "content": ["plain", "strings"]}, BOT),
        turns(USER, BOT),
        turns({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}, "x"]}, BOT),
        turns({"role": "user", "content": [{"text": "typed by nobody"}]}, BOT),
        turns({"role": "user", "content": {"type": "text", "text": "one part"}}, BOT),
    ]
    got = read(jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out")
    assert [texts[0] for texts in got.texts()] == ["Say hi", "plainstrings", "q", "typed by nobody", "one part"]
    assert got.dropped == {"multimodal": 2}


TOOL = {"type": "function", "function": {"name": "rain", "parameters": {"type": "object", "properties": {}}}}


def test_tool_turns_keep_calls_results_and_schemas(tmp_path):
    call = {"id": "c1", "type": "function", "function": {"name": "rain", "arguments": '{"city":"Ulm"}'}}
    row = turns(
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "rain", "content": "no"},
        {"role": "assistant", "content": "No rain."},
    ) | {"tools": [TOOL]}
    got = read(jsonl(tmp_path / "in.jsonl", [row]), tmp_path / "out")
    _, asked, result, _ = got.rows[0]["conversation"]
    assert asked["tool_calls"] == [call]
    assert result == {"role": "tool", "content": "no", "tool_call_id": "c1", "name": "rain"}
    assert json.loads(got.rows[0]["tools"]) == [TOOL]


@pytest.mark.parametrize(
    ("tools", "outcome"),
    [
        (json.dumps([TOOL]), [TOOL]),
        ([{"name": "rain", "parameters": {}}], [{"type": "function", "function": {"name": "rain", "parameters": {}}}]),
        (TOOL, [TOOL]),
        ("", None),
        ([], None),
        (None, None),
    ],
)
def test_tool_schemas_in_any_form(tmp_path, tools, outcome):
    got = read(jsonl(tmp_path / "in.jsonl", [turns(USER, BOT) | {"tools": tools}]), tmp_path / "out")
    assert (json.loads(got.rows[0]["tools"]) if got.rows[0]["tools"] else None) == outcome


@pytest.mark.parametrize("tools", ["[{", 5, [3], [{"description": "nameless"}]])
def test_bad_tool_schemas_reject_the_row(tmp_path, tools):
    got = read(jsonl(tmp_path / "in.jsonl", [turns(USER, BOT) | {"tools": tools}]), tmp_path / "out")
    assert got.dropped == {"bad_tools": 1}


def calling(arguments, **extra):
    return turns(
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": arguments}, **extra}],
        },
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "one"},
    )


def test_arguments_have_one_form_and_ids_are_filled_in(tmp_path):
    rows = [calling('{"n": 1}'), calling({"n": 1})]
    got = read(jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out")
    first, second = (row["conversation"] for row in got.rows)
    assert first == second
    assert got.rows[0]["id"] == got.rows[1]["id"]
    assert first[1]["tool_calls"] == [
        {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"n":1}'}}
    ]
    assert first[2]["tool_call_id"] == "call_0"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("{n: 1", "bad_tool_arguments"),
        ("[1]", "bad_tool_arguments"),
        (4, "bad_tool_arguments"),
        ("{'n': 1}", "bad_tool_arguments"),
    ],
)
def test_bad_arguments_reject_the_row(tmp_path, arguments, reason):
    got = read(jsonl(tmp_path / "in.jsonl", [calling(arguments), chat("q", "a")]), tmp_path / "out")
    assert got.dropped == {reason: 1}
    assert len(got.rows) == 1


@pytest.mark.parametrize(
    ("calls", "reason"),
    [("nonsense", "bad_tool_call"), ([{}], "bad_tool_call"), ([[1]], "bad_tool_call"), (9, "bad_tool_call")],
)
def test_bad_calls_reject_the_row(tmp_path, calls, reason):
    row = turns(USER, {"role": "assistant", "content": "x", "tool_calls": calls})
    assert read(jsonl(tmp_path / "in.jsonl", [row]), tmp_path / "out").dropped == {reason: 1}


def test_parallel_calls_are_answered_in_order(tmp_path):
    row = turns(
        USER,
        {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": ""}, {"name": "g"}]},
        {"role": "tool", "name": "g", "content": "2"},
        {"role": "tool", "content": "1"},
        {"role": "tool", "tool_call_id": "stray", "content": "3"},
        BOT,
    )
    got = read(jsonl(tmp_path / "in.jsonl", [row]), tmp_path / "out")
    results = [turn["tool_call_id"] for turn in got.rows[0]["conversation"] if turn["role"] == "tool"]
    assert results == ["call_1", "call_0", "stray"]
    assert got.notes == {"result_without_call": 1}


def test_a_function_call_turn_and_the_old_function_call_field(tmp_path):
    rows = [
        {
            "messages": [
                {"from": "human", "value": "q"},
                {"from": "function_call", "value": '{"name": "f", "arguments": {}}'},
                {"from": "observation", "value": "1"},
                {"from": "gpt", "value": "one"},
            ]
        },
        turns(
            USER,
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "1"},
            {"role": "assistant", "content": "one"},
        ),
    ]
    got = read(jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out")
    for row in got.rows:
        assert [turn["role"] for turn in row["conversation"]] == ["user", "assistant", "tool", "assistant"]
        assert row["conversation"][1]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


def test_reasoning_under_all_its_names(tmp_path):
    def answer(**more):
        return turns(USER, {"role": "assistant", "content": "a", **more})

    rows = [
        answer(reasoning_content="R"),
        answer(reasoning="R"),
        answer(thinking="R"),
        answer() | {"metadata": {"reasoning_content": "R"}},
        answer(metadata={"reasoning_content": "R"}),
        answer(content="<think>R</think>a"),
        answer(content="R\n</think>\n\na"),
        answer(content="<think>\nR\n</think>\n\na", reasoning="R"),
        answer() | {"reasoning": "R"},
        answer(reasoning="X", reasoning_content="Y"),
        answer(content="<think>X</think>a", thinking="Y"),
    ]
    got = read(jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out")
    assert [row["conversation"][-1] for row in got.rows] == [
        {"role": "assistant", "content": "a", "reasoning": "R"}
    ] * 9
    assert got.dropped == {"reasoning_conflict": 2}
    assert got.examples["reasoning_conflict"] == ["in.jsonl:10", "in.jsonl:11"]


def test_reasoning_between_a_sources_own_tags(tmp_path):
    text = "<|begin_of_thought|>\nR\n<|end_of_thought|>\n\n<|begin_of_solution|>\na\n<|end_of_solution|>"
    got = read(
        jsonl(tmp_path / "in.jsonl", [chat("q", text)]),
        tmp_path / "out",
        think=["<|begin_of_thought|>", "<|end_of_thought|>"],
        answer=["<|begin_of_solution|>", "<|end_of_solution|>"],
    )
    assert got.rows[0]["conversation"][1] == {"role": "assistant", "content": "a", "reasoning": "R"}


def test_system_columns(tmp_path):
    rows = [
        chat("q", "a", system="Be kind."),
        chat("q", "a", system_prompt="Be kind."),
        chat("q", "a", system=""),
        turns({"role": "system", "content": "inner"}, USER, BOT) | {"system": "outer"},
        turns({"role": "system", "content": "same"}, USER, BOT) | {"system": "same"},
    ]
    got = read(jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out")
    firsts = [texts[0] for texts in got.texts()]
    assert firsts == ["Be kind.", "Be kind.", "q", "inner", "same"]
    assert got.notes == {"system_conflict": 1}


def test_a_row_that_ends_with_a_question_is_kept(tmp_path):
    got = read(jsonl(tmp_path / "in.jsonl", [chat("q"), chat("q", "a", "more?")]), tmp_path / "out")
    assert got.texts() == [["q"], ["q", "a", "more?"]]
    assert got.notes == {"ends_with_user": 2}


def test_null_turns_are_nothing(tmp_path):
    got = read(jsonl(tmp_path / "in.jsonl", [turns(USER, {"role": None, "content": None}, BOT)]), tmp_path / "out")
    assert got.texts() == [["q", "a"]]
    assert got.notes == {"null_turn": 1}


def test_max_turns_clips_and_says_so(tmp_path):
    got = read(jsonl(tmp_path / "in.jsonl", [chat("1", "a", "2", "b", "3", "c")]), tmp_path / "out", max_turns=2)
    assert got.texts() == [["1", "a", "2", "b"]]
    assert got.notes == {"clipped_turns": 1}


def test_pairs_prompts_and_alternating_lists(tmp_path):
    pair = read(
        jsonl(
            tmp_path / "p.jsonl",
            [
                {"instruction": "Sum.", "input": "1 2", "output": "3"},
                {"instruction": "", "output": "x"},
                {"question": "Q?", "answer": None},
            ],
        ),
        tmp_path / "a",
        adapter="pair",
    )
    assert pair.texts() == [["Sum.\n\n1 2", "3"]]
    assert pair.dropped == {"empty": 1, "null_content": 1}
    renamed = read(
        jsonl(tmp_path / "r.jsonl", [{"problem": "P", "prompt": "not this", "solution": "S"}]),
        tmp_path / "b",
        adapter="pair",
        columns={"prompt": "problem", "response": "solution"},
    )
    assert renamed.texts() == [["P", "S"]]
    prompts = read(
        jsonl(
            tmp_path / "q.jsonl",
            [
                {"prompt": "one"},
                {"prompt": ["two", "and more"]},
                '"three"',
                {"prompt": [{"role": "user", "content": "four"}]},
                {"other": 1},
            ],
        ),
        tmp_path / "c",
        adapter="prompt",
    )
    assert [texts[0] for texts in prompts.texts()] == ["one", "two", "three", "four"]
    assert (prompts.dropped, prompts.notes["later_turns_left_out"]) == ({"empty": 1}, 1)
    spoken = read(
        jsonl(tmp_path / "s.jsonl", [["hi", "hello", 42, True], {"dialog": ["a", "b"]}]),
        tmp_path / "d",
        adapter="alternating",
    )
    assert spoken.texts() == [["hi", "hello", "42", "True"], ["a", "b"]]


def test_hermes_writes_calls_in_text(tmp_path):
    row = {
        "conversations": [
            {"from": "system", "value": "You may call functions within <tools> [...] </tools>"},
            {"from": "human", "value": "Rain in Ulm?"},
            {
                "from": "gpt",
                "value": 'Let me look.\n<tool_call>\n{"name": "rain", "arguments": {"city": "Ulm"}}\n</tool_call>',
            },
            {"from": "tool", "value": '<tool_response>\n{"rain": false}\n</tool_response>'},
            {"from": "gpt", "value": "No."},
        ],
        "tools": json.dumps([TOOL]),
    }
    torn = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "<tool_call>{"}]}
    got = read(jsonl(tmp_path / "in.jsonl", [row, torn]), tmp_path / "out", adapter="hermes")
    user, call, result, answer = got.rows[0]["conversation"]
    assert (user["content"], call["content"], answer["content"]) == ("Rain in Ulm?", "Let me look.", "No.")
    assert call["tool_calls"][0]["function"] == {"name": "rain", "arguments": '{"city":"Ulm"}'}
    assert result == {"role": "tool", "content": '{"rain": false}', "tool_call_id": "call_0"}
    assert got.dropped == {"bad_tool_call": 1}
    assert got.notes == {"tool_system_removed": 1}


def test_a_table_of_lists_is_a_list_of_turns(tmp_path):
    row = {"conversations": {"from": ["human", "gpt"], "value": ["q", "a"]}}
    ragged = {"conversations": {"from": ["human"], "value": ["q", "a"]}}
    got = read(jsonl(tmp_path / "in.jsonl", [row, ragged]), tmp_path / "out", adapter="sharegpt")
    assert got.texts() == [["q", "a"]]
    assert got.dropped == {"bad_conversation": 1}

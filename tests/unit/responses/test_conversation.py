"""Turn by turn on its own history; what an answer is; what becomes of cut, empty and filtered ones."""

from __future__ import annotations

import json
import logging

import pytest
from fake_server import FakeServer, Rule
from harness import questions, run, said, settings_of, user, write_dataset

from eyrie.core.errors import EyrieError
from eyrie.responses import asking
from eyrie.responses.chat import Answer
from eyrie.responses.conversation import BadRow, Script


def call(name, arguments="{}", number="a"):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(content, number="a"):
    return {"role": "tool", "tool_call_id": number, "content": content}


class TestTurns:
    def test_each_turn_is_asked_on_the_answers_that_were_generated(self, tmp_path):
        conversation = [user("one"), said("OLD ONE"), user("two"), said("OLD TWO"), user("three")]
        with FakeServer() as server:
            write_dataset(tmp_path / "train.parquet", [conversation])
            result = run(tmp_path, [server])
            sent = [request["messages"] for request in server.stats.requests]
        assert [len(messages) for messages in sent] == [1, 3, 5]
        assert "OLD" not in json.dumps(sent)
        assert sent[2][1] == said("answer to one")
        assert sent[2][3] == said("answer to two")
        assert [json.loads(row["messages"]) for row in result.rows] == sent
        assert result.turns["kept"] == 3

    def test_system_turn_stays_and_neighbouring_questions_are_one(self, tmp_path):
        conversation = [{"role": "system", "content": "be kind"}, user("one"), user("and more"), said("x"), user("two")]
        with FakeServer() as server:
            write_dataset(tmp_path / "train.parquet", [conversation])
            run(tmp_path, [server])
            assert [[m["role"] for m in r["messages"]] for r in server.stats.requests] == [
                ["system", "user", "user"],
                ["system", "user", "user", "assistant", "user"],
            ]

    def test_conversation_interrupted_between_turns_goes_on_with_its_own_answers(self, tmp_path):
        conversation = [user("one"), said("x"), user("two")]
        write_dataset(tmp_path / "train.parquet", [conversation])
        with FakeServer([Rule("two", status=500)]) as server:
            broken = run(tmp_path, [server], settings_of(tries=1))
        assert broken.turns["failed"] == {"http_500": 1}
        assert broken.turns["kept"] == 1
        with FakeServer([Rule("one", content="ANOTHER")]) as server:
            result = run(tmp_path, [server])
            assert server.stats.chat == 1
        assert json.loads(result.rows[1]["messages"])[1]["content"] == "answer to one"

    def test_lost_first_answer_takes_the_second_with_it(self, tmp_path):
        """A later turn belongs to the very history that it was generated on."""
        conversation = [user("one"), said("x"), user("two")]
        write_dataset(tmp_path / "train.parquet", [conversation])
        with FakeServer() as server:
            run(tmp_path, [server])
        shard = next((tmp_path / "store").glob("*.log"))
        lines = shard.read_bytes().splitlines(keepends=True)
        shard.write_bytes(b"".join(lines[1:]))
        with FakeServer([Rule("one", content="ANOTHER")]) as server:
            result = run(tmp_path, [server])
            assert server.stats.chat == 2
        assert json.loads(result.rows[1]["messages"])[1]["content"] == "ANOTHER"

    def test_trailing_answer_or_system_asks_for_nothing(self):
        assert Script([user("q"), said("a")]).asked == 1
        assert Script([user("q"), said("a"), {"role": "system", "content": "s"}]).asked == 1

    @pytest.mark.parametrize(
        ("messages", "why"),
        [
            (None, "no list"),
            ([], "no list"),
            (["x"], "no object"),
            ([said("only")], "no user turn"),
            ([{"role": "user", "content": None}], "no text"),
            ([{"role": "narrator", "content": "x"}], "unknown role 'narrator'"),
        ],
    )
    def test_what_is_no_conversation_says_why(self, messages, why):
        with pytest.raises(BadRow, match=why):
            Script(messages)

    def test_bad_late_row_is_found_before_the_first_request(self, tmp_path):
        """The whole table is read and checked first: a run of hours does not die on its last row."""
        conversations = [*questions(600), '{"not": "a list"}', "no JSON"]
        write_dataset(tmp_path / "train.parquet", conversations)
        with FakeServer() as server:
            result = run(tmp_path, [server], settings_of(concurrency=32))
            assert server.stats.chat == 600
        assert result.account["dropped"] == {"bad_row": 2}
        assert "src:600" in result.books.conversations.examples["bad_row"][0]


class TestKinds:
    def test_truncated_answers_are_dropped_counted_and_warned_of(self, tmp_path, caplog):
        rules = [Rule("number 3", content="cut off in the midd", finish_reason="length")]
        with FakeServer(rules) as server:
            write_dataset(tmp_path / "train.parquet", questions(10))
            result = run(tmp_path, [server])
        assert len(result.rows) == 9
        assert result.account["dropped"] == {"truncated": 1}
        with caplog.at_level(logging.WARNING):
            found = asking.warnings(result.turns, settings_of())
        assert "max_tokens" in found[0]
        assert "1 of 10" in caplog.text

    def test_truncated_answers_are_kept_where_the_policy_says_so_and_the_conversation_goes_on(self, tmp_path):
        rules = [Rule("one", content="cut", finish_reason="length")]
        with FakeServer(rules) as server:
            write_dataset(tmp_path / "train.parquet", [[user("one"), said("x"), user("two")]])
            kept = run(tmp_path, [server], settings_of(truncated="keep")).rows
            dropped = run(tmp_path, [server])
            assert server.stats.chat == 2, "the policy changes no answer"
        assert [row["finish_reason"] for row in kept] == ["length", "stop"]
        assert json.loads(kept[1]["messages"])[1]["content"] == "cut"
        assert dropped.turns["dropped"] == {"truncated": 1, "not_reached": 1}

    def test_turns_that_were_not_reached_are_counted(self, tmp_path):
        conversation = [turn for n in range(5) for turn in (user(f"turn {n}"), said("x"))]
        rules = [Rule("turn 2", content="cut", finish_reason="length")]
        with FakeServer(rules) as server:
            write_dataset(tmp_path / "train.parquet", [conversation])
            result = run(tmp_path, [server])
        assert result.turns["in"] == 5
        assert result.turns["kept"] == 2
        assert result.turns["dropped"] == {"truncated": 1, "not_reached": 2}
        assert result.account["kept"] == 1

    def test_reasoning_that_did_not_end_is_its_own_kind_and_tried_once_with_more_room(self, tmp_path):
        rules = [
            Rule("number 1", content=None, reasoning="step one, step tw", finish_reason="length"),
            Rule(content="ok", reasoning="short"),
        ]
        with FakeServer(rules) as server:
            write_dataset(tmp_path / "train.parquet", questions(3))
            result = run(tmp_path, [server])
            sizes = [r["max_tokens"] for r in server.stats.requests if "number 1" in r["messages"][0]["content"]]
        assert sizes == [64, 128]
        assert result.account["dropped"] == {"reasoning_truncated": 1}
        assert {row["id"] for row in result.rows} == {"q0", "q2"}
        with FakeServer(rules) as server:
            assert run(tmp_path, [server]).account["dropped"] == {"reasoning_truncated": 1}
            assert server.stats.chat == 0

    def test_reasoning_under_either_name_is_kept_under_one(self, tmp_path):
        rules = [
            Rule("number 0", content="ok", reasoning="R-old", reasoning_key="reasoning_content"),
            Rule("number 1", content="ok", reasoning="R-new"),
        ]
        with FakeServer(rules) as server:
            write_dataset(tmp_path / "train.parquet", questions(2))
            result = run(tmp_path, [server])
        assert [row["reasoning"] for row in result.rows] == ["R-old", "R-new"]

    def test_reasoning_in_the_text_is_told_from_the_answer(self, tmp_path):
        rules = [
            Rule("number 0", content="Let me think about this. First", finish_reason="length"),
            Rule("number 1", content="<think>fine</think>ok"),
            Rule("number 2", content="also fine</think>\n\nok too"),
            Rule("number 3", content="plain"),
        ]
        with FakeServer(rules) as server:
            write_dataset(tmp_path / "train.parquet", questions(4))
            result = run(tmp_path, [server], settings_of(reasoning_retry=1), opens_think=True)
        assert result.account["dropped"] == {"reasoning_truncated": 1}
        assert [(row["reasoning"], row["text"]) for row in result.rows] == [
            ("fine", "ok"),
            ("also fine", "ok too"),
            (None, "plain"),
        ]
        assert all(bytes(row["output_ids"]).endswith(b"\0") for row in result.rows), "ids stay as sampled"

    def test_text_that_speaks_about_the_marks_is_left_alone(self, tmp_path):
        text = "Use <think> and </think> around it."
        with FakeServer([Rule(content=text)]) as server:
            write_dataset(tmp_path / "train.parquet", questions(1))
            row = run(tmp_path, [server]).rows[0]
        assert (row["text"], row["reasoning"]) == (text, None)

    @pytest.mark.parametrize(
        ("rule", "kind"),
        [
            (Rule("number 1", content="", reasoning="only thoughts"), "reasoning_only"),
            (Rule("number 1", content="bad", finish_reason="content_filter"), "content_filter"),
            (Rule("number 1", content=" \n\t "), "empty"),
            (Rule("number 1", content=None), "empty"),
        ],
    )
    def test_answers_without_use_are_dropped_by_name(self, tmp_path, rule, kind):
        with FakeServer([rule]) as server:
            write_dataset(tmp_path / "train.parquet", questions(3))
            result = run(tmp_path, [server])
        assert result.account["dropped"] == {kind: 1}

    def test_policies_keep_what_they_name(self, tmp_path):
        rules = [
            Rule("number 0", content="", reasoning="only thoughts"),
            Rule("number 1", content="x", finish_reason="content_filter"),
        ]
        with FakeServer(rules) as server:
            write_dataset(tmp_path / "train.parquet", questions(2))
            assert len(run(tmp_path, [server], settings_of(reasoning_only="keep", content_filter="keep")).rows) == 2

    def test_many_empty_answers_stop_with_a_hint_at_the_template(self, tmp_path):
        rules = [Rule("number 0", content=""), Rule("number 1", content=" \n\t ")]
        with FakeServer(rules) as server:
            write_dataset(tmp_path / "train.parquet", questions(4))
            with pytest.raises(EyrieError) as caught:
                run(tmp_path, [server])
        assert caught.value.code == "too-many-empty"
        assert "chat template" in caught.value.why


TOOLS = [[{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("weather", "clock")]]


class TestTools:
    def ask(self, tmp_path, conversation, rules, **settings):
        with FakeServer(rules) as server:
            write_dataset(tmp_path / "train.parquet", [conversation], tools=TOOLS)
            result = run(tmp_path, [server], settings_of(**settings))
            return result, server.stats

    def test_stored_result_answers_the_generated_call_and_the_turn_ends_with_an_answer(self, tmp_path):
        conversation = [user("weather?"), said("", tool_calls=[call("weather")]), tool("rain"), said("Rain.")]
        rules = [Rule("weather", tool_calls=[call("weather", number="new")], finish_reason="tool_calls", times=1)]
        result, stats = self.ask(tmp_path, conversation, [*rules, Rule(content="It rains.")])
        assert [row["finish_reason"] for row in result.rows] == ["tool_calls", "stop"]
        assert json.loads(result.rows[0]["tool_calls"])[0]["function"]["name"] == "weather"
        history = stats.requests[1]["messages"]
        assert history[2] == {"role": "tool", "content": "rain", "tool_call_id": "new"}
        assert stats.requests[0]["tools"] == TOOLS[0]
        assert result.turns["kept"] == 2

    def test_call_without_a_stored_result_keeps_its_row_and_ends_the_conversation(self, tmp_path):
        conversation = [
            user("both?"),
            said("", tool_calls=[call("weather")]),
            tool("rain"),
            said("Rain."),
            user("more?"),
        ]
        rules = [Rule(tool_calls=[call("weather", number="x"), call("clock", number="y")], finish_reason="tool_calls")]
        result, stats = self.ask(tmp_path, conversation, rules)
        assert stats.chat == 1, "no result is invented for the clock"
        assert len(result.rows) == 1
        assert result.books.ended == {"tool_mismatch": 1}
        assert result.account["kept"] == 1

    def test_parallel_calls_are_each_given_their_own_result(self, tmp_path):
        calls = [call("weather", number="a"), call("clock", number="b")]
        conversation = [user("both?"), said("", tool_calls=calls), tool("noon", "b"), tool("rain", "a"), said("x")]
        generated = [call("clock", number="1"), call("weather", number="2")]
        rules = [Rule("both", tool_calls=generated, finish_reason="tool_calls", times=1), Rule(content="done")]
        result, stats = self.ask(tmp_path, conversation, rules)
        assert [(m["tool_call_id"], m["content"]) for m in stats.requests[1]["messages"][2:]] == [
            ("1", "noon"),
            ("2", "rain"),
        ]
        assert len(result.rows) == 2

    def test_arguments_can_be_asked_to_match_whatever_their_form(self, tmp_path):
        stored = said("", tool_calls=[call("weather", '{"city": "Bonn", "day": 1}')])
        conversation = [user("weather?"), stored, tool("rain"), said("x")]
        same = Rule(tool_calls=[call("weather", '{"day":1,"city":"Bonn"}')], finish_reason="tool_calls", times=1)
        result, _ = self.ask(tmp_path, conversation, [same, Rule(content="ok")], tool_match="arguments")
        assert len(result.rows) == 2
        other = Rule(tool_calls=[call("weather", '{"city": "Rome"}')], finish_reason="tool_calls", times=1)
        elsewhere = tmp_path / "other"
        elsewhere.mkdir()
        result, _ = self.ask(elsewhere, conversation, [other, Rule(content="ok")], tool_match="arguments")
        assert result.books.ended == {"tool_mismatch": 1}

    def test_endless_calls_end_when_the_stored_results_do(self, tmp_path):
        conversation = [user("go"), said("", tool_calls=[call("weather")]), tool("rain"), said("x")]
        result, stats = self.ask(
            tmp_path, conversation, [Rule(tool_calls=[call("weather")], finish_reason="tool_calls")]
        )
        assert stats.chat == 2
        assert result.books.ended == {"tool_mismatch": 1}


def test_history_carries_the_reasoning_for_templates_that_want_it():
    answer = Answer([1], [2], "text", "stop", reasoning="why")
    assert answer.message() == {"role": "assistant", "content": "text", "reasoning": "why"}

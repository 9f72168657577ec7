"""Asking against a fake server: resume, outages, hangs, refusals, limits; nothing lost, nothing doubled."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from email.utils import formatdate
from types import SimpleNamespace

import pytest
from fake_server import FakeServer, Rule
from harness import questions, run, said, settings_of, user, write_dataset

from eyrie.core.errors import EyrieError, GateError, Interrupted
from eyrie.responses import engine as engine_module
from eyrie.responses.engine import Hooks
from eyrie.responses.http import Reply
from eyrie.responses.settings import Mix
from eyrie.responses.turn import Rules, deadline, retry_after


@pytest.fixture
def server():
    with FakeServer() as running:
        yield running


def ask_once(url):
    """A real answer, as the proof of identity wants one."""
    body = json.dumps({"messages": [user("proof")], "max_tokens": 4}).encode()
    try:
        urllib.request.urlopen(f"{url}/v1/chat/completions", body, timeout=0.5).read()
    except OSError as error:
        raise EyrieError(f"no answer: {error}", code="server-unreachable") from None


def texts(result):
    return {row["id"]: row["text"] for row in result.rows}


class TestResume:
    def test_second_run_asks_for_nothing_and_writes_the_same_bytes(self, tmp_path, server):
        write_dataset(tmp_path / "train.parquet", questions(3))
        run(tmp_path, [server])
        before = (tmp_path / "responses.parquet").read_bytes()
        again = run(tmp_path, [server])
        assert server.stats.chat == 3
        assert again.feed.resumed == 3
        assert (tmp_path / "responses.parquet").read_bytes() == before

    def test_other_order_and_other_ids_ask_for_nothing(self, tmp_path, server):
        write_dataset(tmp_path / "train.parquet", questions(3))
        run(tmp_path, [server])
        write_dataset(tmp_path / "train.parquet", questions(3)[::-1], ids=["a", "b", "c"])
        result = run(tmp_path, [server])
        assert server.stats.chat == 3
        assert texts(result) == {f"{name}": f"answer to Q number {n}?" for name, n in (("a", 2), ("b", 1), ("c", 0))}

    def test_one_changed_prompt_asks_for_itself_alone(self, tmp_path, server):
        conversations = questions(5)
        write_dataset(tmp_path / "train.parquet", conversations)
        run(tmp_path, [server])
        conversations[2] = [user("something else")]
        write_dataset(tmp_path / "train.parquet", conversations)
        result = run(tmp_path, [server])
        assert server.stats.chat == 6
        assert texts(result)["q2"] == "answer to something else"

    def test_changed_sampling_and_generation_ask_again_and_going_back_does_not(self, tmp_path, server):
        write_dataset(tmp_path / "train.parquet", questions(2))
        run(tmp_path, [server])
        run(tmp_path, [server], settings_of(temperature=0.5))
        run(tmp_path, [server], generation="another template")
        assert server.stats.chat == 6
        run(tmp_path, [server])
        assert server.stats.chat == 6

    def test_concurrency_and_limits_are_no_part_of_a_key(self, tmp_path, server):
        write_dataset(tmp_path / "train.parquet", questions(2))
        run(tmp_path, [server])
        run(tmp_path, [server], settings_of(concurrency=3, tries=7, max_failed_share=0.5, order="longest_first"))
        assert server.stats.chat == 2

    def test_torn_record_is_cut_and_only_its_answer_asked_again(self, tmp_path, server):
        write_dataset(tmp_path / "train.parquet", questions(4))
        run(tmp_path, [server], settings_of(concurrency=1))
        shard = next((tmp_path / "store").glob("*.log"))
        shard.write_bytes(shard.read_bytes()[:-7])
        result = run(tmp_path, [server])
        assert server.stats.chat == 5
        assert len(result.rows) == 4
        assert all(line.count(b'{"id"') == 1 for line in shard.read_bytes().splitlines())

    def test_stop_request_keeps_what_is_answered(self, tmp_path):
        write_dataset(tmp_path / "train.parquet", questions(30))

        def stop_after(count):
            def check():
                if server.stats.chat >= count:
                    raise Interrupted("asked to stop", code="interrupted")

            return check

        with FakeServer(delay=0.05) as server:
            with pytest.raises(Interrupted):
                run(tmp_path, [server], hooks=Hooks(lambda url: None, stop_after(10)))
            stopped = server.stats.chat
            assert stopped < 30
            result = run(tmp_path, [server])
            assert len(result.rows) == 30
            assert result.feed.resumed >= 1
            assert server.stats.chat <= 30 + 8, "only what was in flight is asked again"


class TestJoining:
    def test_answers_in_reverse_order_reach_their_own_rows(self, tmp_path):
        rules = [Rule(f"number {n}?", content=f"answer {n}", delay=(13 - n) / 40) for n in range(12)]
        with FakeServer(rules) as server:
            write_dataset(tmp_path / "train.parquet", questions(12))
            result = run(tmp_path, [server], settings_of(concurrency=12))
        assert [row["text"] for row in result.rows] == [f"answer {n}" for n in range(12)]
        assert [row["id"] for row in result.rows] == [f"q{n}" for n in range(12)]

    def test_repeated_prompts_are_asked_once_and_counted(self, tmp_path, server):
        conversations = [*questions(2), *questions(2), [user("numeric id?")], [user("text id?")]]
        write_dataset(tmp_path / "train.parquet", conversations, ids=["Q0", "Q1", "Q0", "Q1", "1", "1"])
        result = run(tmp_path, [server])
        assert server.stats.chat == 4
        assert result.account["dropped"] == {"duplicate": 2}
        assert result.account["kept"] == 4

    def test_ids_are_as_sampled_and_the_mask_border_is_the_prompt(self, tmp_path, server):
        write_dataset(tmp_path / "train.parquet", questions(1))
        row = run(tmp_path, [server]).rows[0]
        assert bytes(row["prompt_ids"]).decode().endswith("<assistant>")
        assert bytes(row["output_ids"]) == b"answer to Q number 0?\0"

    def test_concurrency_above_a_hundred_is_reached(self, tmp_path):
        with FakeServer(delay=0.4) as server:
            server.keep_requests = False
            write_dataset(tmp_path / "train.parquet", questions(400))
            start = time.monotonic()
            run(tmp_path, [server], settings_of(concurrency=200))
            assert server.stats.max_parallel >= 180
            assert time.monotonic() - start < 5

    @pytest.mark.parametrize("order", ["dataset", "longest_first", "bucketed"])
    def test_every_order_asks_for_all_and_writes_the_same_table(self, tmp_path, server, order):
        conversations = [[user("x" * (number * 7 % 50) + str(number))] for number in range(40)]
        write_dataset(tmp_path / "train.parquet", conversations)
        result = run(tmp_path, [server], settings_of(order=order, concurrency=1))
        assert [row["id"] for row in result.rows] == [f"q{number}" for number in range(40)]
        lengths = [len(text) for text, _ in server.stats.starts]
        assert (lengths == sorted(lengths, reverse=True)) is (order == "longest_first")


class TestOutages:
    def test_restart_of_the_server_loses_and_doubles_nothing(self, tmp_path):
        with FakeServer(delay=0.02) as server:
            server.die_after, server.die_for = 10, 1.0
            write_dataset(tmp_path / "train.parquet", questions(40))
            result = run(tmp_path, [server])
        assert sorted(texts(result)) == sorted(f"q{n}" for n in range(40))
        assert len(result.rows) == 40
        assert result.account["failed"] == {}
        assert result.engine.endpoints[0].outages == 1

    def test_identity_is_proven_before_after_and_at_every_reconnect(self, tmp_path):
        proofs = []
        with FakeServer(delay=0.02) as server:
            server.die_after, server.die_for = 10, 0.3
            write_dataset(tmp_path / "train.parquet", questions(40))
            run(tmp_path, [server], hooks=Hooks(prove=lambda url: proofs.append((url, server.stats.chat))))
        asked = [count for _, count in proofs]
        assert len(proofs) == 3
        assert asked[0] == 0, "before the first request"
        assert asked[2] == server.stats.chat, "after the last one"
        assert 10 <= asked[1] < server.stats.chat, "at the reconnect"

    def test_another_server_behind_the_same_address_ends_the_run(self, tmp_path):
        """Proof fails at the reconnect: nothing that the stranger says is kept."""
        proofs = []

        def prove(url):
            proofs.append(url)
            if len(proofs) > 1:
                raise GateError("eagle3 serves, not the baseline.", code="wrong-method")

        with FakeServer(delay=0.02) as server:
            server.die_after, server.die_for = 10, 0.2
            write_dataset(tmp_path / "train.parquet", questions(40))
            with pytest.raises(GateError, match="eagle3"):
                run(tmp_path, [server], hooks=Hooks(prove))
            assert server.stats.chat <= 10 + 8

    def test_server_that_goes_after_its_last_answer_is_waited_for_and_proven(self, tmp_path, server):
        proofs = []

        def prove(url):
            proofs.append(url)
            if len(proofs) == 2:
                raise GateError("no process of baseline lives.", code="not-serving")

        write_dataset(tmp_path / "train.parquet", questions(3))
        result = run(tmp_path, [server], hooks=Hooks(prove))
        assert len(proofs) == 3
        assert len(result.rows) == 3

    def test_stranger_after_the_last_answer_fails_the_run(self, tmp_path, server):
        proofs = []

        def prove(url):
            proofs.append(url)
            if len(proofs) == 2:
                raise GateError("eagle3 serves", code="wrong-method")

        write_dataset(tmp_path / "train.parquet", questions(3))
        with pytest.raises(GateError):
            run(tmp_path, [server], hooks=Hooks(prove))

    def test_changed_fingerprint_of_the_answers_is_proven_anew(self, tmp_path):
        """A restart so quick that no connection broke is noticed by what the server says of itself."""
        proofs, answers = [], []

        def body(number, server):
            choice = {"index": 0, "message": {"content": "x"}, "finish_reason": "stop", "token_ids": [1]}
            return json.dumps({"choices": [choice], "prompt_token_ids": [1], "system_fingerprint": server}).encode()

        rules = [Rule(f"number {n}?", body=body(n, "one" if n < 5 else "two")) for n in range(10)]
        with FakeServer(rules) as server:
            write_dataset(tmp_path / "train.parquet", questions(10))
            result = run(
                tmp_path, [server], settings_of(concurrency=1), hooks=Hooks(prove=lambda url: proofs.append(url))
            )
            answers = result.rows
        assert len(proofs) == 3
        assert len(answers) == 10

    def test_server_gone_for_good_fails_within_the_limit_and_keeps_what_is_answered(self, tmp_path):
        with FakeServer(delay=0.02) as server:
            server.die_after, server.die_for = 10, 3600
            write_dataset(tmp_path / "train.parquet", questions(40))
            start = time.monotonic()
            with pytest.raises(EyrieError) as caught:
                run(tmp_path, [server], settings_of(outage_limit_s=1.0))
            assert caught.value.code == "server-gone"
            assert time.monotonic() - start < 10
        with FakeServer() as server:
            result = run(tmp_path, [server])
            assert len(result.rows) == 40
            assert 40 - 10 <= server.stats.chat <= 30 + 8

    def test_server_that_is_still_loading_is_waited_for(self, tmp_path, server):
        server.health = 503
        write_dataset(tmp_path / "train.parquet", questions(3))
        threading.Timer(0.5, lambda: setattr(server, "health", 200)).start()
        assert len(run(tmp_path, [server]).rows) == 3

    def test_own_server_is_brought_back(self, tmp_path, monkeypatch):
        monkeypatch.setattr(engine_module, "REVIVE_S", 0.3)
        revived = []
        with FakeServer(delay=0.02) as server:
            server.die_after, server.die_for = 5, 3600

            def revive():
                revived.append(True)
                server.start()

            write_dataset(tmp_path / "train.parquet", questions(20))
            result = run(
                tmp_path, [server], settings_of(outage_limit_s=30), hooks=Hooks(lambda url: None, revive=revive)
            )
        assert revived == [True]
        assert len(result.rows) == 20

    def test_hung_request_never_stalls_the_run(self, tmp_path):
        with FakeServer([Rule("number 2", delay=3600)]) as server:
            write_dataset(tmp_path / "train.parquet", questions(5))
            start = time.monotonic()
            result = run(tmp_path, [server], settings_of(request_timeout_s=0.4, tries=2))
            assert time.monotonic() - start < 5
            assert server.stats.by_text["Q number 2?"] == 2
        assert result.account["kept"] == 4
        assert result.account["failed"] == {"timeout": 1}
        assert "src:2" in result.books.conversations.examples["timeout"][0]

    def test_dead_engine_behind_a_living_health_check_is_noticed(self, tmp_path):
        """The server takes requests, answers /health and generates nothing: cut off, proven, gone on with."""
        proofs = []
        with FakeServer(delay=0.02) as server:
            write_dataset(tmp_path / "train.parquet", questions(30))
            server.freeze_after = 12

            def prove(url):
                proofs.append(url)
                ask_once(url)

            settings = settings_of(idle_timeout_s=0.5, request_timeout_s=60)
            start = time.monotonic()
            result = run(tmp_path, [server], settings, hooks=Hooks(prove))
        assert time.monotonic() - start < 20
        assert result.engine.endpoints[0].outages == 1
        assert len(result.rows) == 30
        assert len(proofs) >= 3

    def test_clock_jumps_change_nothing(self, tmp_path, server, monkeypatch):
        """Only the monotonic clock counts: the wall clock may leap by years."""
        jump = iter(range(0, 10**9, 10**6))
        monkeypatch.setattr(time, "time", lambda: float(next(jump)))
        write_dataset(tmp_path / "train.parquet", questions(20))
        result = run(tmp_path, [server])
        assert len(result.rows) == 20
        assert result.engine.retries.total() == 0


class TestRefusals:
    def test_retry_after_is_honoured(self, tmp_path):
        rules = [
            Rule("number 0", status=429, headers={"Retry-After": "0.6"}, times=2),
            Rule("number 1", status=503, headers={"Retry-After": "0.3"}, times=1),
        ]
        with FakeServer(rules) as server:
            write_dataset(tmp_path / "train.parquet", questions(3))
            result = run(tmp_path, [server])
            starts = {}
            for text, when in server.stats.starts:
                starts.setdefault(text, []).append(when)
            assert server.stats.chat == 6
        assert len(result.rows) == 3
        gaps = [b - a for a, b in zip(starts["Q number 0?"], starts["Q number 0?"][1:], strict=False)]
        assert all(gap >= 0.6 for gap in gaps)
        assert starts["Q number 1?"][1] - starts["Q number 1?"][0] >= 0.3

    def test_retry_after_as_a_date_is_read_against_the_servers_own_clock(self):
        headers = {"retry-after": formatdate(1_000_090, usegmt=True), "date": formatdate(1_000_000, usegmt=True)}
        assert retry_after(Reply(503, b"", headers)) == 90
        assert retry_after(Reply(503, b"", {"retry-after": "7"})) == 7
        assert retry_after(Reply(503, b"", {"retry-after": "soon"})) is None
        assert retry_after(Reply(503, b"", {})) is None

    def test_bad_request_is_not_repeated(self, tmp_path):
        rules = [Rule("number 1", status=400, body=b'{"error": {"message": "min_p is not supported"}}')]
        with FakeServer(rules) as server:
            write_dataset(tmp_path / "train.parquet", questions(3))
            result = run(tmp_path, [server])
            assert server.stats.by_text["Q number 1?"] == 1
        assert result.account["failed"] == {"http_400": 1}
        assert "min_p is not supported" in result.books.conversations.examples["http_400"][0]

    def test_server_error_is_tried_a_bounded_number_of_times(self, tmp_path):
        with FakeServer([Rule("number 1", status=500), Rule("number 2", status=500, times=1)]) as server:
            write_dataset(tmp_path / "train.parquet", questions(4))
            result = run(tmp_path, [server], settings_of(tries=2))
            assert server.stats.by_text["Q number 1?"] == 2
            assert server.stats.by_text["Q number 2?"] == 2
        assert result.account["kept"] == 3
        assert result.account["failed"] == {"http_500": 1}

    def test_all_failed_stops_with_the_reason_and_leaves_no_table(self, tmp_path):
        with FakeServer([Rule(status=500, body=b'{"error": {"message": "EngineDeadError"}}')]) as server:
            write_dataset(tmp_path / "train.parquet", questions(5))
            with pytest.raises(EyrieError) as caught:
                run(tmp_path, [server], settings_of(tries=1))
        assert caught.value.code == "too-many-failed"
        assert "EngineDeadError" in caught.value.why
        assert not (tmp_path / "responses.parquet").exists()

    def test_share_of_failures_stops_early_with_the_three_commonest_reasons(self, tmp_path):
        rules = [Rule(f"number {n}", status=status) for n, status in enumerate((422, 418, 413, 410), start=1)]
        with FakeServer(rules, delay=0.02) as server:
            write_dataset(tmp_path / "train.parquet", questions(400))
            with pytest.raises(EyrieError) as caught:
                run(tmp_path, [server], settings_of(share_after=50, max_failed_share=0.1))
            assert server.stats.chat < 400
        assert caught.value.why.count("first:") == 3

    def test_wrong_model_name_stops_at_once(self, tmp_path):
        with FakeServer(
            [Rule(status=404, body=b'{"error": {"message": "The model `toy` does not exist."}}')]
        ) as server:
            write_dataset(tmp_path / "train.parquet", questions(50))
            with pytest.raises(EyrieError) as caught:
                run(tmp_path, [server])
            assert server.stats.chat <= 8
        assert caught.value.code == "server-refuses"
        assert "does not exist" in caught.value.what

    @pytest.mark.parametrize(
        "body", [b"not json", b"{}", b'{"choices": []}', b'{"choices": [{"message": null}]}', b"[1]"]
    )
    def test_answers_that_are_none_are_tried_again_then_counted(self, tmp_path, body):
        with FakeServer([Rule("number 1", body=body)]) as server:
            write_dataset(tmp_path / "train.parquet", questions(3))
            result = run(tmp_path, [server], settings_of(tries=2))
        assert result.account["failed"] == {"bad_answer": 1}

    def test_server_without_token_ids_is_named(self, tmp_path):
        with FakeServer([Rule(content="x", token_ids=False)]) as server:
            write_dataset(tmp_path / "train.parquet", questions(4))
            with pytest.raises(EyrieError) as caught:
                run(tmp_path, [server], settings_of(tries=1))
        assert "return_token_ids" in caught.value.why

    @pytest.mark.parametrize("reason", ["abort", "error"])
    def test_an_answer_that_the_engine_broke_off_is_asked_for_again(self, tmp_path, reason):
        broken = Rule("number 1", content="half an ans", finish_reason=reason, times=1)
        with FakeServer([broken]) as server:
            write_dataset(tmp_path / "train.parquet", questions(3))
            result = run(tmp_path, [server])
        assert texts(result)["q1"] == "answer to Q number 1?"
        assert result.account["kept"] == 3

    def test_prompt_that_crashes_the_server_is_isolated_and_never_asked_again(self, tmp_path):
        with FakeServer([Rule("number 7?", crash=0.3)], delay=0.03) as server:
            write_dataset(tmp_path / "train.parquet", questions(24))
            result = run(tmp_path, [server], settings_of(outage_limit_s=30))
            assert result.account["failed"] == {"poison": 1}
            assert result.account["kept"] == 23
            asked = server.stats.by_text["Q number 7?"]
            assert asked <= 8
            again = run(tmp_path, [server])
            assert server.stats.by_text["Q number 7?"] == asked
            assert again.account["failed"] == {"poison": 1}
            server.rules = []
            mended = run(tmp_path, [server], settings_of(retry_poison=True))
        assert mended.account["kept"] == 24

    def test_connection_that_breaks_for_one_prompt_alone_is_no_outage(self, tmp_path):
        with FakeServer([Rule("number 1", drop=True), Rule("number 2", drop=True, times=1)]) as server:
            write_dataset(tmp_path / "train.parquet", questions(6))
            result = run(tmp_path, [server])
        assert result.account["kept"] == 5
        assert result.account["failed"] == {"poison": 1}
        assert result.engine.endpoints[0].outages == 0


class TestContext:
    def test_max_tokens_is_clamped_to_the_context_that_is_left(self, tmp_path):
        with FakeServer(context=200) as server:
            write_dataset(tmp_path / "train.parquet", [[user("x" * 120)], [user("short")]])
            result = run(tmp_path, [server], settings_of(max_tokens=100))
            sent = {request["messages"][0]["content"][:5]: request["max_tokens"] for request in server.stats.requests}
            assert server.stats.paths["/tokenize"] >= 1
        assert len(result.rows) == 2
        assert sent["short"] == 100
        assert 16 <= sent["xxxxx"] < 100
        recorded = {row["id"]: json.loads(row["sampling"])["max_tokens"] for row in result.rows}
        assert recorded["q0"] == sent["xxxxx"]

    def test_without_tokenize_the_refusal_says_how_much_is_left(self, tmp_path):
        with FakeServer(context=200) as server:
            server.tokenize = False
            write_dataset(tmp_path / "train.parquet", [[user("x" * 120)]])
            result = run(tmp_path, [server], settings_of(max_tokens=100))
            assert server.stats.chat == 2
        assert len(result.rows) == 1

    @pytest.mark.parametrize("tokenize", [True, False])
    def test_prompt_that_fills_the_context_is_dropped_and_counted(self, tmp_path, tokenize):
        with FakeServer(context=200) as server:
            server.tokenize = tokenize
            write_dataset(tmp_path / "train.parquet", [[user("x" * 190)], [user("short")]])
            result = run(tmp_path, [server], settings_of(max_tokens=50))
        assert result.account["dropped"] == {"prompt_too_long": 1}
        assert result.account["kept"] == 1

    def test_long_conversations_are_not_cut_by_the_answers_limit(self, tmp_path, server):
        conversation = [turn for n in range(5) for turn in (user(f"turn {n}: " + "z" * 40), said("old"))]
        write_dataset(tmp_path / "train.parquet", [conversation])
        result = run(tmp_path, [server], settings_of(max_tokens=64))
        assert server.stats.chat == 5
        assert [row["turn"] for row in result.rows] == [0, 1, 2, 3, 4]
        assert all(len(row["prompt_ids"]) > 64 for row in result.rows[1:])


class TestSampling:
    def test_settings_are_sent_and_recorded(self, tmp_path, server):
        write_dataset(tmp_path / "train.parquet", questions(1))
        settings = settings_of(temperature=0.6, top_p=0.95, top_k=20, seed=1, chat_template_kwargs={"thinking": True})
        row = run(tmp_path, [server], settings).rows[0]
        sent, recorded = server.stats.requests[0], json.loads(row["sampling"])
        for name, value in {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "max_tokens": 64}.items():
            assert sent[name] == recorded[name] == value
        assert sent["seed"] == recorded["seed"]
        assert sent["chat_template_kwargs"] == recorded["chat_template_kwargs"] == {"thinking": True}
        assert recorded["model"] == "toy"

    def test_what_is_not_set_is_not_sent_and_says_server_default(self, tmp_path, server):
        write_dataset(tmp_path / "train.parquet", questions(1))
        row = run(tmp_path, [server], settings_of(temperature=None)).rows[0]
        sent, recorded = server.stats.requests[0], json.loads(row["sampling"])
        assert not {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"} & set(sent)
        assert recorded["temperature"] == recorded["top_p"] == "server default"

    def test_seeds_differ_by_prompt_and_turn_and_are_the_same_in_every_run(self, tmp_path):
        conversation = [user("first"), said("old"), user("second")]
        seeds = []
        for number in range(2):
            with FakeServer() as server:
                base = tmp_path / str(number)
                base.mkdir()
                write_dataset(base / "train.parquet", [*questions(3), conversation][:: 1 if number else -1])
                run(base, [server], settings_of(temperature=0.7))
                seeds.append({request["messages"][-1]["content"]: request["seed"] for request in server.stats.requests})
        assert seeds[0] == seeds[1]
        assert len(set(seeds[0].values())) == 5
        assert all(0 <= seed < 2**31 for seed in seeds[0].values())

    def test_greedy_needs_no_seed(self, tmp_path, server):
        write_dataset(tmp_path / "train.parquet", questions(1))
        run(tmp_path, [server])
        assert "seed" not in server.stats.requests[0]
        assert server.stats.requests[0]["temperature"] == 0.0

    def test_mix_follows_its_weights_and_each_prompt_keeps_its_kind(self, tmp_path):
        settings = settings_of(
            mix=[Mix(weight=3, temperature=0.0), Mix(weight=1, temperature=0.8, max_tokens=32)], concurrency=32
        )
        chosen = []
        for number in range(2):
            with FakeServer() as server:
                base = tmp_path / str(number)
                base.mkdir()
                write_dataset(base / "train.parquet", questions(400)[:: 1 if number else -1])
                run(base, [server], settings)
                chosen.append(
                    {r["messages"][0]["content"]: (r["temperature"], r["max_tokens"]) for r in server.stats.requests}
                )
        assert chosen[0] == chosen[1]
        sampled = sum(value == (0.8, 32) for value in chosen[0].values())
        assert 70 <= sampled <= 130, "a quarter of 400, within four standard deviations"
        assert set(chosen[0].values()) == {(0.0, 64), (0.8, 32)}


class TestSeveralEndpoints:
    def test_load_is_shared_by_speed(self, tmp_path):
        with FakeServer(delay=0.02) as quick, FakeServer(delay=0.2) as slow:
            write_dataset(tmp_path / "train.parquet", questions(120))
            result = run(tmp_path, [quick, slow], settings_of(concurrency=4))
            assert quick.stats.chat > 3 * slow.stats.chat > 0
        assert len(result.rows) == 120

    def test_one_dying_is_drained_and_its_work_moves(self, tmp_path):
        with FakeServer(delay=0.05) as stays, FakeServer(delay=0.05) as dies:
            dies.die_after, dies.die_for = 6, 3600
            write_dataset(tmp_path / "train.parquet", questions(60))
            result = run(tmp_path, [stays, dies], settings_of(concurrency=4, outage_limit_s=60))
        assert len(result.rows) == 60
        assert result.account["failed"] == {}
        assert [endpoint.outages for endpoint in result.engine.endpoints] == [0, 1]

    def test_one_that_comes_back_is_proven_and_used_again(self, tmp_path):
        proofs = []
        with FakeServer(delay=0.05) as stays, FakeServer(delay=0.05) as returns:
            returns.die_after, returns.die_for = 4, 0.4
            write_dataset(tmp_path / "train.parquet", questions(150))
            run(
                tmp_path,
                [stays, returns],
                settings_of(concurrency=4),
                hooks=Hooks(prove=lambda url: proofs.append(url)),
            )
            assert returns.stats.chat > 12
            assert proofs.count(returns.url) == 3
            assert proofs.count(stays.url) == 2

    def test_further_endpoint_that_is_no_baseline_is_left_out(self, tmp_path):
        def prove(url):
            if url == stranger.url:
                raise GateError("it counts drafted tokens", code="wrong-method")

        with FakeServer() as own, FakeServer() as stranger:
            write_dataset(tmp_path / "train.parquet", questions(20))
            result = run(tmp_path, [own, stranger], hooks=Hooks(prove))
            assert stranger.stats.chat == 0
        assert len(result.rows) == 20
        assert result.engine.endpoints[1].state == "closed"


class TestDeadlines:
    def rules(self, **values):
        return Rules(**{"think_tags": [], "opens_think": False, "min_answer": 16, "reasoning_retry": 1.0, **values})

    def endpoint(self, speed):
        return SimpleNamespace(speed=speed)

    def test_a_given_deadline_is_taken(self):
        assert deadline(self.rules(request_timeout=7.0, context=99), self.endpoint(10.0), 4000) == 7.0

    def test_else_it_grows_with_the_tokens_and_shrinks_with_the_measured_rate(self):
        rules = self.rules(request_timeout=0.0, context=99)
        assert deadline(rules, self.endpoint(0.0), 8000) >= 8000 / 8 + 120, "nothing measured yet: patient"
        assert deadline(rules, self.endpoint(80.0), 8000) == 120 + 8000 * 4 / 80
        assert deadline(rules, self.endpoint(80.0), 100) < deadline(rules, self.endpoint(8.0), 100)

    def test_server_that_only_puts_off_ends_the_run_within_the_limit(self, tmp_path):
        with FakeServer([Rule(status=429, headers={"Retry-After": "0.05"})]) as server:
            write_dataset(tmp_path / "train.parquet", questions(3))
            start = time.monotonic()
            with pytest.raises(EyrieError) as caught:
                run(tmp_path, [server], settings_of(outage_limit_s=0.5))
        assert time.monotonic() - start < 5
        assert caught.value.code == "server-refuses"
        assert "http_429" in caught.value.why


class TestSGLang:
    """The same answers from an engine that says some things in other places and words."""

    @pytest.fixture
    def server(self):
        with FakeServer(context=200) as running:
            running.sglang = True
            yield running

    def test_sampled_ids_are_those_that_vllm_would_have_given(self, tmp_path, server):
        write_dataset(tmp_path / "train.parquet", questions(5))
        found = run(tmp_path, [server]).rows
        server.sglang = False
        (tmp_path / "other").mkdir()
        write_dataset(tmp_path / "other" / "train.parquet", questions(5))
        assert found == run(tmp_path / "other", [server]).rows
        assert all(row["prompt_ids"] and row["output_ids"] for row in found)

    def test_a_prompt_that_leaves_little_room_is_answered_shorter(self, tmp_path, server):
        text = "x" * 120
        server.rules = [Rule(content="cut", finish_reason="length")]
        write_dataset(tmp_path / "train.parquet", [[user(text)]])
        result = run(tmp_path, [server], settings_of(max_tokens=100, truncated="keep"))
        assert len(result.rows) == 1
        prompt = len(result.rows[0]["prompt_ids"])
        assert json.loads(result.rows[0]["sampling"])["max_tokens"] == 200 - prompt

    def test_a_prompt_that_leaves_none_is_dropped(self, tmp_path, server):
        write_dataset(tmp_path / "train.parquet", [[user("x" * 190)], *questions(2)])
        result = run(tmp_path, [server])
        assert result.account["dropped"] == {"prompt_too_long": 1}
        assert result.account["kept"] == 2

"""The stage as a resource: plan, identity, run, verify, stop, two operators, full disk."""

from __future__ import annotations

import errno
import os
import signal
import time
import tracemalloc

import pyarrow
import pytest
import small_run
import toy
from fake_server import FakeServer, Rule
from harness import questions, said, user

from eyrie.core import planner, runner
from eyrie.core.errors import EyrieError, GateError, Interrupted, SpecError
from eyrie.core.pipeline import Pipeline
from eyrie.responses import as_is, asking, proof
from eyrie.responses import store as store_module
from eyrie.responses.store import Store


@pytest.fixture
def server(monkeypatch):
    with FakeServer() as running:
        small_run.serve_with(monkeypatch, [running.url])
        yield running


def pipeline(root, conversations=None, **values):
    made = Pipeline(small_run.spec(root, **values))
    small_run.ready(made, conversations if conversations is not None else questions(4))
    return made


class TestIdentity:
    def fingerprint(self, tmp_path, **values):
        return pipeline(tmp_path, **values).context("responses").fingerprint

    def test_what_cannot_change_an_answer_is_no_part(self, tmp_path, server):
        first = self.fingerprint(tmp_path)
        for values in ({"concurrency": 3}, {"tries": 9}, {"order": "longest_first"}, {"max_failed_share": 0.5}):
            assert self.fingerprint(tmp_path, responses=values) == first

    def test_what_can_is(self, tmp_path, server):
        seen = {self.fingerprint(tmp_path)}
        for values in (
            {"temperature": 0.5},
            {"seed": 1},
            {"max_tokens": 65},
            {"mix": [{"weight": 1}]},
            {"truncated": "keep"},
        ):
            seen.add(self.fingerprint(tmp_path, responses=values))
        seen.add(self.fingerprint(tmp_path, target={"chat_template": toy.TAGGED}))
        seen.add(self.fingerprint(tmp_path, dataset={"version": 1}))
        assert len(seen) == 8

    def test_another_engine_is_part_with_its_version(self, tmp_path, server):
        first = self.fingerprint(tmp_path)
        assert self.fingerprint(tmp_path, server={"engine": "vllm"}) == first
        other = pipeline(tmp_path, server={"engine": "sglang"}).context("responses")
        assert other.fingerprint != first
        assert set(other.identity["engine"]) == {"name", "sglang"}

    def test_an_engine_without_sampled_ids_is_refused_before_the_first_prompt(self, tmp_path, server, monkeypatch):
        made = pipeline(tmp_path)
        asks = lambda ctx: ([server.url], proof.prover(ctx, "elsewhere", lambda: None), None)  # noqa: E731
        monkeypatch.setattr(asking, "surroundings", asks)
        server.rules = [Rule(content="x", token_ids=False)]
        with pytest.raises(GateError) as caught:
            runner.run(made, "responses")
        assert caught.value.code == "no-token-ids"
        assert server.stats.chat == 1  # the probe alone

    def test_declared_template_is_named_when_it_changes(self, tmp_path, server):
        runner.run(pipeline(tmp_path), "responses")
        changed = pipeline(tmp_path, target={"chat_template": toy.TAGGED})
        names = [difference["name"] for difference in planner.plan(changed.context("responses"))["differences"]]
        assert names == ["chat_template"]

    def test_unknown_and_impossible_settings_are_refused(self, tmp_path, server):
        for values, text in (
            ({"temperatur": 1}, "Did you mean 'temperature'"),
            ({"truncated": "maybe"}, "'maybe' is none of"),
            ({"max_tokens": 0}, "at least 1"),
            ({"think_tags": ["<think>"]}, "opening and a closing"),
            ({"mix": [{"weight": 0}]}, "above 0"),
            ({"min_answer": 100}, "above max_tokens"),
        ):
            with pytest.raises(SpecError, match=text):
                pipeline(tmp_path, responses=values).context("responses")

    def test_max_tokens_beyond_the_context_is_refused_by_a_gate(self, tmp_path, server):
        gates = planner.plan(pipeline(tmp_path, responses={"max_tokens": 5000}).context("responses"))["gates"]
        assert [(gate["name"], gate["ok"]) for gate in gates] == [("context", False)]

    def test_plan_is_quick_and_reads_only(self, tmp_path, server):
        ctx = pipeline(tmp_path).context("responses")
        planner.plan(ctx)
        start = time.monotonic()
        plan = planner.plan(ctx)
        assert time.monotonic() - start < 0.1
        assert not ctx.base.exists()
        assert plan["forecast"]["basis"] == "counted"


class TestRun:
    def test_runs_verifies_and_is_up_to_date(self, tmp_path, server):
        made = pipeline(tmp_path)
        record = runner.run(made, "responses")
        ctx = made.context("responses")
        assert record["account"]["in"] == record["account"]["kept"] == 4
        assert ctx.stage.verify(ctx) == []
        assert planner.plan(ctx)["up_to_date"]
        runner.run(made, "responses")
        assert server.stats.chat == 4

    def test_figures_say_how_it_was_asked(self, tmp_path, server):
        figures = runner.run(pipeline(tmp_path, questions(20)), "responses")["figures"]
        assert figures["requests_answered"] == 20
        assert figures["turns"]["kept"] == 20
        assert figures["sampling"][0]["temperature"] == 0.0
        assert figures["concurrency"][0]["fixed"] is True
        assert figures["endpoints"][server.url]["answers"] == 20

    def test_measured_rates_make_the_next_forecast(self, tmp_path, server):
        made = pipeline(tmp_path, questions(20))
        runner.run(made, "responses")
        other = pipeline(tmp_path, questions(20), responses={"seed": 4})
        assert "measured" in planner.plan(other.context("responses"))["forecast"]["basis"]

    def test_server_is_wanted_only_while_something_is_missing(self, tmp_path, server):
        made = pipeline(tmp_path)
        ctx = made.context("responses")
        assert ctx.stage.wants_server(ctx)
        runner.run(made, "responses")
        kept = pipeline(tmp_path, responses={"truncated": "keep"}).context("responses")
        assert not kept.stage.wants_server(kept)
        changed = pipeline(tmp_path, questions(5), dataset={"version": 1}).context("responses")
        assert changed.stage.wants_server(changed)

    def test_store_is_shared_between_settings_and_carried_to_another_host(self, tmp_path, server):
        made = pipeline(tmp_path)
        runner.run(made, "responses")
        runner.run(pipeline(tmp_path, questions(6), dataset={"version": 1}), "responses")
        assert server.stats.chat == 6
        ctx = made.context("responses")
        assert ctx.stage.carry(ctx) == [ctx.out, ctx.base / "store"]

    def test_damaged_table_is_named(self, tmp_path, server):
        made = pipeline(tmp_path)
        runner.run(made, "responses")
        ctx = made.context("responses")
        table = ctx.out / "responses.parquet"
        data = bytearray(table.read_bytes())
        data[len(data) // 2 :] = b""
        table.write_bytes(data)
        assert [fault.code for fault in ctx.stage.verify(ctx)] == ["table-unreadable"]

    def test_table_of_another_count_is_named(self, tmp_path, server):
        made = pipeline(tmp_path)
        runner.run(made, "responses")
        other = pipeline(tmp_path, questions(3), dataset={"version": 1})
        runner.run(other, "responses")
        ctx = made.context("responses")
        (ctx.out / "responses.parquet").write_bytes((other.context("responses").out / "responses.parquet").read_bytes())
        assert [fault.code for fault in ctx.stage.verify(ctx)] == ["count"]

    def test_dataset_without_its_columns_is_named(self, tmp_path, server):
        import pyarrow as pa
        import pyarrow.parquet as pq

        made = pipeline(tmp_path)
        pq.write_table(pa.table({"id": ["a"]}), made.context("dataset").out / "train.parquet")
        with pytest.raises(EyrieError) as caught:
            runner.run(made, "responses")
        assert caught.value.code == "dataset-schema"
        assert "conversation" in caught.value.what

    def test_zero_kept_is_a_failure(self, tmp_path, server):
        server.rules = [Rule(content="cut", finish_reason="length")]
        with pytest.raises(EyrieError) as caught:
            runner.run(pipeline(tmp_path), "responses")
        assert caught.value.code == "zero-kept"
        assert "truncated 4" in caught.value.why

    def test_template_that_opens_thinking_is_recognised_from_the_model(self, tmp_path, server):
        made = pipeline(tmp_path)
        ctx = made.context("responses")
        assert asking.opens_think(ctx) is False
        (ctx.input("target").out / "chat_template.jinja").write_text(toy.THINKING)
        assert asking.opens_think(ctx) is True


class TestTroubles:
    def test_termination_keeps_what_is_answered(self, tmp_path, server):
        server.delay = 0.05
        made = pipeline(tmp_path, questions(60))
        pid = os.fork()
        if pid == 0:
            try:
                runner.run(made, "responses")
            except Interrupted:
                os._exit(7)
            os._exit(1)
        while server.stats.chat < 20:
            time.sleep(0.01)
        os.kill(pid, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        ctx = made.context("responses")
        assert ctx.state.status_of(ctx.record()) == "interrupted"
        record = runner.run(made, "responses")
        assert record["account"]["kept"] == 60
        assert server.stats.chat <= 60 + 8

    def test_second_operator_attaches_or_is_refused(self, tmp_path, server):
        server.delay = 0.1
        made = pipeline(tmp_path, questions(40))
        pid = os.fork()
        if pid == 0:
            runner.run(made, "responses")
            os._exit(0)
        while server.stats.chat < 8:
            time.sleep(0.01)
        with pytest.raises(EyrieError) as same:
            runner.run(made, "responses")
        other = pipeline(tmp_path, questions(40), responses={"seed": 3})
        with pytest.raises(EyrieError) as different:
            runner.run(other, "responses")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert (same.value.code, different.value.code) == ("running-same", "running-other")
        assert server.stats.chat == 40

    def test_store_under_another_writer_is_refused_before_a_request(self, tmp_path, server):
        made = pipeline(tmp_path)
        ctx = made.context("responses")
        with Store(ctx.base / "store"), pytest.raises(EyrieError) as caught:
            runner.run(made, "responses")
        assert caught.value.code == "store-held"
        assert server.stats.chat == 0

    def test_full_disk_stops_with_whole_records_and_the_next_run_goes_on(self, tmp_path, server, monkeypatch):
        made = pipeline(tmp_path, questions(50), responses={"concurrency": 2})
        real, room = os.write, [6000]

        def write(fd, data):
            if os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
                if room[0] <= 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                done = real(fd, bytes(data[: room[0]]))
                room[0] -= done
                return done
            return real(fd, data)

        server.delay = 0.01
        with monkeypatch.context() as patch:
            patch.setattr(store_module.os, "write", write)
            with pytest.raises(EyrieError) as caught:
                runner.run(made, "responses")
        assert caught.value.code == "disk-full"
        assert server.stats.chat < 50
        asked = server.stats.chat
        record = runner.run(made, "responses")
        assert record["account"]["kept"] == 50
        kept = record["figures"]["resumed"]
        assert kept >= 5
        assert server.stats.chat - asked == 50 - kept

    def test_memory_does_not_grow_with_the_prompts(self, tmp_path, server):
        """Four times the prompts and answers, the same memory: what is held is an index of some bytes a row."""
        peaks = []
        server.keep_requests = False
        server.rules = [Rule(content="word " * 400)]
        for count in (1000, 4000):
            asked = [[user(f"{n} " + "x" * 2000)] for n in range(count)]
            made = pipeline(tmp_path / str(count), asked, responses={"concurrency": 8})
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(read)
                tracemalloc.start()
                runner.run(made, "responses")
                os.write(write, str(peak_bytes()).encode())
                os._exit(0)
            os.close(write)
            peaks.append(int(os.read(read, 32)))
            os.close(read)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        answers = 4000 * (2000 + 2000 + 4 * 2000)  # bytes of prompt, answer and ids, at least
        assert peaks[1] - peaks[0] < answers / 8


def peak_bytes():
    """What Python and Arrow asked for at most; allocators' caches move the resident size by tens of megabytes."""
    return tracemalloc.get_traced_memory()[1] + pyarrow.default_memory_pool().max_memory()


class TestAsItIs:
    def test_own_answers_are_kept_without_ids_and_without_a_server(self, tmp_path, server):
        conversation = [user("Q1"), said("A1", reasoning="why"), user("Q2"), said("A2")]
        made = pipeline(tmp_path, [conversation, [user("no answer")]], responses={"regenerate": False})
        ctx = made.context("responses")
        assert not ctx.stage.wants_server(ctx)
        record = runner.run(made, "responses")
        assert record["account"]["kept"] == 1
        assert record["account"]["dropped"] == {"no_answer": 1}
        assert record["figures"]["on_policy"] is False
        assert record["figures"]["turns"]["kept"] == 2
        assert server.stats.chat == 0
        assert ctx.stage.verify(ctx) == []

    def test_sampling_settings_have_no_say(self, tmp_path, server):
        first = pipeline(tmp_path, responses={"regenerate": False}).context("responses").fingerprint
        second = pipeline(tmp_path, responses={"regenerate": False, "temperature": 1}).context("responses").fingerprint
        assert first == second

    def test_turns_before_a_question_are_no_answers(self):
        turns = list(as_is._turns([said("hello"), user("q"), said("a"), user("r"), said("b")]))
        assert [answer["content"] for _, answer in turns] == ["a", "b"]
        assert len(turns[0][0]) == 2

"""Rows, masks, the shuffled order, the data set as speculators reads it, and the stage around it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import toy
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "responses"))
import small_run
from fake_server import FakeServer, Rule
from harness import questions, said, user

from eyrie.core import runner
from eyrie.core.errors import EyrieError, SpecError
from eyrie.core.pipeline import Pipeline
from eyrie.tokens import arrow, audit, build, special
from eyrie.tokens.build import Turn
from eyrie.tokens.settings import Settings
from eyrie.tokens.verify import data_rows, verify


def turn(ids, spans, name="c", source="s", number=0):
    return Turn(name, source, number, np.array(ids, dtype=np.int32), spans)


def collect(turns, tmp_path, **values):
    return build.collect(iter(turns), Settings(**values), 300, tmp_path / "ids")


class TestMerge:
    def test_turn_that_repeats_the_earlier_row_joins_it(self):
        first = turn([1, 2, 3], [(2, 3)])
        second = turn([1, 2, 3, 4, 5], [(4, 5)], number=1)
        [merged] = build.merge(iter([first, second]))
        assert merged.ids.tolist() == [1, 2, 3, 4, 5]
        assert merged.spans == [(2, 3), (4, 5)]
        assert (merged.turn, merged.merged) == (1, 2)

    @pytest.mark.parametrize(
        "second",
        [
            turn([1, 2, 9, 4, 5], [(4, 5)], number=1),
            turn([1, 2, 4, 5], [(3, 4)], number=1),
            turn([1, 2, 3, 4, 5], [(4, 5)], name="other", number=1),
            turn([1, 2, 3, 4, 5], [(4, 5)], source="other", number=1),
            turn([1, 2, 3, 4], [(1, 4)], number=1),
        ],
        ids=["tokenised-otherwise", "history-stripped", "other-conversation", "other-source", "answer-within"],
    )
    def test_others_stay_apart(self, second):
        assert len(list(build.merge(iter([turn([1, 2, 3], [(2, 3)]), second])))) == 2


class TestCollect:
    def test_three_classes_are_counted(self, tmp_path):
        turns = [
            turn([1] * 10, [(5, 10)], "kept"),
            turn([1] * 30, [(5, 30)], "clipped"),
            turn([1] * 30, [(20, 30)], "filled"),
            turn([1] * 20, [(20, 20)], "empty"),
        ]
        rows, _ = collect(turns, tmp_path, seq_length=20)
        assert rows.lengths == [10, 20]
        assert rows.clipped == {"s": 1}
        assert rows.account.as_dict()["dropped"] == {"nothing_supervised": 1, "prompt_fills_window": 1}
        assert rows.account.balanced

    def test_overlong_rows_can_be_left_out(self, tmp_path):
        rows, _ = collect([turn([1] * 30, [(5, 30)])], tmp_path, seq_length=20, overlong="drop")
        assert rows.account.dropped == {"overlong": 1}

    def test_rows_with_too_little_to_learn_are_left_out(self, tmp_path):
        rows, _ = collect([turn([1] * 9, [(8, 9)])], tmp_path, min_supervised=2)
        assert rows.account.dropped == {"too_few_supervised": 1}

    def test_clipping_loses_later_answers_of_a_merged_row(self, tmp_path):
        rows, _ = collect([turn([1] * 30, [(2, 5), (25, 30)])], tmp_path, seq_length=20)
        assert rows.spans == [(2, 5)]

    def test_id_outside_the_vocabulary_is_named(self, tmp_path):
        with pytest.raises(EyrieError) as caught:
            collect([turn([1, 300], [(1, 2)], "row7")], tmp_path)
        assert "300" in caught.value.what
        assert "row7" in caught.value.where

    def test_supervised_and_other_positions_are_counted_apart(self, tmp_path):
        _, counts = collect([turn([5, 5, 7, 8, 7], [(2, 3), (4, 5)]), turn([7, 9], [(1, 2)], source="t")], tmp_path)
        assert {token: int(count) for token, count in enumerate(counts.supervised) if count} == {7: 2, 9: 1}
        assert {token: int(count) for token, count in enumerate(counts.context) if count} == {5: 2, 7: 1, 8: 1}
        assert [int(counts.by_source[n].sum()) for n in (0, 1)] == [2, 1]

    def test_two_beginnings_are_counted(self, tmp_path):
        turns = [turn([3, 3, 1], [(2, 3)], "a"), turn([3, 1, 1], [(2, 3)], "b")]
        rows, _ = build.collect(iter(turns), Settings(), 300, tmp_path / "ids", bos=3)
        assert rows.doubled == 1
        assert "two beginning-of-sequence" in audit.warnings(rows, Settings())[0]

    def test_many_cut_rows_are_warned_of(self, tmp_path):
        rows, _ = collect([turn([1] * 30, [(5, 30)])], tmp_path, seq_length=20)
        assert "seq_length 20" in audit.warnings(rows, Settings(seq_length=20))[0]


class TestOrder:
    def rows(self, tmp_path, conversations):
        return collect(
            [turn([1, 2], [(1, 2)], f"c{c}", number=n) for c in range(conversations) for n in range(3)], tmp_path
        )[0]

    def test_turns_of_one_conversation_stay_together_in_order(self, tmp_path):
        rows = self.rows(tmp_path, 40)
        order = build.order(rows, 0).tolist()
        assert sorted(order) == list(range(120))
        names = [(rows.ids[row], rows.turns[row]) for row in order]
        assert all(names[at : at + 3] == [(names[at][0], n) for n in range(3)] for at in range(0, 120, 3))

    def test_a_split_by_position_parts_one_conversation_at_most(self, tmp_path):
        rows = self.rows(tmp_path, 40)
        order = build.order(rows, 0).tolist()
        for cut in range(1, 119):
            before, after = ({rows.ids[row] for row in part} for part in (order[:cut], order[cut:]))
            assert len(before & after) <= 1

    def test_seed_decides(self, tmp_path):
        rows = self.rows(tmp_path, 40)
        assert build.order(rows, 0).tolist() == build.order(rows, 0).tolist() != build.order(rows, 1).tolist()
        assert build.order(rows, 0).tolist() != list(range(120))


class TestDataset:
    def test_speculators_reads_what_we_write(self, tmp_path):
        """The trainer's own data class loads the folder; ids and mask come as int64, as its own preparation gives."""
        import torch
        from speculators.train.data import ArrowDataset

        rows = [([1, 2, 3], [0, 1, 1]), ([4, 5], [0, 1]), ([6], [1])]
        with arrow.DatasetWriter(tmp_path / "data", 6) as data:
            for ids, mask in rows:
                data.add(np.array(ids, dtype=np.int32), np.array(mask, dtype=np.int8))
        read = ArrowDataset(16, tmp_path / "data")
        assert read.approx_lengths == [3, 2, 1]
        for (ids, mask), row in zip(rows, read.data, strict=True):
            assert torch.equal(row["input_ids"], torch.tensor(ids))
            assert torch.equal(row["loss_mask"], torch.tensor(mask))
            assert row["input_ids"].dtype == row["loss_mask"].dtype == torch.int64

    def test_large_data_is_split_into_shards_that_read_as_one(self, tmp_path, monkeypatch):
        from datasets import load_from_disk

        monkeypatch.setattr(arrow, "SHARD_TOKENS", 500)
        monkeypatch.setattr(arrow, "BATCH_ROWS", 10)
        with arrow.DatasetWriter(tmp_path / "data", 2000) as data:
            for number in range(200):
                data.add(np.full(10, number, dtype=np.int32), np.ones(10, dtype=np.int8))
        assert len(list((tmp_path / "data").glob("*.arrow"))) == 4
        read = load_from_disk(str(tmp_path / "data"))
        assert [int(row["input_ids"][0]) for row in read] == list(range(200))
        assert [int(ids[0]) for ids, _, _ in data_rows(tmp_path / "data")] == list(range(200))

    def test_interrupted_writing_leaves_nothing_that_loads(self, tmp_path):
        def interrupted():
            with arrow.DatasetWriter(tmp_path / "data", 10) as data:
                data.add(np.ones(5, dtype=np.int32), np.ones(5, dtype=np.int8))
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert not (tmp_path / "data" / "state.json").exists()

    def test_old_files_of_the_folder_go(self, tmp_path):
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "data-00000-of-00009.arrow").write_bytes(b"stale")
        with arrow.DatasetWriter(tmp_path / "data", 1) as data:
            data.add(np.ones(1, dtype=np.int32), np.ones(1, dtype=np.int8))
        assert len(list(data_rows(tmp_path / "data"))) == 1

    @given(st.lists(st.lists(st.booleans(), min_size=1, max_size=20), min_size=1, max_size=12))
    def test_any_masks_are_read_back(self, tmp_path_factory, masks):
        folder = tmp_path_factory.mktemp("data")
        with arrow.DatasetWriter(folder, sum(map(len, masks))) as data:
            for mask in masks:
                data.add(np.arange(len(mask), dtype=np.int32), np.array(mask, dtype=np.int8))
        assert [mask.tolist() for _, mask, _ in data_rows(folder)] == [[int(b) for b in mask] for mask in masks]


class TestSpecial:
    def test_ends_roles_and_tags_are_required_and_reserved_slots_are_not(self, tmp_path):
        model = toy.make_model(tmp_path)
        config = json.loads((model / "tokenizer_config.json").read_text())
        more = {"300": {"content": "<|reserved_special_token_7|>"}, "301": {"content": "<|image_pad|>"}}
        toy.write(model / "tokenizer_config.json", {**config, "added_tokens_decoder": more})
        required = special.required(model, toy.PLAIN, 400, [])
        assert {toy.EOS, toy.EOT, toy.START, toy.END, toy.THINK, toy.UNTHINK, toy.CALL} <= set(required.values())
        assert not {"<|reserved_special_token_7|>", "<|image_pad|>"} & set(required.values())
        seen = np.zeros(400, dtype=np.int64)
        seen[300] = 1
        assert 300 in special.required(model, toy.PLAIN, 400, [], seen)
        assert 301 in special.required(model, toy.PLAIN + "<|image_pad|>", 400, [])

    def test_token_asked_for_by_name_is_in_and_an_unknown_one_is_named(self, tmp_path):
        model = toy.make_model(tmp_path)
        assert toy.BOS in special.required(model, "", 400, [toy.BOS]).values()
        with pytest.raises(EyrieError, match="<nope>"):
            special.required(model, "", 400, ["<nope>"])

    def test_declared_vocabulary_must_be_the_models_own(self, tmp_path):
        model = toy.make_model(tmp_path)
        assert special.vocab_size(model, 264) == 264
        with pytest.raises(EyrieError, match="264 ids, eyrie_target_vocab_size says 300"):
            special.vocab_size(model, 300)

    def test_nested_text_config_is_read(self, tmp_path):
        toy.write(tmp_path / "config.json", {"text_config": {"vocab_size": 99, "eos_token_id": [5, 6]}})
        assert special.vocab_size(tmp_path, 99) == 99
        assert special.end_tokens(tmp_path) == {5, 6}


@pytest.fixture
def server(monkeypatch):
    with FakeServer() as running:
        small_run.serve_with(monkeypatch, [running.url])
        yield running


def made(tmp_path, conversations=None, template=toy.PLAIN, **values):
    pipeline = Pipeline(small_run.spec(tmp_path, **values))
    small_run.ready(pipeline, conversations or questions(6), template)
    return pipeline


def go(pipeline):
    runner.run(pipeline, "responses")
    record = runner.run(pipeline, "tokens")
    return record, pipeline.context("tokens")


class TestStage:
    def test_what_was_sampled_is_what_is_supervised(self, tmp_path, server):
        record, ctx = go(made(tmp_path))
        samples = pq.read_table(ctx.out / "samples.parquet").to_pylist()
        for (ids, mask, length), sample in zip(data_rows(ctx.out / "data"), samples, strict=True):
            assert bytes(ids[mask == 1].tolist()) == f"answer to Q number {sample['id'][1:]}?".encode() + b"\0"
            assert (sample["length"], sample["supervised"]) == (length, int(mask.sum()))
        assert record["account"]["kept"] == 6
        assert ctx.stage.verify(ctx) == []

    def test_frequencies_are_always_there_and_count_supervised_tokens(self, tmp_path, server):
        import torch

        record, ctx = go(made(tmp_path))
        frequencies = torch.load(ctx.out / "token_freq.pt", weights_only=True)
        counted = Counter(int(t) for ids, mask, _ in data_rows(ctx.out / "data") for t in ids[mask == 1])
        assert frequencies == dict(counted)
        assert sum(frequencies.values()) == record["figures"]["supervised_tokens"]

    def test_draft_vocabulary_is_written_as_the_trainer_reads_it(self, tmp_path, server):
        from speculators.train.cli import _load_mappings

        record, ctx = go(made(tmp_path, tokens={"draft_vocab_size": 50}))
        _, t2d, size = _load_mappings(ctx.out / "vocab" / "d2t.npy", ctx.out / "vocab" / "t2d.npy", 50)
        assert (size, len(t2d), int(t2d.sum())) == (50, 264, 50)
        figures = record["figures"]["vocabulary"]
        assert figures["coverage"] == 1.0
        assert figures["filled"] + figures["from_prompts"] > 0
        assert all(t2d[int(token)] for token in figures["required_tokens"])
        assert ctx.stage.verify(ctx) == []

    def test_without_a_size_there_is_no_mapping(self, tmp_path, server):
        record, ctx = go(made(tmp_path))
        assert not (ctx.out / "vocab").exists()
        assert record["figures"]["vocabulary"]["reduced"] is False

    def test_sizes_in_one_run_do_not_meet(self, tmp_path, server):
        found = []
        for size in (50, 60, None):
            _, ctx = go(made(tmp_path, tokens={"draft_vocab_size": size}))
            found.append(json.loads((ctx.out / "vocab.json").read_text())["draft_vocab_size"])
        assert found == [50, 60, 264]
        assert server.stats.chat == 6, "another draft vocabulary asks for nothing"

    def test_text_of_a_number_is_taken_as_one_and_others_are_refused(self, tmp_path, server):
        assert made(tmp_path, tokens={"draft_vocab_size": "50"}).context("tokens").settings.draft_vocab_size == 50
        for value in (0, -1, "many"):
            with pytest.raises(SpecError):
                made(tmp_path, tokens={"draft_vocab_size": value}).context("tokens")

    def test_size_beyond_the_target_is_refused_by_a_gate(self, tmp_path, server):
        pipeline = made(tmp_path, tokens={"draft_vocab_size": 500})
        runner.run(pipeline, "responses")
        with pytest.raises(EyrieError, match="500 of 264"):
            runner.run(pipeline, "tokens")

    def test_coverage_is_given_per_source_and_the_bound_can_fail(self, tmp_path, server):
        server.rules = [Rule(content="abcdefghijklmnopqrstuvwxyz0123456789")]
        tight = {"draft_vocab_size": 10, "min_coverage": 0.9, "coverage_policy": "fail"}
        with pytest.raises(EyrieError) as caught:
            go(made(tmp_path, tokens=tight))
        assert caught.value.code == "coverage-low"
        record, _ = go(made(tmp_path, tokens={**tight, "coverage_policy": "warn"}))
        assert set(record["figures"]["vocabulary"]["below_bound"]["coverage"]) == {"src", "latin script"}

    def test_turns_of_one_conversation_share_a_row_where_history_repeats(self, tmp_path, server):
        conversation = [user("one"), said("x"), user("two")]
        record, _ = go(made(tmp_path, [conversation, *questions(3)]))
        assert record["account"]["in"] == 5
        assert record["figures"]["rows"] + record["figures"]["merged_turns"] == 5

    def test_audit_shows_masked_and_supervised_text(self, tmp_path, server):
        record, ctx = go(made(tmp_path, responses={"regenerate": False}, conversations=[[user("Q"), said("A")]]))
        shown = json.loads((ctx.out / "audit.json").read_text())
        assert shown["samples"][0]["segments"] == [
            {"text": "<|s|>user\nQ<|e|>\n<|s|>assistant\n", "supervised": False},
            {"text": "A<|e|>", "supervised": True},
        ]
        assert record["figures"]["supervised_share"] == shown["supervised_share"] == {"src": round(2 / 22, 4)}
        entry = {"rows": 1, "tokens": 22, "supervised": 2, "clipped": 0, "dropped": {}}
        assert shown["sources"] == {"src": entry}
        assert (shown["samples"][0]["length"], shown["samples"][0]["supervised"]) == (22, 2)

    def test_audit_shows_each_source_and_what_it_lost(self, tmp_path):
        turns = [turn([1] * 4, [(2, 4)], f"{source}{n}", source) for n in range(3) for source in ("b", "a")]
        turns += [turn([1] * 30, [(5, 30)], "long", "a"), turn([1] * 30, [(25, 30)], "full", "c")]
        rows, _ = collect(turns, tmp_path, seq_length=20)
        model = toy.make_model(tmp_path / "model")
        found = audit.audit(rows, model, False, Settings(audit_samples=2))
        assert [sample["source"] for sample in found["samples"]] == ["a", "a", "b", "b"]
        assert found["sources"]["a"] == {"rows": 4, "tokens": 32, "supervised": 21, "clipped": 1, "dropped": {}}
        assert found["sources"]["c"]["dropped"] == {"prompt_fills_window": 1}
        assert found["supervised_share"] == {"a": round(21 / 32, 4), "b": 0.5}

    def test_answers_as_they_are_get_their_masks_from_the_template(self, tmp_path, server):
        conversations = [[user("Q1"), said("A1"), user("Q2"), said("A2")]]
        record, ctx = go(made(tmp_path, conversations, toy.STRICT, responses={"regenerate": False}))
        [(ids, mask, _)] = list(data_rows(ctx.out / "data"))
        spans = np.flatnonzero(np.diff(mask, prepend=0, append=0)).reshape(-1, 2).tolist()
        from eyrie.tokens.tokenizer import Tokenizer

        assert toy.spans_text(Tokenizer.load(ctx.input("target").out), ids, spans) == ["A1<|eot|>", "A2<|eot|>"]
        assert record["account"]["kept"] == 2

    def test_row_that_fills_the_window_alone_is_a_failure_not_an_empty_success(self, tmp_path, server):
        pipeline = made(tmp_path, tokens={"seq_length": 5})
        runner.run(pipeline, "responses")
        with pytest.raises(EyrieError) as caught:
            runner.run(pipeline, "tokens")
        assert caught.value.code == "zero-kept"
        assert "prompt_fills_window 6" in caught.value.why

    def test_two_runs_write_the_same_bytes(self, tmp_path, server):
        contents = []
        for name in ("a", "b"):
            _, ctx = go(made(tmp_path / name, tokens={"draft_vocab_size": 50}))
            files = sorted(path for path in ctx.out.rglob("*") if path.is_file() and path.name != "token_freq.pt")
            contents.append([(path.relative_to(ctx.out), path.read_bytes()) for path in files])
        assert contents[0] == contents[1]

    @pytest.mark.parametrize(
        ("damage", "code"),
        [
            (lambda out: flip(out / "data" / "data-00000-of-00001.arrow", b"answer"), "row-key"),
            (lambda out: (out / "data" / "data-00000-of-00001.arrow").write_bytes(b""), "data-unreadable"),
            (lambda out: np.save(out / "vocab" / "d2t.npy", np.zeros(50, dtype=np.int64)), "vocab-refused"),
            (lambda out: (out / "vocab" / "t2d.npy").unlink(), "vocab-unreadable"),
        ],
        ids=["changed-id", "emptied", "other-table", "missing-table"],
    )
    def test_damage_is_named(self, tmp_path, server, damage, code):
        record, ctx = go(made(tmp_path, tokens={"draft_vocab_size": 50}))
        damage(ctx.out)
        assert code in {fault.code for fault in verify(ctx.out, 264, record)}


def flip(path, text):
    """Change one supervised id in the stored data."""
    data = bytearray(path.read_bytes())
    place = bytes(data).find(np.array(list(text), dtype="<i4").tobytes())
    assert place > 0
    data[place] += 1
    path.write_bytes(data)

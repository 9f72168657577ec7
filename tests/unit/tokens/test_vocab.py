"""The draft vocabulary: offsets and mask that agree, special tokens in, nothing filled in silence."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyrie.core.errors import EyrieError
from eyrie.tokens import vocab

V = 40
TARGETS = [0, 2, 3, 7, 11, 20, 31, 39]


def tables(targets, size=V):
    ids = np.array(targets, dtype=np.int64)
    mask = np.zeros(size, dtype=np.bool_)
    mask[ids[(ids >= 0) & (ids < size)]] = True
    return ids - np.arange(len(ids)), mask


def counts(values, size=V):
    out = np.zeros(size, dtype=np.int64)
    for token, count in values.items():
        out[token] = count
    return out


def refused(d2t, t2d, size=V, draft_size=None):
    with pytest.raises(EyrieError) as caught:
        vocab.check_tables(d2t, t2d, size, draft_size)
    return caught.value.what


class TestCheck:
    def test_offsets_that_agree_with_the_mask_pass(self):
        d2t, t2d = tables(TARGETS)
        vocab.check_tables(d2t, t2d, V, 8)
        assert list(np.arange(8) + d2t) == TARGETS

    def test_absolute_ids_are_recognised(self):
        _, t2d = tables(TARGETS)
        assert "absolute ids" in refused(np.array(TARGETS), t2d)

    def test_absolute_ids_within_the_vocabulary_are_recognised_too(self):
        targets = [0, 2, 3, 7, 11, 12, 13, 14]
        _, t2d = tables(targets)
        assert "absolute ids" in refused(np.array(targets), t2d)

    def test_default_range_used_as_offsets_is_refused(self):
        _, t2d = tables(TARGETS)
        assert "contradict" in refused(np.arange(8), t2d)

    @pytest.mark.parametrize(
        ("targets", "named"),
        [
            ([0, 2, 3, 7, 11, 20, 31, 40], "d2t[7] = 33 gives target id 40, allowed is 0..39"),
            ([-1, 2, 3, 7, 11, 20, 31, 39], "d2t[0] = -1 gives target id -1, allowed is 0..39"),
            ([0, 2, 2, 7, 11, 20, 31, 39], "d2t[2] = 0 gives target id 2 after 2"),
            ([2, 0, 3, 7, 11, 20, 31, 39], "d2t[1] = -1 gives target id 0 after 2"),
        ],
        ids=["beyond", "negative", "twice", "falling"],
    )
    def test_ids_outside_or_out_of_order_are_named(self, targets, named):
        d2t, t2d = tables(targets)
        assert named in refused(d2t, t2d)

    def test_contradiction_names_the_first_id(self):
        d2t, t2d = tables(TARGETS)
        t2d[39], t2d[38] = False, True
        assert "lacks target id 38" in refused(d2t, t2d)

    def test_missing_mark_is_refused(self):
        d2t, t2d = tables(TARGETS)
        t2d[7] = False
        assert "has target id 7" in refused(d2t, t2d)

    def test_mask_of_another_length_is_refused(self):
        d2t, t2d = tables([0, 2, 3, 7, 11, 20, 21, 31], 32)
        assert "t2d has 32 entries, the target's vocabulary has 40" in refused(d2t, t2d)

    def test_size_of_another_run_is_refused(self):
        d2t, t2d = tables(TARGETS)
        assert "8 ids, draft_vocab_size is 16" in refused(d2t, t2d, draft_size=16)

    @pytest.mark.parametrize("d2t", [np.zeros(8), np.zeros((2, 4), dtype=int)])
    def test_other_types_are_refused(self, d2t):
        assert "vector of integers" in refused(d2t, tables(TARGETS)[1])

    def test_mask_of_numbers_is_refused(self):
        d2t, t2d = tables(TARGETS)
        assert "vector of booleans" in refused(d2t, t2d.astype(np.int64))

    def test_lowest_ids_alone_are_no_vocabulary(self):
        with pytest.raises(EyrieError, match=r"only ever say ids 0\.\.7 of 40"):
            vocab.check_not_a_slice(np.zeros(8, dtype=np.int64), V)
        vocab.check_not_a_slice(np.zeros(V, dtype=np.int64), V)
        vocab.check_not_a_slice(tables(TARGETS)[0], V)

    @given(st.sets(st.integers(0, V - 1), min_size=1, max_size=V))
    def test_every_ascending_set_passes(self, chosen):
        d2t, t2d = tables(sorted(chosen))
        vocab.check_tables(d2t, t2d, V, len(chosen))

    @given(st.sets(st.integers(0, V - 1), min_size=2, max_size=V - 1), st.data())
    def test_no_single_changed_offset_passes(self, chosen, data):
        d2t, t2d = tables(sorted(chosen))
        place = data.draw(st.integers(0, len(d2t) - 1))
        d2t[place] += data.draw(st.integers(-V, V).filter(bool))
        refused(d2t, t2d)


class TestBuild:
    def test_too_few_distinct_tokens_are_filled_the_same_way_each_time_and_counted(self, caplog):
        with caplog.at_level(logging.WARNING):
            built = vocab.build(counts({1: 9, 5: 7, 6: 3}), 8)
        again = vocab.build(counts({1: 9, 5: 7, 6: 3}), 8)
        assert list(built.ids) == list(again.ids)
        assert len(set(built.ids.tolist())) == 8
        assert {1, 5, 6} <= set(built.ids.tolist())
        assert built.t2d.sum() == 8
        assert (built.seen, built.filled) == (3, 5)
        assert "5 of 8 ids of the draft vocabulary are never seen" in caplog.text
        vocab.check_tables(built.d2t, built.t2d, V, 8)

    def test_filling_takes_what_prompts_hold_before_the_lowest_ids(self):
        built = vocab.build(counts({1: 9}), 3, context=counts({30: 2, 31: 5, 32: 1}))
        assert list(built.ids) == [1, 30, 31]
        assert (built.from_prompts, built.filled) == (2, 0)

    def test_enough_tokens_warn_of_nothing(self, caplog):
        with caplog.at_level(logging.WARNING):
            built = vocab.build(counts({5: 1, 7: 3, 9: 2}), 2)
        assert list(built.ids) == [7, 9]
        assert caplog.text == ""

    def test_ties_go_to_the_lower_id(self):
        assert list(vocab.build(counts(dict.fromkeys((9, 4, 6), 2)), 2).ids) == [4, 6]

    def test_required_tokens_are_in_though_never_seen(self):
        built = vocab.build(counts({1: 9, 2: 8, 3: 7}), 2, required=[39])
        assert list(built.ids) == [1, 39]
        assert built.filled == 0

    def test_more_required_than_room_is_refused(self):
        with pytest.raises(EyrieError) as caught:
            vocab.build(counts({1: 9}), 2, required=[3, 4, 5])
        assert caught.value.code == "vocab-too-small"

    def test_required_outside_is_refused(self):
        with pytest.raises(EyrieError, match=r"\[40\]"):
            vocab.build(counts({1: 9}), 2, required=[40])

    @pytest.mark.parametrize("size", [0, -1, 11, True])
    def test_sizes_that_cannot_be_are_refused_with_both_numbers(self, size):
        with pytest.raises(EyrieError) as caught:
            vocab.build(np.ones(10, dtype=np.int64), size)
        assert repr(size) in caught.value.what
        assert "10" in caught.value.what

    def test_the_whole_vocabulary_is_the_identity(self):
        built = vocab.build(np.ones(10, dtype=np.int64), 10)
        assert not built.d2t.any()
        assert built.t2d.all()

    @given(
        st.dictionaries(st.integers(0, V - 1), st.integers(1, 50)),
        st.integers(1, V),
        st.sets(st.integers(0, V - 1), max_size=3),
    )
    def test_any_counts_give_tables_that_pass(self, values, size, required):
        if len(required) > size:
            return
        built = vocab.build(counts(values), size, required)
        vocab.check_tables(built.d2t, built.t2d, V, size)
        assert required <= set(built.ids.tolist())
        left_out = [count for token, count in values.items() if not built.t2d[token]]
        chosen = [values.get(token, 0) for token in built.ids.tolist() if token not in required]
        assert not left_out or not chosen or max(left_out) <= min(chosen)


def test_ids_beyond_the_vocabulary_are_named():
    with pytest.raises(EyrieError, match=r"\[41\]") as caught:
        vocab.check_ids({1: 5, 39: 2, 41: 9}, 40, tokenizer_size=43)
    assert "43" in caught.value.why
    vocab.check_ids({1: 5, 39: 2}, 40)


def test_coverage_is_the_share_of_counted_tokens():
    _, t2d = tables([1, 2])
    assert vocab.coverage(counts({1: 3, 5: 1}), t2d) == 0.75
    assert vocab.coverage(counts({}), t2d) == 1.0

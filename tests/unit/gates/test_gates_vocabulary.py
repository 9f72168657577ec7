"""The draft's vocabulary: offsets, not ids; in range, rising, agreeing; never the first slice by accident."""

import pytest
from checkpoints import DRAFT_VOCAB, TARGETS, VOCAB
from hypothesis import given
from hypothesis import strategies as st

from eyrie.gates import vocabulary


def offsets(targets):
    return [token - index for index, token in enumerate(targets)]


def mask(targets, vocab=VOCAB):
    return [token in set(targets) for token in range(vocab)]


def reason(d2t, t2d, draft_vocab=DRAFT_VOCAB, vocab=VOCAB):
    return vocabulary.mapping(d2t, t2d, draft_vocab, vocab)


def test_a_right_mapping_passes():
    assert reason(offsets(TARGETS), mask(TARGETS)) is None


@given(st.sets(st.integers(0, 199), min_size=1, max_size=60))
def test_every_right_mapping_passes_and_every_shifted_entry_does_not(targets):
    ordered = sorted(targets)
    if ordered == list(range(len(ordered))):  # only the first ids: that is its own refusal
        assert "never made" in reason(offsets(ordered), mask(ordered, 200), len(ordered), 200)
        return
    assert reason(offsets(ordered), mask(ordered, 200), len(ordered), 200) is None
    for index in range(len(ordered)):
        wrong = offsets(ordered)
        wrong[index] += 1
        assert reason(wrong, mask(ordered, 200), len(ordered), 200) is not None


def test_absolute_ids_are_recognised():
    assert "looks like absolute ids" in reason(TARGETS, mask(TARGETS))
    counted = list(range(DRAFT_VOCAB))  # 0, 1, 2...: read as offsets they mean every second id
    assert reason(counted, mask(TARGETS)) is not None
    assert "absolute" in reason(counted, mask(counted))


def test_a_mapping_that_was_never_made():
    first = list(range(DRAFT_VOCAB))
    assert "can only say target ids 0..7" in reason([0] * DRAFT_VOCAB, mask(first))
    assert reason([0] * VOCAB, mask(range(VOCAB)), VOCAB) is None  # the whole vocabulary maps to itself
    assert "missing" in reason(None, None)
    assert reason(None, None, VOCAB) is None
    assert "t2d is missing" in reason(offsets(TARGETS), None)
    assert "d2t is missing" in reason(None, mask(TARGETS))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({7: 33}, "d2t[7] points to target id 40, allowed are 0..39"),
        ({0: -1}, "d2t[0] points to target id -1"),
        ({1: 1, 2: 0}, "d2t[2] points to target id 2, not above 2"),
        ({1: 1, 2: -2}, "d2t[2] points to target id 0, not above 2"),
    ],
)
def test_entries_out_of_range_double_or_falling(changes, said):
    table = offsets(TARGETS)
    for index, value in changes.items():
        table[index] = value
    assert said in reason(table, mask(TARGETS))


def test_tables_that_contradict_each_other():
    moved = mask([*TARGETS[:-1], 38])
    assert "first at target id 38: only t2d marks it" in reason(offsets(TARGETS), moved)
    assert "t2d marks 7 target ids" in reason(offsets(TARGETS), mask(TARGETS[:-1]))
    assert "t2d has 32 entries" in reason(offsets(TARGETS), mask(TARGETS)[:32])
    assert "d2t has 7 entries" in reason(offsets(TARGETS)[:-1], mask(TARGETS))


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0 must lie in 1..10"), (-1, "-1"), (11, "11 must lie in 1..10"), ("8", "'8'"), (True, "True"), (2.5, "2.5")],
)
def test_sizes_that_are_refused(size, said):
    assert said in vocabulary.size(size, 10)
    assert "draft_vocab_size" in vocabulary.size(size, 10)


@pytest.mark.parametrize("size", [None, 1, 8, 10])
def test_sizes_that_pass(size):
    assert vocabulary.size(size, 10) is None

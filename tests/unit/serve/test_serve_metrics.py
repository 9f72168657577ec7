"""Counters: parsed, summed, subtracted; acceptance length = 1 + accepted / drafts."""

import pytest

from eyrie.core.errors import EyrieError
from eyrie.serve import metrics

TEXT = """# HELP vllm:spec_decode_num_drafts_total Number of drafts
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="a b}}c"}} {drafts}
vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {tokens}
vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} {p0}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="1"}} {p1}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="2"}} {p2}
process_cpu_seconds_total 12.5
broken line
vllm:empty{{}} NaN
"""


def samples(drafts, tokens, accepted, p0, p1, p2):
    return metrics.parse(TEXT.format(drafts=drafts, tokens=tokens, accepted=accepted, p0=p0, p1=p1, p2=p2))


BEFORE = samples(1000, 3000, 300, 200, 70, 30)
AFTER = samples(1100, 3300, 480, 290, 125, 65)


def test_the_difference_counts_not_the_total():
    found = metrics.acceptance(BEFORE, AFTER)
    assert (found["drafts"], found["draft_tokens"], found["accepted"]) == (100, 300, 180)
    assert found["length"] == pytest.approx(2.8)
    assert found["per_position"] == pytest.approx([0.90, 0.55, 0.35])


def test_several_engines_are_summed():
    two = {key.replace('engine="0"', 'engine="1"'): value for key, value in AFTER.items()} | AFTER
    one = {key.replace('engine="0"', 'engine="1"'): value for key, value in BEFORE.items()} | BEFORE
    assert metrics.acceptance(one, two)["length"] == pytest.approx(2.8)
    assert metrics.acceptance(one, two)["drafts"] == 200


@pytest.mark.parametrize("name", ["drafts", "p1"])
def test_a_counter_that_went_down_is_a_restart(name):
    values = {"drafts": 1100, "tokens": 3300, "accepted": 480, "p0": 290, "p1": 125, "p2": 65} | {name: 3}
    with pytest.raises(EyrieError) as caught:
        metrics.acceptance(BEFORE, samples(**values))
    assert caught.value.code == "server-restarted"


def test_nothing_drafted_is_no_length():
    found = metrics.acceptance(BEFORE, BEFORE)
    assert found["length"] is None
    assert found["drafts"] == 0


def test_parsing():
    assert AFTER["process_cpu_seconds_total"] == 12.5
    assert metrics.total(AFTER, "vllm:spec_decode_num_drafts_total") == 1100
    assert "broken" not in AFTER
    assert metrics.speculates(AFTER)
    assert not metrics.speculates({"process_cpu_seconds_total": 1.0})

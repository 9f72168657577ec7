"""Hosts of a group capture a share each; whoever has all of them makes the rows."""

import pytest
from capture_house import ROWS

from eyrie.core.errors import Interrupted, SpecError
from eyrie.hidden_states import plan
from eyrie.hidden_states.store import Store


def with_execution(house, **execution):
    real = house.pipeline

    def pipeline():
        made = real()
        made.execution = dict(execution)
        return made

    house.pipeline = pipeline


def kept(house):
    with Store(house.tmp / "root/runs/main/hidden_states/store") as store:
        return {entry.key for entry in store.entries()}


def test_the_last_share_completes_the_rows(house):
    with_execution(house, share=[0, 2])
    with pytest.raises(Interrupted, match="share is captured") as caught:
        house.run()
    assert caught.value.code == "share-captured"
    first = kept(house)
    assert 0 < len(first) < len(ROWS)
    with_execution(house, share=[1, 2])
    record = house.run()
    assert record["account"]["kept"] == len(ROWS)
    assert first < kept(house)
    assert record["figures"]["reused"] == len(first), "nothing was captured twice"


def test_a_share_that_is_there_needs_no_server(house):
    with_execution(house, share=[0, 2])
    with pytest.raises(Interrupted):
        house.run()
    asked = sum(house.server.requests.values())
    with pytest.raises(Interrupted):
        house.run()
    assert sum(house.server.requests.values()) == asked
    assert house.served == [True, False]


@pytest.mark.parametrize("share", [[2, 2], [-1, 2], [0, 0], ["a", 2], [1], 3])
def test_a_share_that_makes_no_sense_is_refused(house, share):
    with_execution(house, share=share)
    with pytest.raises(SpecError, match=r"execution\.share"):
        plan.share_of(house.context())

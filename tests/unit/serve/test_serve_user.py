"""The units' account exists on systemd hosts only."""

import pytest

pytestmark = pytest.mark.node


def test_a_declared_account_is_not_looked_for_without_systemd(run):
    assert run(user="no-such-account").ensure("baseline").started

"""A kept draft by version: served, the current one from then on, and unknown ones refused."""

import pytest

from eyrie.benchmark import drafts
from eyrie.core.errors import EyrieError
from eyrie.serve import execute, launch, records

pytestmark = pytest.mark.node

FIRST, SECOND = "a" * 12, "b" * 12


def kept(it):
    for version in (FIRST, SECOND):
        drafts.keep(it.root, version, it.root / "draft" / "checkpoint", {})
    drafts.point(it.root, SECOND)


def declare(it, version):
    it.pipeline.server["profiles"] = {"eagle3": {"draft": version}}


def test_a_version_is_served_and_is_the_current_one_from_then_on(run):
    it = run()
    kept(it)
    declare(it, FIRST[:5])
    it.ensure("eagle3")
    proof = records.read(records.serving_path(it.root))["identity"]
    assert proof["draft"] == str(it.root / "drafts" / FIRST)
    assert drafts.current(it.root) == FIRST


def test_a_benchmark_s_own_draft_moves_no_pointer(run):
    it = run()
    kept(it)
    declare(it, FIRST)
    it.ensure("eagle3", overrides={"draft": it.root / "draft" / "checkpoint", "num_speculative_tokens": 3})
    assert drafts.current(it.root) == SECOND


def test_an_unknown_version_is_refused_before_anything_is_touched(run):
    it = run()
    kept(it)
    it.ensure("baseline")
    pid = execute.launched(it.root, "baseline")["pid"]
    declare(it, "c" * 12)
    with pytest.raises(EyrieError, match="there is no draft version"):
        it.ensure("eagle3")
    assert execute.launched(it.root, "baseline")["pid"] == pid
    assert drafts.current(it.root) == SECOND


def test_the_probe_s_floor_alone_is_no_reason_to_start_again(run):
    it = run()
    measured = it.ensure("eagle3", overrides={"num_speculative_tokens": 3})
    again = it.ensure("eagle3")
    assert not again.started
    assert again.fingerprint == measured.fingerprint
    assert launch.read(it.root, "eagle3")["min_acceptance"] == 0.0

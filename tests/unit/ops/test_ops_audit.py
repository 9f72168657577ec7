"""`make audit`: what pip-audit answers, what of it counts, and that silence is no pass."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[3]
_spec = importlib.util.spec_from_file_location("eyrie_audit", PROJECT / "requirements" / "audit.py")
assert _spec is not None
assert _spec.loader is not None
audit = importlib.util.module_from_spec(_spec)
sys.modules["eyrie_audit"] = audit
_spec.loader.exec_module(audit)

ANSWER: dict[str, Any] = {
    "dependencies": [
        {"name": "jinja2", "version": "3.1.5", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1.6"], "aliases": []}]},
        *({"name": f"sound{number}", "version": "1.0", "vulns": []} for number in range(19)),
        {"name": "of-our-own", "skip_reason": "not found"},
    ],
    "fixes": [],
}


def test_an_answer_is_counted() -> None:
    result = audit.read("lock", ANSWER)
    assert (result.count, result.skipped, result.unreachable) == (20, ["of-our-own"], "")
    assert result.found == [("jinja2", "3.1.5", "PYSEC-1", "3.1.6")]


@pytest.mark.parametrize(("known", "status"), [({}, 1), ({"PYSEC-1": "never rendered here"}, 0)])
def test_a_vulnerability_fails_unless_it_is_accepted_with_a_reason(known: dict[str, str], status: int) -> None:
    lines, found = audit.judge([audit.read("lock", ANSWER)], known, "fail")
    assert found == status
    assert f"20 distributions, {status} known" in lines[0]
    assert ("accepted: never rendered here" if known else "mended in 3.1.6") in lines[1]


@pytest.mark.parametrize(("policy", "status"), [("fail", 2), ("warn", 0)])
def test_a_source_that_cannot_be_asked_is_said_and_is_no_pass(policy: str, status: int) -> None:
    clean = audit.Result("one", count=3)
    lines, found = audit.judge([audit.Result("lock", unreachable="no route"), clean], {}, policy)
    assert found == status
    assert "NOT AUDITED" in lines[0]
    assert "no route" in lines[0]


def test_a_source_that_knows_nothing_of_them_was_not_asked() -> None:
    """pip-audit ends with 0 when every distribution is unknown: a mirror without advisories would pass everything."""
    unknown = {"dependencies": [{"name": f"a{number}", "skip_reason": "not found"} for number in range(5)]}
    lines, found = audit.judge([audit.read("lock", unknown)], {}, "fail")
    assert found == 2
    assert "NOT AUDITED" in lines[0]
    assert "0 of 5" in lines[0]
    assert len(lines) == 1


def test_a_vulnerability_counts_more_than_an_unreachable_source() -> None:
    results = [audit.Result("lock", unreachable="no route"), audit.read("other", ANSWER)]
    assert audit.judge(results, {}, "fail")[1] == 1


def test_accepted_ids_need_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "accepted"
    path.write_text("# comment\nPYSEC-1  waits for vLLM\n\n")
    assert audit.accepted(path) == {"PYSEC-1": "waits for vLLM"}
    path.write_text("PYSEC-1\n")
    with pytest.raises(SystemExit, match="without a reason"):
        audit.accepted(path)


def test_the_project_s_own_list_reads_and_the_locks_are_pinned() -> None:
    audit.accepted()
    for name in ("node-cpu.txt", "node-cuda.txt"):
        lines = (PROJECT / "requirements" / name).read_text().splitlines()
        pins = [line for line in lines if line.strip() and not line.startswith("#")]
        assert pins
        assert [line for line in pins if "==" not in line] == []


def test_local_versions_are_asked_for_by_their_public_part() -> None:
    assert audit.LOCAL.sub(r"\1", "torch==2.13.0+cpu\nx==1.0 ; python_version < '3.12'\n") == (
        "torch==2.13.0\nx==1.0 ; python_version < '3.12'\n"
    )

"""doctor: evidence is read within bounds, secrets are hidden, findings are ranked."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from eyrie.core.errors import SpecError
from eyrie.core.state import StateDir
from eyrie.ops.doctor import catalogue, examine
from eyrie.ops.doctor.evidence import Document, record_document, tail

HF = "hf_" + "A1b2C3d4E5f6G7h8"


def failed(root: Path, stage: str, **error: str) -> StateDir:
    folder = StateDir(root / "runs" / "main" / "state" / stage)
    folder.path.mkdir(parents=True)
    record = {"stage": stage, "fingerprint": "ab" * 32, "status": "failed", "started": time.time() - 5, "error": error}
    folder.write(record)
    return folder


def test_failed_stage_is_examined_from_its_record_and_log(tmp_path: Path) -> None:
    folder = failed(tmp_path, "draft", code="unexpected", what="exit status 1", where="", why="", todo="")
    folder.log_path.write_text("step 1\nRuntimeError: PytorchStreamReader failed reading zip archive\n")
    answer = examine.examine(tmp_path, "main")
    assert [(f["id"], f["stage"]) for f in answer["findings"]] == [("checkpoint-damaged", "draft")]
    assert answer["findings"][0]["where"] == f"{folder.log_path}:2"
    assert "cure:" in examine.as_text(answer)


def test_record_outranks_log_and_last_log_line_outranks_first(tmp_path: Path) -> None:
    folder = failed(tmp_path, "draft", code="unexpected", what="[Errno 28] No space left on device", where="", why="")
    folder.log_path.write_text("Bus error\n" + "fine\n" * 50 + "loss: nan\n")
    ids = [finding["id"] for finding in examine.examine(tmp_path, "main")["findings"]]
    assert ids == ["disk-full", "loss-nan", "shm-small"]


def test_server_log_written_during_the_attempt_is_read_and_an_older_one_is_not(tmp_path: Path) -> None:
    failed(tmp_path, "responses", code="x", what="it broke", where="", why="", todo="")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "baseline.log").write_text("OSError: [Errno 98] Address already in use\n")
    old = tmp_path / "logs" / "old.log"
    old.write_text("NVRM: Xid (PCI:0000:41:00): 79\n")
    os.utime(old, (1, 1))
    found = examine.examine(tmp_path, "main")["findings"]
    assert [(f["id"], f["stage"]) for f in found] == [("port-taken", "server")]


def test_unknown_failure_gives_the_last_lines_redacted(tmp_path: Path) -> None:
    folder = failed(tmp_path, "tokens", code="x", what="something new", where="", why="", todo="")
    folder.log_path.write_text(f"one\ncalling with token={HF}\nwonderful new failure\n")
    answer = examine.examine(tmp_path, "main", with_host=False)
    assert answer["findings"] == []
    assert answer["last_lines"][-1] == "wonderful new failure"
    assert HF not in str(answer)


def test_quoted_line_is_redacted_and_short() -> None:
    line = f"GatedRepoError 401 hub token={HF} " + "x" * 5000
    finding = examine.diagnose([Document("log", "a.log", "dataset", line)])[0]
    assert finding["id"] == "hub-gated"
    assert HF not in finding["line"]
    assert len(finding["line"]) <= examine.QUOTE_CHARS


def test_tail_reads_the_end_only(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 10 + b"\r 10%\r 20%\nlast\n")
    assert tail(path, 5) == ("last\n", False)
    assert tail(path)[0].splitlines()[-2:] == [" 20%", "last"]
    assert tail(tmp_path / "none") == ("", True)


def test_record_document_adds_shares() -> None:
    account = {"in": 200, "kept": 150, "dropped": {"truncated": 40}, "failed": {"http-500": 10}}
    facts = record_document({"account": account}, "done", "responses", "r").facts
    assert facts["share.dropped.truncated"] == 0.2
    assert facts["share.failed"] == 0.05
    assert facts["status"] == "done"


def test_nothing_there_is_nothing_wrong(tmp_path: Path) -> None:
    answer = examine.examine(tmp_path, "main", with_host=False)
    assert examine.as_text(answer) == "Nothing wrong was found."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {id: a, title: t, cause: c, cure: c, sources: [logs], patterns: [x]}", "Did you mean 'log'"),
        ("- {id: a, title: t, cause: c, cure: c, sources: [log]}", "neither patterns nor facts"),
        ("- {id: a, title: t, cause: c, cure: c, sources: [log], pattern: [x]}", "Did you mean 'patterns'"),
        ("- {id: a, title: t, cause: c, cure: c, sources: [log], patterns: ['(']}", "of 'a'"),
        ("- {id: a, title: t, cause: c, cure: c, sources: [host], facts: [{fact: f}]}", "has no bound"),
    ],
)
def test_broken_catalogue_entry_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.yml").write_text(text)
    with pytest.raises(SpecError) as caught:
        catalogue.load(tmp_path)
    assert message in str(caught.value)


def test_doubled_id_is_refused(tmp_path: Path) -> None:
    entry = "- {id: a, title: t, cause: c, cure: c, sources: [log], patterns: [x]}\n"
    (tmp_path / "a.yml").write_text(entry)
    (tmp_path / "b.yml").write_text(entry)
    with pytest.raises(SpecError, match="there twice"):
        catalogue.load(tmp_path)


def test_hostile_log_is_read_in_time() -> None:
    hostile = "\n".join(["gpu memory " * 200, "method " * 300, "d2t " * 500, "a" * 100_000] * 20)
    started = time.monotonic()
    examine.diagnose([Document("log", "a.log", "server", hostile)])
    assert time.monotonic() - started < 20

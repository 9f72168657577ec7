"""Each signature of the catalogue is found first in its own recorded log, and healthy logs give nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from eyrie.core.registry import NAMES
from eyrie.ops.doctor import catalogue, examine, page
from eyrie.ops.doctor.evidence import Document, record_document

RECORDED = Path(__file__).parent / "recorded"
LOGS = {
    name: case for path in sorted(RECORDED.glob("*.yml")) for name, case in yaml.safe_load(path.read_text()).items()
}
SIGNATURES = {signature.id: signature for signature in catalogue.load()}

HEALTHY = """\
INFO 11-30 10:00:01 [api_server.py:1024] Starting vLLM server on http://127.0.0.1:8000
INFO:     127.0.0.1:40110 - "POST /v1/chat/completions HTTP/1.1" 200 OK
INFO 11-30 10:00:11 [loggers.py:127] Engine 000: Avg prompt throughput: 812.1 tokens/s, Running: 64 reqs
INFO loading shard 34/64
step 100 {'loss': 1.831, 'full_acc_0': 0.52, 'full_acc_1': 0.29, 'lr': 0.003}
INFO saved checkpoint 1/checkpoint
INFO acceptance length 2.41 (1 + accepted/drafts), untrained 1.00
account.kept: 400
"""
#: what a real run that ended well left in its logs, in vLLM's, supervisord's and the runner's words
ENDED_WELL = """\
2026-11-30 12:41:25,247 INFO success: eyrie-main-dataset-068970 entered RUNNING state, process has stayed up
WARNING 11-30 12:56:41 [system_utils.py:255] Found ulimit of 20000 and failed to automatically increase with error \
current limit exceeds maximum limit. This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.
INFO 11-30 12:57:34 [factories.py:89] Scale-out endpoints are disabled. Restart with --enable-scale-out to enable them
INFO 11-30 12:57:53 [core_client.py:772] [shutdown] MPClient: stopping engine manager
WARNING 11-30 12:57:53 [utils.py:653] [shutdown] Process manager: force killing remaining process EngineCore pid 23758
ERROR 11-30 12:57:53 [async_llm.py:906] AsyncLLM output_handler failed.
ERROR 11-30 12:57:53 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.
INFO:     Application shutdown complete.
 - leaked type "PROPAGATE_NAN"
{"stage": "benchmark", "status": "done", "identity": {"environment": {"VLLM_CPU_KVCACHE_SPACE": "1"}}}
{"stage": "tokens", "status": "done", "outputs": ["token_freq.pt", "vocab"], "missing": []}
"""


def document(case: dict) -> Document:
    return Document(
        source=case.get("source", "log"),
        origin="recorded.log",
        stage=case.get("stage", ""),
        text=case.get("text", ""),
        facts=case.get("facts", {}),
    )


def test_every_signature_has_a_recorded_log_and_the_other_way_round() -> None:
    assert set(LOGS) == set(SIGNATURES)


@pytest.mark.parametrize("name", sorted(LOGS))
def test_signature_is_the_first_finding_in_its_log(name: str) -> None:
    findings = examine.diagnose([document(LOGS[name])])
    assert [finding["id"] for finding in findings][:1] == [name]
    assert findings[0]["cause"]
    assert findings[0]["cure"]


@pytest.mark.parametrize("name", sorted(name for name, case in LOGS.items() if case.get("text")))
def test_signature_is_found_in_the_middle_of_a_long_healthy_log(name: str) -> None:
    case = document(LOGS[name])
    case.text = HEALTHY * 5 + case.text + HEALTHY * 5
    assert name in [finding["id"] for finding in examine.diagnose([case])]


@pytest.mark.parametrize("source", catalogue.SOURCES)
@pytest.mark.parametrize("stage", ["", "server", *NAMES])
def test_healthy_log_has_no_finding(source: str, stage: str) -> None:
    facts = {"disk.used_share": 0.5, "disk.inodes_free": 10**6, "disk.read_only": False, "status": "done"}
    assert examine.diagnose([Document(source, "ok.log", stage, HEALTHY, facts)]) == []


@pytest.mark.parametrize("stage", ["server", *NAMES])
def test_logs_of_a_run_that_ended_well_have_no_finding(stage: str) -> None:
    assert examine.diagnose([Document("log", "ok.log", stage, ENDED_WELL)]) == []


def test_an_engine_that_dies_after_the_next_start_is_found() -> None:
    again = "INFO Initializing a V1 LLM engine\nERROR vllm.v1.engine.exceptions.EngineDeadError: EngineCore\n"
    found = examine.diagnose([Document("log", "server.log", "server", ENDED_WELL + again)])
    assert [item["id"] for item in found] == ["engine-dead"]
    assert found[0]["where"] == f"server.log:{len(ENDED_WELL.splitlines()) + 2}"


def test_rows_that_were_not_wanted_are_no_loss() -> None:
    dropped = {"not_sampled": 3856, "held_out": 40, "duplicate": 1167}
    account = {"in": 5413, "kept": 350, "dropped": dropped, "failed": {}}
    record = record_document({"status": "done", "account": account}, "done", "dataset", "record")
    assert record.facts["share.dropped"] == 1167 / 5413
    assert examine.diagnose([record]) == []


def test_stage_names_in_the_catalogue_exist() -> None:
    for signature in SIGNATURES.values():
        assert set(signature.stages) <= {*NAMES, "server"}, signature.id


def test_troubleshooting_page_is_made_from_the_catalogue() -> None:
    committed = Path(__file__).resolve().parents[3] / "docs" / "troubleshooting.md"
    assert committed.read_text() == page.page(), "run: python -m eyrie.ops.doctor.page docs/troubleshooting.md"
    for signature in SIGNATURES.values():
        assert f"### {signature.title}" in committed.read_text()


def test_variables_and_playbooks_that_a_cure_names_exist() -> None:
    project = Path(__file__).resolve().parents[3]
    known = set()
    for path in project.glob("inventory/group_vars/*/*.yml"):
        known |= set(re.findall(r"^(eyrie_\w+):", path.read_text(), re.MULTILINE))
    for signature in SIGNATURES.values():
        said = f"{signature.cause} {signature.cure}"
        for name in set(re.findall(r"\beyrie_\w+", said)) - {"eyrie_cpu"}:  # a plugin's name
            assert name in known, f"{signature.id}: there is no variable {name}"
        for name in re.findall(r"playbooks/\w+\.yml", said):
            assert (project / name).is_file(), f"{signature.id}: there is no {name}"


def test_own_error_codes_are_recognised() -> None:
    for code, wanted in (("disk-full", "disk-full"), ("port-foreign", "port-taken"), ("loss-nan", "loss-nan")):
        error = {"code": code, "what": "something happened.", "where": "", "why": "", "todo": ""}
        document = record_document({"status": "failed", "error": error}, "failed", "draft", "record")
        assert [finding["id"] for finding in examine.diagnose([document])][:1] == [wanted]

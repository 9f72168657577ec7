"""The verdicts on single differences."""

from __future__ import annotations

import pytest

from eyrie.port.rules import Verdict, grows, judge, same_minor


@pytest.mark.parametrize(
    ("stage", "name", "source", "destination", "verdict"),
    [
        ("responses", "tools.vllm", "0.33.0", "absent", Verdict.VALID),
        ("responses", "settings.temperature", 0.0, 1.0, Verdict.BREAKS),
        ("responses", "settings.max_tokens", 2048, 1024, Verdict.BREAKS),
        ("dataset", "tools.datasets", "5.1.0", "5.2.0", Verdict.VALID),
        ("dataset", "settings.samples", 10, 20, Verdict.BREAKS),
        ("tokens", "tools.speculators", "0.9.0", "0.9.1", Verdict.VALID),
        ("tokens", "tools.speculators", "0.9.0", "0.10.0", Verdict.BREAKS),
        ("hidden_states", "tools.vllm", "0.33.0", "0.34.0", Verdict.ROUNDING),
        ("hidden_states", "settings.storage", "bf16", "fp8", Verdict.BREAKS),
        ("responses", "serving.args.quantization", None, "fp8", Verdict.VALID),
        ("responses", "serving.device", "cpu", "cuda", Verdict.VALID),
        ("hidden_states", "serving.args.tensor_parallel_size", 8, 4, Verdict.ROUNDING),
        ("draft", "tools.torch", "2.13.0+cpu", "2.14.0", Verdict.VALID),
        ("draft", "tools.speculators", "0.9.0", "1.0.0", Verdict.BREAKS),
        ("draft", "something.new", 1, 2, Verdict.BREAKS),
    ],
)
def test_verdict(stage: str, name: str, source: object, destination: object, verdict: Verdict) -> None:
    found = judge(stage, name, source, destination)
    assert found.verdict is verdict
    assert found.why


def test_unfinished_training_goes_on_with_as_many_processes() -> None:
    assert judge("draft", "settings.processes", 8, 4).verdict is Verdict.VALID
    assert judge("draft", "settings.processes", 8, 4, unfinished=True).verdict is Verdict.BREAKS


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("0.9.0", "0.9.7", True),
        ("2.13.0+cpu", "2.13.1", True),
        ("0.9.0", "0.10.0", False),
        ("0.9", "1.9", False),
        ("absent", "absent", False),
        ("absent", "0.9.0", False),
    ],
)
def test_same_minor(left: str, right: str, same: bool) -> None:
    assert same_minor(left, right) is same


def test_grows_takes_numbers_only() -> None:
    assert grows(3, 5)
    assert grows(3, 3)
    assert not grows(5, 3)
    assert not grows(True, 2)
    assert not grows("3", 5)

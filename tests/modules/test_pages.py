"""Pages that are generated are what their generators write today."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["variables", "sizing"])
def test_the_page_is_up_to_date(name: str) -> None:
    written = (DOCS / f"{name}.md").read_text("utf-8")
    assert load(f"make_{name}").page() == written, f"run: python docs/make_{name}.py"


def test_the_sizing_page_says_what_the_profiles_plan() -> None:
    """Its figures are the planner's: the ones that its reader would compute by hand from the profile come out."""
    made = load("make_sizing")
    spec = made.spec_of("rtx6000bw-1")
    samples, tokens = made.corpus(spec)
    assert (samples, tokens) == (100_000, 230_000_000)
    hours = made.hours(spec)
    answers = samples * spec["planning"]["answer_tokens"] / spec["planning"]["decode_tok_s"]
    assert hours["responses"] * 3600 == pytest.approx(answers + spec["planning"]["server_start_s"], rel=1e-4)
    assert hours["all"] == pytest.approx(sum(value for name, value in hours.items() if name != "all"))
    text = (DOCS / "sizing.md").read_text("utf-8")
    assert f"| responses | {hours['responses']:.1f} |" in text
    assert "57,344 bytes in bf16 and 28,688 in fp8" in text

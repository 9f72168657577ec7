"""The stages in reading order, imported only when asked for."""

from __future__ import annotations

from importlib import import_module

from eyrie.core.errors import SpecError
from eyrie.core.spec import nearest
from eyrie.core.stage import Stage

NAMES = ("target", "dataset", "responses", "tokens", "hidden_states", "draft", "benchmark", "report")


def get(name: str) -> Stage:
    """The stage of that name."""
    if name not in NAMES:
        raise SpecError(f"there is no stage {name!r}.{nearest(name, NAMES)}", code="unknown-stage")
    stage = import_module(f"eyrie.{name}.stage").STAGE
    assert isinstance(stage, Stage)
    assert stage.name == name
    return stage

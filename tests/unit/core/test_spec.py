"""Typed settings: what is coerced, what is refused and how it is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from eyrie.core import spec
from eyrie.core.errors import SpecError
from eyrie.core.pipeline import Pipeline
from eyrie.core.spec import setting
from eyrie.core.target import Target


@dataclass
class Part:
    size: int = 1


@dataclass
class Settings:
    name: str
    count: int = 3
    rate: float = 1e-3
    on: bool = False
    kind: Literal["sdpa", "eager"] = "sdpa"
    ids: list[int] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    limit: int | None = None
    extra: dict[str, float] = field(default_factory=dict)
    note: str = setting("", identity=False)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count {self.count} is negative.")


def load(**values: Any) -> Settings:
    return spec.load(Settings, {"name": "x", **values}, "draft")


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"count": "4"}, {"count": 4}),
        ({"count": 4.0}, {"count": 4}),
        ({"count": "-0"}, {"count": 0}),
        ({"rate": "3e-3"}, {"rate": 0.003}),
        ({"rate": 1}, {"rate": 1.0}),
        ({"on": "yes"}, {"on": True}),
        ({"on": "False"}, {"on": False}),
        ({"ids": [1, "2"]}, {"ids": [1, 2]}),
        ({"ids": (1, 2)}, {"ids": [1, 2]}),
        ({"limit": None}, {"limit": None}),
        ({"limit": "7"}, {"limit": 7}),
        ({"extra": {"a": 1}}, {"extra": {"a": 1.0}}),
        ({"parts": [{"size": 2}]}, {"parts": [Part(2)]}),
    ],
)
def test_text_from_the_command_line_is_taken_for_what_it_means(given: dict[str, Any], taken: dict[str, Any]) -> None:
    settings = load(**given)
    assert {name: getattr(settings, name) for name in taken} == taken


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": "four"}, "draft.count: expected int, got str 'four'"),
        ({"count": 4.5}, "draft.count: expected int, got float 4.5"),
        ({"count": True}, "draft.count: expected int, got bool True"),
        ({"rate": "fast"}, "draft.rate: expected float"),
        ({"rate": True}, "draft.rate: expected float"),
        ({"on": 1}, "draft.on: expected bool"),
        ({"kind": "spda"}, r"draft.kind: str 'spda' is none of 'sdpa', 'eager'. Did you mean 'sdpa'\?"),
        ({"ids": "12"}, "draft.ids: expected a list"),
        ({"ids": [1, "b"]}, r"draft.ids\[1\]: expected int"),
        ({"parts": [{"siez": 2}]}, r"draft.parts\[0\]: unknown setting 'siez'. Did you mean 'size'\?"),
        ({"extra": [1]}, "draft.extra: expected a mapping"),
        ({"nmae": 1}, r"draft: unknown setting 'nmae'. Did you mean 'name'\?"),
        ({"count": -1}, "draft: count -1 is negative"),
        ({"name": 5}, "draft.name: expected str, got int 5"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load(**given)


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(SpecError, match="setting 'name' is missing"):
        spec.load(Settings, {}, "draft")


def test_defaults_are_not_shared() -> None:
    one, other = load(), load()
    one.ids.append(1)
    assert other.ids == []


def test_identity_leaves_out_what_cannot_change_the_output() -> None:
    plain = spec.identity(load(note="words", parts=[{"size": 2}]))
    assert "note" not in plain
    assert plain["parts"] == [{"size": 2}]


def target(**values: Any) -> dict[str, Any]:
    base = {
        "name": "toy",
        "source": {"kind": "path", "path": "/nowhere"},
        "hidden_size": 8,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "vocab_size": 40,
        "aux_layers": [2, 6, 9],
    }
    return {**base, **values}


@pytest.mark.parametrize("layers", [[], [2, 2, 9], [9, 6, 2], [-1, 6, 9], [2, 6, 12]])
def test_layer_ids_that_no_capture_can_have_are_refused(layers: list[int]) -> None:
    with pytest.raises(SpecError, match="aux_layers"):
        spec.load(Target, target(aux_layers=layers), "target")


def test_a_branch_is_no_revision() -> None:
    source = {"kind": "hub", "repository": "a/b", "revision": "main"}
    with pytest.raises(SpecError, match="is not a commit"):
        spec.load(Target, target(source=source), "target")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rot": "/x"}, r"unknown key 'rot'. Did you mean 'root'\?"),
        ({"root": ""}, "key 'root' is missing or empty"),
        ({"stages": {"drat": {}}}, r"there is no stage 'drat'. Did you mean 'draft'\?"),
        ({"execution": {"environment": {"WANDB_API_KEY": "x"}}}, "WANDB_API_KEY must not stand in the spec"),
    ],
)
def test_the_whole_spec_is_checked(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    raw = {"root": str(tmp_path), "run": "main", "target": target(), "stages": {"dataset": {}}, **change}
    with pytest.raises(SpecError, match=message):
        Pipeline(raw)


@pytest.mark.parametrize("name", ["../up", "/etc", "a/b", "..", ".hidden", "-x", "a b", "a\nb", "a;b", "x" * 101, "ä"])
def test_names_that_become_folders_cannot_lead_elsewhere(tmp_path: Path, name: str) -> None:
    raw = {"root": str(tmp_path), "run": "main", "target": target(), "stages": {"dataset": {}}}
    with pytest.raises(SpecError, match=r"run .* names a folder"):
        Pipeline({**raw, "run": name})
    with pytest.raises(SpecError, match=r"name .* names a folder"):
        Pipeline({**raw, "target": target(name=name)})

"""Unknown variables: which are refused, with which right name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
_spec = importlib.util.spec_from_file_location("eyrie_filters", PROJECT / "filter_plugins" / "eyrie.py")
filters = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(filters)


def unknown(*names: str) -> dict[str, str]:
    return {item["name"]: item["nearest"] for item in filters.eyrie_unknown_names(names, str(PROJECT))}


def test_every_declared_variable_is_known() -> None:
    known = filters.known_names(str(PROJECT))
    assert {"eyrie_root", "eyrie_target_name", "eyrie_spec", "eyrie_preflight_lease_hours"} <= known
    assert unknown(*known) == {}


def test_profiles_set_nothing_that_is_unknown() -> None:
    import re

    for path in (PROJECT / "inventory" / "group_vars").glob("*/*.yml"):
        names = re.findall(r"^([a-z_][a-z0-9_]*):", path.read_text(), re.MULTILINE)
        assert unknown(*names) == {}, path


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("eyrie_target_hiden_size", "eyrie_target_hidden_size"),
        ("eyrie_preflight_lease_hour", "eyrie_preflight_lease_hours"),
        ("eyrie_runtime_torch_indx", "eyrie_runtime_torch_index"),
        ("eyire_root", "eyrie_root"),
        ("eyrie_datset_samples", "eyrie_dataset_samples"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_right_one(name: str, right: str) -> None:
    assert unknown(name) == {name: right}


def test_a_name_like_nothing_is_refused_without_a_guess() -> None:
    assert unknown("eyrie_zzzzqqqq_0") in ({"eyrie_zzzzqqqq_0": ""},)


@pytest.mark.parametrize(
    "name", ["ansible_host", "from", "to", "my_own_thing", "eyrie_plan_result", "inventory_hostname"]
)
def test_what_is_not_ours_is_left_alone(name: str) -> None:
    assert unknown(name) == {}


def test_the_place_of_a_definition_is_named(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text("---\n# words\neyrie_rot: /x\n")
    (tmp_path / "hosts.yml").write_text("all:\n  hosts:\n    one:\n      eyrie_runn: two\n")
    found = filters.eyrie_unknown_names(["eyrie_rot", "eyrie_runn"], str(PROJECT), [str(tmp_path / "hosts.yml")])
    assert [item["where"].partition("/")[2] for item in found] == ["group_vars/all.yml:3", "hosts.yml:4"]

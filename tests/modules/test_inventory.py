"""The inventory's contract: defaults, argument specs and the node package's typed settings hold the same keys."""

from __future__ import annotations

import dataclasses
import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from eyrie.core import registry
from eyrie.core.target import Source, Target
from eyrie.serve.settings import Profiles, ServerSettings

PROJECT = Path(__file__).resolve().parents[2]
VARS = PROJECT / "inventory" / "group_vars"
PROFILES = ("local", "rtx6000bw", "b200nvl8")
BIN = Path(sys.executable).parent


@functools.cache
def read(path: Path) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(), Loader=loader) or {} if path.exists() else {}


def flat(component: str, profile: str = "all") -> dict[str, Any]:
    return read(VARS / profile / f"{component}.yml")


def options(role: str) -> dict[str, Any]:
    spec = read(PROJECT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]
    return {name: option for part in spec.values() for name, option in (part.get("options") or {}).items()}


def is_composed(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(v, str) and v.startswith("{{") for v in value.values())
    )


STAGES = [name for name in registry.NAMES if name != "target"]


@pytest.mark.parametrize("stage", STAGES)
def test_the_composed_settings_are_the_dataclass(stage: str) -> None:
    fields = {field.name for field in dataclasses.fields(registry.get(stage).settings_type)}
    assert set(flat(stage)[f"eyrie_{stage}"]) == fields


@pytest.mark.parametrize("stage", STAGES)
def test_every_flat_variable_of_a_stage_is_composed(stage: str) -> None:
    declared = flat(stage)
    used = set(re.findall(rf"eyrie_{stage}_[a-z0-9_]+", " ".join(map(str, declared[f"eyrie_{stage}"].values()))))
    settings = {
        name for name, value in declared.items() if name.startswith(f"eyrie_{stage}_") and not is_composed(value)
    }
    assert used <= settings
    unread = settings - used - {name for name in settings if _is_read_elsewhere(name)}
    assert unread == set()


@functools.cache
def _readers() -> str:
    """Text of all roles' tasks and templates, and of all composed values."""
    tasks = [path.read_text() for path in (PROJECT / "roles").glob("*/t*/*") if path.is_file()]
    composed = [str(value) for path in (VARS / "all").glob("*.yml") for value in read(path).values()]
    return "\n".join([*tasks, *composed])


def _is_read_elsewhere(name: str) -> bool:
    """A role's tasks, or another composed value of the same component, may read a variable too."""
    return re.search(rf"\b{name}\b", _readers()) is not None


@pytest.mark.parametrize("stage", STAGES)
def test_argument_specs_and_defaults_hold_the_same_keys(stage: str) -> None:
    declared = {name for name, value in flat(stage).items() if not is_composed(value)}
    assert {name for name in options(stage) if name.startswith(f"eyrie_{stage}_")} == declared


@pytest.mark.parametrize(
    ("role", "components"),
    [
        ("plan", ("eyrie", "planning")),
        ("layout", ("layout",)),
        ("runtime", ("runtime",)),
        ("target", ("target",)),
        ("preflight", ("preflight",)),
        ("monitoring", ("monitoring",)),
    ],
)
def test_the_house_s_argument_specs_and_defaults_hold_the_same_keys(role: str, components: tuple[str, ...]) -> None:
    declared = {name for part in components for name, value in flat(part).items() if not is_composed(value)}
    assert set(options(role)) == declared


def test_the_target_s_keys_are_the_dataclasses() -> None:
    declared = flat("target")
    assert set(declared["eyrie_target"]) == {field.name for field in dataclasses.fields(Target)}
    assert set(declared["eyrie_target_source"]) == {field.name for field in dataclasses.fields(Source)}
    fields = {field.name for field in dataclasses.fields(registry.get("target").settings_type)}
    assert set(declared["eyrie_target_fetch"]) == fields


def test_the_server_s_keys_are_the_dataclass() -> None:
    declared = flat("server")
    assert set(declared["eyrie_server"]) <= {field.name for field in dataclasses.fields(ServerSettings)}
    assert set(declared["eyrie_server_profiles"]) == {field.name for field in dataclasses.fields(Profiles)}


def test_planning_figures_are_those_that_the_forecast_reads() -> None:
    from ansible.module_utils.eyrie.estimate import PLANNING_DEFAULTS

    assert set(flat("planning")["eyrie_planning"]) == set(PLANNING_DEFAULTS)
    declared = {
        name.removeprefix("eyrie_planning_"): value
        for name, value in flat("planning").items()
        if not is_composed(value)
    }
    assert declared == PLANNING_DEFAULTS


def test_preflight_expectations_are_those_that_the_checks_read() -> None:
    from ansible.module_utils.eyrie.preflight.finding import EXPECT

    assert set(flat("preflight")["eyrie_preflight"]) == set(EXPECT)


def test_stages_of_module_and_package_are_the_same() -> None:
    from ansible.module_utils.eyrie.stage import STAGES as KNOWN

    assert KNOWN == registry.NAMES


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_sets_only_what_has_a_default(profile: str) -> None:
    for path in (VARS / profile).glob("*.yml"):
        assert set(read(path)) <= set(flat(path.stem)), path


@pytest.mark.parametrize("profile", PROFILES)
def test_every_value_of_a_profile_says_why(profile: str) -> None:
    """A comment stands above each variable, or above the block of variables that it is in."""
    for path in (VARS / profile).glob("*.yml"):
        explained = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.startswith("#"):
                explained = True
            elif not line.strip():
                explained = False
            elif re.match(r"^eyrie_", line) and path.stem != "eyrie":
                assert explained, f"{path}:{number}"


# what differs between two hosts is in their group_vars and nowhere else


def composed(profile: str) -> dict[str, Any]:
    """All variables of a profile: the defaults, and the group's own over them."""
    merged: dict[str, Any] = {}
    for group in ("all", profile):
        for path in sorted((VARS / group).glob("*.yml")):
            merged.update(read(path))
    return merged


def test_swapping_the_gpu_profiles_changes_hardware_and_nothing_of_the_work() -> None:
    one, other = composed("rtx6000bw"), composed("b200nvl8")
    changed = {name for name in one if one[name] != other[name]}
    assert {"eyrie_profile", "eyrie_preflight_gpu_name", "eyrie_preflight_gpu_link", "eyrie_server_args"} <= changed
    hardware = ("eyrie_profile", "eyrie_preflight_", "eyrie_planning_", "eyrie_server_", "eyrie_execution_")
    others = {name for name in changed if not name.startswith(hardware)}
    work = {name for name in others if _is_identity(name)}
    assert work == set(), "these would change fingerprints: a ported run would start again"


def _is_identity(name: str) -> bool:
    """Whether a variable is part of a stage's fingerprint."""
    if name.startswith("eyrie_target_"):
        return not name.startswith("eyrie_target_fetch")
    for stage in STAGES:
        if name.startswith(f"eyrie_{stage}_"):
            key = name.removeprefix(f"eyrie_{stage}_")
            fields = {field.name: field for field in dataclasses.fields(registry.get(stage).settings_type)}
            return key not in fields or fields[key].metadata.get("identity", True)
    return False


@pytest.mark.parametrize("profile", ["rtx6000bw", "b200nvl8"])
def test_no_other_file_names_a_profile_s_hardware(profile: str) -> None:
    """Roles and modules take what they need from variables; none asks which profile it is on."""
    for folder in ("roles", "library", "module_utils", "playbooks", "src"):
        for path in (PROJECT / folder).rglob("*"):
            if path.is_file() and path.suffix in (".yml", ".py", ".j2"):
                code = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
                hits = [line for line in code if re.search(rf"['\"(== ]{profile}['\")]", line) and "==" in line]
                assert hits == [], path


# as Ansible reads it


def ansible(*argv: str) -> str:
    done = subprocess.run([BIN / argv[0], *argv[1:]], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_inventory_shows_its_three_profiles() -> None:
    graph = ansible("ansible-inventory", "--graph")
    for profile in PROFILES:
        assert f"@{profile}:" in graph


@pytest.mark.parametrize("profile", PROFILES)
def test_tasks_of_every_profile_can_be_listed(profile: str) -> None:
    listed = ansible("ansible-playbook", "train.yml", "--list-tasks", "-l", profile)
    order = [
        listed.index(f"{role} : ") for role in ("plan", "preflight", "layout", "runtime", *registry.NAMES, "summary")
    ]
    assert order == sorted(order)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_spec_of_every_profile_is_accepted_by_the_node_package(profile: str, tmp_path: Path) -> None:
    """The document that the inventory composes loads as typed settings, stage by stage."""
    import json

    from eyrie.core.pipeline import Pipeline

    host = {"local": "localhost"}.get(profile, f"{profile}-1")
    shown = ansible(
        "ansible", host, "-m", "ansible.builtin.debug", "-a", "var=eyrie_spec", "-c", "local",
        "-e", f"eyrie_root={tmp_path}", "-e", "ansible_python_interpreter=" + sys.executable,
    )  # fmt: skip
    raw = json.JSONDecoder().raw_decode(shown, shown.index("{"))[0]["eyrie_spec"]
    pipeline = Pipeline(raw)
    for name in registry.NAMES:
        assert len(pipeline.context(name).fingerprint) == 64

"""Settings of the servers against the GPUs that are there: visible devices, all-reduce, leftovers of another host."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.eyrie.preflight import fabric, gpus

from tests.unit.preflight.conftest import recorded, spec_of


def with_environment(profile: str, **values: Any) -> dict[str, Any]:
    spec = spec_of(profile)
    spec["server"]["environment"] = {**(spec["server"]["environment"] or {}), **values}
    return spec


def seen(context: Any, value: Any) -> list[dict[str, str]]:
    known = context("b200nvl8", spec=with_environment("b200nvl8", CUDA_VISIBLE_DEVICES=value))
    return gpus.visible(recorded("b200nvl8-good"), known)


@pytest.mark.parametrize("value", ["0,1,2,3,4,5,6,7", "7, 6, 5, 4, 3, 2, 1, 0"])
def test_visible_devices_by_index_in_any_order_are_fine(context: Any, value: str) -> None:
    assert seen(context, value) == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("0,0,1,2,3,4,5,6", "names 0 twice"),
        ("0,1,2,3,4,5,6,8", "'8', which is none of 0, 1"),
        ("", "empty place"),
        ("0,1,,2", "empty place"),
        ("-1", "'-1'"),
        ("0-7", "range 0-7"),
        ("0:7", "range 0:7"),
        ("all", "'all'"),
        ("GPU-0a1b2c3d-0000-0000-0000-000000000001", "by its identifier"),
        ("MIG-0a1b2c3d-0000-0000-0000-000000000001", "by its identifier"),
        ("0,1,2,3", "4 of the 8 GPUs"),
        (3, "1 of the 8 GPUs"),
    ],
)
def test_visible_devices_that_no_server_understands_are_refused(context: Any, value: Any, said: str) -> None:
    (found,) = seen(context, value)
    assert found["level"] == "error"
    assert said in found["what"]
    assert "eyrie_server_environment" in found["cure"]


def test_without_the_variable_or_without_gpus_there_is_nothing_to_say(context: Any) -> None:
    assert gpus.visible(recorded("b200nvl8-good"), context("b200nvl8")) == []
    known = context("local", spec=with_environment("local", CUDA_VISIBLE_DEVICES="0"))
    assert gpus.visible(recorded("cpu-only"), known) == []


@pytest.mark.parametrize(("profile", "host"), [("b200nvl8", "b200nvl8-good"), ("rtx6000bw", "rtx6000bw-good")])
def test_each_profile_s_own_settings_fit_its_links(context: Any, profile: str, host: str) -> None:
    assert fabric.settings(recorded(host), context(profile)) == []


def test_custom_all_reduce_on_pcie_of_the_new_chips_is_refused(context: Any) -> None:
    spec = spec_of("rtx6000bw")
    spec["server"]["args"] = {**spec["server"]["args"], "disable_custom_all_reduce": None}
    (found,) = fabric.settings(recorded("rtx6000bw-good"), context("rtx6000bw", spec=spec))
    assert found["level"] == "error"
    assert "disable_custom_all_reduce: true" in found["cure"]


def test_one_gpu_a_server_reduces_nothing(context: Any) -> None:
    spec = spec_of("rtx6000bw")
    spec["server"]["args"] = {"tensor_parallel_size": 1}
    spec["server"]["profiles"] = {}
    assert fabric.settings(recorded("rtx6000bw-good"), context("rtx6000bw", spec=spec)) == []


def test_leftovers_of_a_pcie_host_cost_nvlink(context: Any) -> None:
    spec = with_environment("b200nvl8", NCCL_P2P_DISABLE="1")
    spec["server"]["args"] = {**spec["server"]["args"], "disable_custom_all_reduce": True}
    found = fabric.settings(recorded("b200nvl8-good"), context("b200nvl8", spec=spec))
    assert [item["level"] for item in found] == ["warning", "warning"]
    assert "NCCL_P2P_DISABLE=1" in found[0]["what"]
    assert "disable_custom_all_reduce" in found[1]["what"]

"""Shared memory, links, visible devices: from the text that tools print."""

import pytest

from eyrie.gates import hardware

HEAD = "Filesystem     1K-blocks  Used Available Use% Mounted on\n"
PCIE = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-63\nGPU1\tPHB\t X \t0-63\n"
PCIE += "\nLegend:\n  NV#  = NVLink\n  SYS = other\n"
NVLINK = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-63\nGPU1\tNV18\t X \t0-63\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("shm 65536 0 65536 0% /dev/shm", "has 64 MiB"),
        ("tmpfs 528000000 12000 527988000 1% /dev/shm", None),
        ("tmpfs 528000000 527999000 1000 100% /dev/shm", "free of"),
        ("tmpfs 528000000 0 1 0% /elsewhere", "not mounted"),
    ],
)
def test_shared_memory(line, said):
    found = hardware.shared_memory(HEAD + line)
    assert found is None if said is None else said in found


def test_a_small_one_says_the_cure():
    assert "--shm-size" in hardware.shared_memory(HEAD + "shm 65536 0 65536 0% /dev/shm")


def test_pcie_blackwell_leaves_out_the_custom_all_reduce():
    found = hardware.links(["12.0", "12.0"], PCIE)
    assert found.profile == "pcie-sm120"
    assert found.args == {"disable_custom_all_reduce": True}
    assert found.environment == {}
    assert hardware.links(["12.0", "12.0"], PCIE, p2p_hangs=True).environment == {"NCCL_P2P_DISABLE": "1"}


def test_nvlink_needs_none_of_it_and_minds_leftovers():
    found = hardware.links(["10.0"] * 8, NVLINK)
    assert (found.profile, found.args, found.environment) == ("nvl8-sm100", {}, {})
    assert "slow way" in hardware.leftover_environment(found, {"NCCL_P2P_DISABLE": "1"})
    assert hardware.leftover_environment(found, {}) is None
    assert hardware.leftover_environment(hardware.links(["12.0"] * 2, PCIE), {"NCCL_P2P_DISABLE": "1"}) is None


def test_mixed_unknown_and_unseen_hardware():
    with pytest.raises(ValueError, match=r"10\.0, 12\.0"):
        hardware.links(["12.0", "10.0"], PCIE)
    unknown = hardware.links(["13.0", "13.0"], NVLINK)
    assert unknown.args == {"disable_custom_all_reduce": True}
    assert unknown.warnings
    for found in (hardware.links(["12.0"], ""), hardware.links(["12.0", "12.0"], "no such command")):
        assert found.args == {}
        assert found.warnings


UUID = "GPU-0a1b2c3d-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("value", "found"), [("0,1,2,3", [0, 1, 2, 3]), ("0, 1", [0, 1]), (None, list(range(8))), (UUID, [3])]
)
def test_visible_devices(value, found):
    assert hardware.visible_devices(value, 8, ["a", "b", "c", UUID]) == found


@pytest.mark.parametrize(
    ("value", "said"),
    [("0,0", "twice"), ("8", "0..7"), ("", "empty"), ("-1", "'-1'"), ("0-3", "commas"), (UUID, "write its index")],
)
def test_visible_devices_that_are_wrong(value, said):
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES") as caught:
        hardware.visible_devices(value, 8)
    assert said in str(caught.value)

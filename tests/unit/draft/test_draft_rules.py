"""The draft stage's rules as tables: split, supervision, checkpoints, hardware, watch, arguments. No trainer here."""

import json
import math

import pytest

from eyrie.core import spec
from eyrie.core.errors import EyrieError, GateError, SpecError
from eyrie.draft import checkpoints, hardware, launch, results, view
from eyrie.draft.settings import DraftSettings
from eyrie.draft.stage import needed_checkpoints
from eyrie.draft.view import Sample, View
from eyrie.draft.watch import Watch

# -- split -------------------------------------------------------------------------------------------------


def fan_out(conversations=20, turns=6):
    return [Sample(c * turns + t, f"c{c}", 50, 20) for c in range(conversations) for t in range(turns)]


def test_turns_of_one_conversation_never_lie_on_both_sides():
    train, val = view.split(fan_out(), 0.1, seed=3)
    assert (len(train), len(val)) == (108, 12)
    assert {s.conversation for s in train} & {s.conversation for s in val} == set()


def test_the_same_seed_is_the_same_split_whatever_the_order_of_rows():
    assert view.split(fan_out(), 0.1, 3) == view.split(fan_out(), 0.1, 3)
    turned = view.split(list(reversed(fan_out())), 0.1, 3)
    assert {s.conversation for s in turned[1]} == {s.conversation for s in view.split(fan_out(), 0.1, 3)[1]}
    assert view.split(fan_out(), 0.1, 3)[1] != view.split(fan_out(), 0.1, 4)[1]


@pytest.mark.parametrize(("conversations", "ratio", "held"), [(2, 0.1, 1), (3, 0.9, 2), (100, 0.1, 10), (2, 0.99, 1)])
def test_both_sides_have_at_least_one_conversation(conversations, ratio, held):
    train, val = view.split(fan_out(conversations, 1), ratio, 0)
    assert (len(train), len(val)) == (conversations - held, held)


def test_one_conversation_cannot_be_split():
    with pytest.raises(GateError, match="a validation split needs two"):
        view.split(fan_out(1), 0.1, 0)


@pytest.mark.parametrize(("train", "val"), [(1, 1), (108, 12), (99_999, 1), (7, 3), (53, 47)])
def test_speculators_own_split_lands_exactly_between_the_sides(train, val):
    built = View(None, None, train, val, 0, 0, 0, 0)
    assert int((train + val) * built.ratio) == train


# -- supervision -------------------------------------------------------------------------------------------


def test_nothing_supervised_stops_before_training():
    with pytest.raises(GateError, match="supervised tokens: 0 of 16"):
        view.check_supervision([Sample(n, f"c{n}", 4, 0) for n in range(4)], "training")


def test_rows_without_supervision_are_counted():
    samples = [Sample(n, f"c{n}", 4, int(n == 0)) for n in range(4)]
    assert view.check_supervision(samples, "training") == 3


def test_a_mask_of_another_length_is_named():
    from datasets import Dataset

    data = Dataset.from_dict({"input_ids": [[1, 2, 3, 4]], "loss_mask": [[0, 1, 1]], "seq_len": [4]})
    with pytest.raises(GateError, match="mask length 3 != ids 4"):
        view._check_masks(data)


# -- checkpoints -------------------------------------------------------------------------------------------


def whole(folder, step, epoch=0, local=1):
    path = folder / f"step_{step:08d}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"weights")
    sizes = {"model.safetensors": 7}
    marker = {"epoch": epoch, "local_step": local, "global_step": step, "files": sizes}
    (path / checkpoints.MARKER).write_text(json.dumps(marker))
    return path


def test_only_whole_checkpoints_of_this_run_are_found(tmp_path, caplog):
    """Cut, empty, foreign, dated, negative and interrupted folders: named and left alone."""
    whole(tmp_path, 10, 0)
    whole(tmp_path, 20, 1)
    cut = whole(tmp_path, 30, 2)
    (cut / "model.safetensors").write_bytes(b"wei")
    gone = whole(tmp_path, 40, 3)
    (gone / "model.safetensors").unlink()
    torn = whole(tmp_path, 50, 4)
    (torn / checkpoints.MARKER).write_text('{"epoch": 4, ')
    for name in ("3", "20250101", "-1", "interrupted", "checkpoint_old"):
        (tmp_path / name).mkdir()
    found = checkpoints.find(tmp_path)
    assert [item.global_step for item in found] == [10, 20]
    for name in ("step_00000030", "step_00000040", "step_00000050", "20250101", "interrupted"):
        assert name in caplog.text


def test_arming_lays_out_one_epoch_and_nothing_else(tmp_path):
    whole(tmp_path / "checkpoints", 20, epoch=1)
    (tmp_path / "resume/7").mkdir(parents=True)
    checkpoints.arm(checkpoints.find(tmp_path / "checkpoints")[0], tmp_path / "resume")
    assert [path.name for path in (tmp_path / "resume").iterdir()] == ["1"]
    assert [path.name for path in (tmp_path / "resume/1").iterdir()] == ["model.safetensors"]


def test_pruning_keeps_the_newest_and_the_protected(tmp_path):
    for step in (10, 20, 30, 40, 50):
        whole(tmp_path, step)
    checkpoints.prune(tmp_path, keep=2, protect={20})
    assert [item.global_step for item in checkpoints.find(tmp_path)] == [20, 40, 50]


@pytest.mark.parametrize(
    ("select", "every", "kept"),
    [("best", False, [20, 50]), ("last", False, [50]), ("best", True, [10, 20, 30, 40, 50])],
)
def test_what_training_goes_on_from_is_carried(tmp_path, select, every, kept):
    """The newest whole checkpoint, and the best epoch's, which may be exported in the end."""
    for step in (10, 20, 30, 40, 50):
        whole(tmp_path / "checkpoints", step)
    (whole(tmp_path / "checkpoints", 60) / "model.safetensors").unlink()
    lines = [{"plan": {"global_step": 0, "steps_per_epoch": 20, "epochs": 3, "samples_per_step": 1}}]
    for step in range(50):
        lines.append({"global_step": step, "epoch": step // 20, "train": {"loss": 2.0, "full_acc_0": 0.1}})
        if step % 20 == 19:
            lines.append({"epoch": step // 20, "val": {"loss_epoch": 1.0 + step / 100}})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = needed_checkpoints(tmp_path, spec.load(DraftSettings, {"select": select}, "draft"), every)
    assert [item.global_step for item in found] == kept


def test_without_metrics_the_newest_checkpoint_is_carried(tmp_path):
    assert needed_checkpoints(tmp_path, DraftSettings()) == []
    whole(tmp_path / "checkpoints", 10)
    whole(tmp_path / "checkpoints", 20)
    assert [item.global_step for item in needed_checkpoints(tmp_path, DraftSettings())] == [20]


# -- hardware ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "head_dim", "seq_len", "attention", "loss", "warning"),
    [
        ("sm_120", 128, 8192, "sdpa", "fused", True),
        ("sm_120", 256, 8192, "sdpa", "fused", True),
        ("sm_120", 64, 8192, "simple_flex_attention", "fused", False),
        ("sm_100", 128, 8192, "simple_flex_attention", "fused", False),
        ("sm_100", 256, 8192, "simple_flex_attention", "fused", False),
        ("sm_90", 128, 8192, "simple_flex_attention", "fused", False),
        ("sm_130", 128, 8192, "sdpa", "fused", True),
        ("", 64, 512, "eager", "eager", False),
        ("", 64, 1024, "sdpa", "eager", False),
    ],
)
def test_attention_and_loss_by_hardware(capability, head_dim, seq_len, attention, loss, warning):
    choice = hardware.choose(capability, head_dim, seq_len)
    assert (choice.attention, choice.loss, choice.warning) == (attention, loss, warning)
    assert choice.accelerator is bool(capability)
    assert choice.why


def test_the_reason_names_both_numbers():
    why = hardware.choose("sm_120", 128, 8192).why
    assert "101376" in why
    assert "114688" in why


@pytest.mark.parametrize(
    ("config", "head_dim"),
    [
        ({"hidden_size": 6144, "num_attention_heads": 48}, 128),
        ({"hidden_size": 6144, "num_attention_heads": 48, "head_dim": None}, 128),
        ({"hidden_size": 576, "num_attention_heads": 9, "head_dim": 64}, 64),
        ({"hidden_size": 7168, "num_attention_heads": 64, "head_dim": 192}, 192),
    ],
)
def test_head_dim_is_declared_or_follows(config, head_dim):
    assert hardware.head_dim_of(config) == head_dim


# -- watch -------------------------------------------------------------------------------------------------


def train(step, loss=2.0, epoch=0, **extra):
    metrics = {"loss": loss, "full_acc_0": 0.5, "full_acc_1": 0.2, "cond_acc_0": 0.5, "error_records": 0.0, **extra}
    profile = {"step_ms": 100.0, "fetch_ms": 10.0, "tokens_per_s": 500.0}
    return {"train": metrics, "profile": profile, "epoch": epoch, "global_step": step, "lr": 1e-3}


def val(epoch, loss=1.0, acc=(0.5, 0.25, 0.1)):
    metrics = {"loss_epoch": loss}
    metrics.update({f"full_acc_{at}_epoch": value for at, value in enumerate(acc)})
    metrics.update({f"cond_acc_{at}_epoch": value for at, value in enumerate(acc)})
    return {"val": metrics, "epoch": epoch}


def plan(start=0, epochs=2):
    shape = {"steps_per_epoch": 10, "epochs": epochs, "samples_per_step": 4.0}
    return {"plan": {**shape, "global_step": start, "epoch": 0}}


def watched(tmp_path, *lines, settings=None):
    path = tmp_path / "metrics.jsonl"
    with open(path, "a") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in lines)
    watch = Watch(path, settings or DraftSettings())
    watch.read()
    return watch


def test_progress_shows_loss_accuracy_rate_and_the_last_checkpoint(tmp_path):
    saved = {"checkpoint": {"epoch": 0, "local_step": 1, "global_step": 1}}
    shown = watched(tmp_path, plan(), train(0), saved, train(1, 1.5), val(0)).progress()
    assert shown == {
        "epoch": 1, "loss": 1.5, "acc": [0.5, 0.2], "tok/s": 500, "predicted": 1.85, "saved at": 1,
    }  # fmt: skip


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, value):
    with pytest.raises(EyrieError, match="at step 1") as caught:
        watched(tmp_path, plan(), train(0), train(1, value))
    assert caught.value.code == "loss-nan"


def test_a_loss_of_exactly_zero_stops_the_run_after_some_steps(tmp_path):
    settings = DraftSettings(watch_steps=5)
    dead = [train(step, 0.0, full_acc_0=0.0) for step in range(5)]
    watched(tmp_path, plan(), *dead[:4], settings=settings)
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(EyrieError) as caught:
        watched(tmp_path, plan(), *dead, settings=settings)
    assert caught.value.code == "loss-zero"


def test_skipped_samples_stop_the_run_above_their_share(tmp_path):
    with pytest.raises(EyrieError, match="skipped 2 samples") as caught:
        watched(tmp_path, plan(), train(0, error_records=2.0))
    assert caught.value.code == "samples-skipped"
    (tmp_path / "metrics.jsonl").unlink()
    watched(tmp_path, plan(), train(0, error_records=2.0), settings=DraftSettings(max_skipped_share=0.5))


def test_steps_beyond_the_checkpoint_of_a_resume_did_not_happen(tmp_path):
    lines = [plan(), *(train(step) for step in range(8)), val(0), plan(start=5), train(5, 9.0)]
    curve = watched(tmp_path, *lines).curve
    assert sorted(curve.steps) == [0, 1, 2, 3, 4, 5]
    assert curve.steps[5]["train"]["loss"] == 9.0
    assert curve.epochs == {}


def test_before_a_trainer_says_where_it_begins_nothing_is_known_of_its_attempt(tmp_path):
    watch = watched(tmp_path, plan(), *(train(step) for step in range(8)))
    watch.begin_attempt()
    assert watch.curve.plan == {}
    with open(tmp_path / "metrics.jsonl", "a") as stream:
        stream.write(json.dumps(plan(start=3)) + "\n")
    watch.read()
    assert (watch.curve.plan["global_step"], watch.curve.last_step) == (3, 2)


def test_a_torn_last_line_waits_for_its_end(tmp_path):
    watch = watched(tmp_path, plan(), train(0))
    with open(tmp_path / "metrics.jsonl", "a") as stream:
        stream.write('{"train": {"loss"')
    assert not watch.read()
    with open(tmp_path / "metrics.jsonl", "a") as stream:
        stream.write(": 1.0}}\n" + json.dumps(train(1)) + "\n")
    with pytest.raises(KeyError):
        watch.read()


def test_a_torn_end_does_not_swallow_where_the_next_attempt_begins(tmp_path):
    path = tmp_path / "metrics.jsonl"
    watch = watched(tmp_path, plan(), *(train(step) for step in range(4)), val(0))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    torn = Watch(path, DraftSettings())
    torn.read()
    torn.begin_attempt()
    with open(path, "a") as stream:
        stream.write(json.dumps(plan(start=2)) + "\n")
    torn.read()
    assert torn.curve.plan["global_step"] == 2
    assert sorted(torn.curve.steps) == [0, 1]
    assert watch.curve.epochs
    assert torn.curve.epochs == {}


@pytest.mark.parametrize("left", [0.0, 0.3, 0.5, 1.0])
def test_what_the_file_lost_the_checkpoint_brings_back(tmp_path, left):
    path, saved = tmp_path / "metrics.jsonl", tmp_path / "saved.jsonl"
    watched(tmp_path, plan(), *(train(step) for step in range(4)), val(0), *(train(step) for step in range(4, 6)))
    saved.write_bytes(path.read_bytes())
    with open(path, "a") as stream:
        stream.write(json.dumps(train(6)) + "\n")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * left)])
    watch = Watch(path, DraftSettings())
    watch.read()
    watch.begin_attempt(saved)
    assert sorted(watch.curve.steps) == [*range(6), *([6] if left == 1.0 else [])]
    assert list(watch.curve.epochs) == [0]


def test_best_is_by_validation_loss_and_the_later_of_equals(tmp_path):
    curve = watched(tmp_path, plan(epochs=3), train(0), val(0, 1.0), train(1), val(1, 0.8), train(2), val(2, 0.8)).curve
    assert curve.best.epoch == 2
    assert curve.best.predicted == pytest.approx(1.85)


def test_metrics_hold_the_figures_of_the_chosen_epoch(tmp_path):
    lines = [plan(), *(train(step, 5.0 - step / 200) for step in range(900)), val(0, 0.5, (0.6, 0.3, 0.1))]
    curve = watched(tmp_path, *lines).curve
    found = results.metrics(curve, curve.best, ttt_steps=3)
    assert found["predicted_acceptance"] == 2.0
    assert found["per_position"] == [0.6, 0.3, 0.1]
    assert len(found["loss_curve"]) <= results.CURVE_POINTS + 1
    assert found["loss_curve"][-1][0] == 899
    assert found["tokens_per_s"] == 500.0
    assert found["input_wait_share"] == 0.1


# -- settings and arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"learning_rate": 1}, "unknown setting 'learning_rate'"),
        ({"ttt_step": 3}, "Did you mean 'ttt_steps'"),
        ({"optimizer": "sgd"}, "none of 'muon', 'adamw'"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"val_ratio": 0}, "between 0 and 1"),
        ({"checkpoint_freq": 1.5}, "whole number of epochs"),
        ({"loss_fn": "mse"}, "loss_fn 'mse'"),
        ({"loggers": ["comet"]}, "logger 'comet'"),
        ({"norm_before_fc": True, "fc_norm": True}, "exclude each other"),
        ({"from_pretrained": "/a", "draft_config": "/b"}, "exclude each other"),
        ({"hosts": ["a", "b"]}, "rdzv_endpoint"),
    ],
)
def test_wrong_settings_are_refused(data, told):
    with pytest.raises(SpecError) as caught:
        spec.load(DraftSettings, data, "draft")
    assert told in str(caught.value)


def arguments(tmp_path, **changes):
    built = View(tmp_path / "data", tmp_path / "states.txt", 9, 1, 0, 0, 0, 0)
    settings = DraftSettings(**changes)
    hardware_ = {"attention": "sdpa", "loss": "eager"}
    return launch.arguments(settings, built, tmp_path, [2, 15, 27], tmp_path / "vocab", tmp_path, hardware_)


def value(found, flag):
    return found[found.index(flag) + 1]


def test_every_argument_is_one_that_speculators_knows(tmp_path):
    from eyrie.draft import backend

    backend.register()
    from speculators.train.config import TrainConfig

    resolved = TrainConfig.resolve(arguments(tmp_path, scheduler_warmup_ratio=0.05, full_attention_indices=[0]))
    flat = resolved.flatten()
    assert flat["lr"] == flat["muon_lr"] == 3e-3
    assert flat["target_layer_ids"] == [2, 15, 27]
    assert flat["on_missing"] == "raise"
    assert flat["hidden_states_backend"] == "eyrie"
    assert flat["states_index"] == str(tmp_path / "states.txt")
    assert flat["logger"] == "tensorboard"
    assert flat["norm_before_fc"] is True
    assert flat["full_attention_indices"] == [0]


def test_a_warm_start_replaces_the_shaping_arguments(tmp_path):
    found = arguments(tmp_path, from_pretrained=str(tmp_path))
    assert value(found, "--from-pretrained") == str(tmp_path)
    assert "--num-layers" not in found
    assert "--draft-arch" not in found


def test_the_vocabulary_is_given_by_name_with_its_size(tmp_path):
    import numpy as np

    assert "--draft-vocab-size" not in arguments(tmp_path)
    (tmp_path / "vocab").mkdir()
    np.save(tmp_path / "vocab/d2t.npy", np.zeros(48, dtype=np.int64))
    found = arguments(tmp_path)
    assert value(found, "--draft-vocab-size") == "48"
    assert value(found, "--d2t-path") == str(tmp_path / "vocab/d2t.npy")


@pytest.mark.parametrize(
    ("changes", "host", "expected"),
    [
        ({}, "a", []),
        ({"processes": 8}, "a", ["meeting 127.0.0.1 --nproc-per-node 8", "--nnodes 1", "--rdzv-endpoint 127.0.0.1:0"]),
        (
            {"processes": 8, "hosts": ["a", "b"], "rdzv_endpoint": "a:29500"},
            "b",
            ["--nproc-per-node 8", "--nnodes 2", "--node-rank 1", "--rdzv-backend static", "--rdzv-endpoint a:29500"],
        ),
    ],
)
def test_the_command_is_plain_python_or_torchrun(tmp_path, changes, host, expected):
    command = launch.command(DraftSettings(**changes), tmp_path, ["--x"], 16, host, "fp")
    before = " ".join(command[1 : command.index("eyrie.draft.trainer") - 1])
    assert before.startswith("-m eyrie.draft.meeting") == bool(expected)
    assert [item for item in expected if item not in before] == []
    threads = command[command.index("--") - 1]
    assert threads == str(16 // changes.get("processes", 1))


def test_the_trainers_environment_never_asks_and_never_downloads(monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    env = launch.environment(4, DraftSettings(), has_accelerator=False)
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["WANDB_MODE"] == "offline"
    assert env["TQDM_DISABLE"] == "1"
    assert env["OMP_NUM_THREADS"] == "4"

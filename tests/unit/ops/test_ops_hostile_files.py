"""Files of others are data: pickles, YAML with objects and templates of their own are refused or read as text."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eyrie.core.errors import EyrieError
from eyrie.core.target import Source, Target
from eyrie.report import frequencies
from eyrie.target import checkpoint

pytestmark = pytest.mark.node


class Trap:
    """Unpickled carelessly, it leaves a mark."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "executed"


def torch_file(path: Path, value: Any) -> Path:
    """A file as torch.save writes it, with any pickle inside."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(value, protocol=2))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return path


def test_the_trap_works(mark: Path) -> None:
    pickle.loads(pickle.dumps(Trap(mark)))
    assert mark.is_dir()


def test_token_frequencies_are_numbers_or_nothing(tmp_path: Path, mark: Path) -> None:
    assert frequencies.read(torch_file(tmp_path / "good.pt", {3: 5})) == {3: 5}
    assert frequencies.read(torch_file(tmp_path / "bad.pt", {3: Trap(mark)})) is None
    assert not mark.exists()


def test_the_trainer_s_own_reader_refuses_too(tmp_path: Path, mark: Path) -> None:
    """speculators reads frequencies, optimizer and scheduler with weights_only=True: the installed torch keeps that."""
    import torch

    with pytest.raises(pickle.UnpicklingError):
        torch.load(torch_file(tmp_path / "optimizer_state_dict.pt", Trap(mark)), weights_only=True)
    assert not mark.exists()


def test_vocabulary_tables_hold_no_objects(tmp_path: Path, mark: Path) -> None:
    path = tmp_path / "d2t.npy"
    np.save(path, np.array([Trap(mark)], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        np.load(path)
    assert not mark.exists()


def test_a_target_of_pickled_weights_is_refused(tmp_path: Path, mark: Path) -> None:
    dimensions = {"hidden_size": 8, "num_hidden_layers": 8, "num_attention_heads": 2, "vocab_size": 16}
    (tmp_path / "config.json").write_text(json.dumps(dimensions))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    torch_file(tmp_path / "pytorch_model.bin", Trap(mark))
    target = Target(name="toy", source=Source(kind="path", path=str(tmp_path)), aux_layers=[2, 4, 5], **dimensions)
    with pytest.raises(EyrieError, match=r"Weights are missing: \*\.safetensors"):
        checkpoint.check(tmp_path, target)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["rows.pkl", "rows.pt", "rows.npy", "rows.bin"])
def test_a_dataset_of_pickles_has_no_rows(tmp_path: Path, mark: Path, name: str) -> None:
    from eyrie.dataset import files
    from eyrie.dataset.settings import Source as DatasetSource

    torch_file(tmp_path / name, Trap(mark))
    with pytest.raises(EyrieError, match="no data files"):
        files.local(DatasetSource(kind="local", adapter="prompt", path=str(tmp_path)), "planted")
    assert not mark.exists()


def test_objects_in_a_yaml_dataset_are_refused(tmp_path: Path, mark: Path) -> None:
    from eyrie.dataset import formats, readers

    path = tmp_path / "rows.yml"
    path.write_text(f"- prompt: !!python/object/apply:os.mkdir ['{mark}']\n")
    with pytest.raises(EyrieError):
        list(readers.Yaml(path, formats.shape(path)))
    assert not mark.exists()

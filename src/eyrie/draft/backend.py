"""The `eyrie` hidden-states backend of speculators' trainer: states by an index file instead of by row number.

The index has one path per row of the training view. fp8 states are brought back to bf16 here; in window mode a row
that is not on disk yet is waited for, and its use is told to the feeder (see eyrie.hidden_states.window).
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from hs_connectors import HiddenStatesBackend, HiddenStatesTransfer

from eyrie.draft.backend_name import NAME, reads_folder
from eyrie.hidden_states import convert

POLL_S = 0.02


class IndexTransfer(HiddenStatesTransfer):  # type: ignore[misc]
    """Reads row i's states from the i-th path of an index file."""

    def __init__(self, index: Path, wait_s: float = 0.0):
        self.index = index
        self.wait_s = wait_s
        self._paths: list[str] | None = None

    @property
    def paths(self) -> list[str]:
        if self._paths is None:
            self._paths = self.index.read_text("utf-8").splitlines()
        return self._paths

    def __getstate__(self) -> dict[str, Any]:
        return {"index": self.index, "wait_s": self.wait_s, "_paths": None}  # workers read the index themselves

    def get_cached(self, file_idx: int) -> dict[str, Any] | None:
        path = self.index.parent / self.paths[file_idx]
        deadline = time.monotonic() + self.wait_s
        while not path.exists():
            if time.monotonic() >= deadline:
                return None
            time.sleep(POLL_S)
        loaded = convert.load(path)
        if self.wait_s:
            self._tell(file_idx)
        return loaded

    def _tell(self, file_idx: int) -> None:
        """Leave a line for the feeder: one file per process, so that lines never mix."""
        folder = reads_folder(self.index)
        folder.mkdir(exist_ok=True)
        with open(folder / str(os.getpid()), "a", encoding="ascii") as stream:
            stream.write(f"{file_idx}\n")

    def get_generated(self, hs_transfer_params: dict[str, Any]) -> dict[str, Any] | None:
        raise NotImplementedError("the eyrie backend never generates: what is missing is an error")


class IndexBackend(HiddenStatesBackend):  # type: ignore[misc]
    """Registers the transfer with the trainer's command line."""

    @staticmethod
    def add_train_args(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--states-index", type=str, default=None, help="file with one states path per row")
        parser.add_argument("--states-wait", type=float, default=0.0, help="seconds to wait for a row's states")

    @staticmethod
    def add_launch_args(parser: argparse.ArgumentParser) -> None:
        return None

    @staticmethod
    def from_train_args(args: argparse.Namespace, data_path: str) -> IndexTransfer:
        return IndexTransfer(Path(args.states_index), float(args.states_wait or 0.0))

    @staticmethod
    def build_kv_transfer_config(args: argparse.Namespace) -> dict[str, Any]:
        raise NotImplementedError("servers are launched by eyrie.serve")


def register() -> None:
    """Make the backend known; before speculators' configuration is imported, which looks at the registry once."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if NAME not in HiddenStatesBackend.registry:
        HiddenStatesBackend.register(NAME)(IndexBackend)

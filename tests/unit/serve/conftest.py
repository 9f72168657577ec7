import copy
import json
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from eyrie.core.pipeline import Pipeline
from eyrie.serve import switch
from eyrie.supervise.supervisord import Supervisord

FAKES = Path(__file__).parents[2] / "fakes"
sys.path.insert(0, str(FAKES))
import checkpoints  # noqa: E402


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Run:
    """A run whose servers are the fake engine; `behave` says how each profile behaves from its next start on."""

    def __init__(self, root, **server):
        self.root = root
        self.behaviour = root / "behaviour.json"
        self.settings = settings = {
            "port": free_port(),
            "device": "cpu",
            "start_timeout_s": 20,
            "stop_timeout_s": 10,
            "command": [sys.executable, str(FAKES / "engine.py"), str(self.behaviour)],
            **server,
        }
        if settings.get("engine", "vllm") == "vllm":
            settings["command"] = [*settings["command"], "serve"]
        self.pipeline = Pipeline(
            {
                "root": str(root),
                "run": "main",
                "target": {
                    "name": "toy",
                    "source": {"kind": "path", "path": str(root / "source")},
                    "hidden_size": checkpoints.HIDDEN,
                    "num_hidden_layers": checkpoints.LAYERS,
                    "num_attention_heads": checkpoints.HEADS,
                    "vocab_size": checkpoints.VOCAB,
                    "aux_layers": checkpoints.AUX,
                    "max_model_len": 128,
                },
                "server": copy.deepcopy(settings),
                "stages": {"target": {}},
                "execution": {"supervisor": "supervisord"},
            }
        )
        checkpoints.write_target(root / "source")
        self.model = checkpoints.write_target(self.pipeline.context("target").out)
        checkpoints.write_draft(root / "draft" / "checkpoint")
        self.pipeline._contexts["draft"] = SimpleNamespace(out=root / "draft")

    @property
    def port(self):
        return self.pipeline.server["port"]

    def behave(self, **profiles):
        self.behaviour.write_text(json.dumps(profiles))

    def ensure(self, profile, **kwargs):
        return switch.ensure(self.pipeline, profile, **kwargs)


@pytest.fixture
def run(tmp_path):
    """run(**server settings) -> Run; whatever it started is gone afterwards."""
    made = []

    def make(**server):
        made.append(Run(tmp_path, **server))
        return made[-1]

    yield make
    for item in made:
        item.pipeline.server = item.settings
        item.behave()
        switch.stop(item.pipeline)
    Supervisord(tmp_path).shutdown()


class Progress:
    """Collects what a switch reports."""

    def __init__(self):
        self.done, self.detail, self.texts = 0, {}, []

    def start(self, phase, **_):
        self.texts.append(phase)

    def update(self, done, server="", **_):
        self.texts.append(server)


@pytest.fixture
def progress():
    return Progress()

"""Training through a window a third of the corpus: the draft of a full store, within the bytes, kill -9 or not."""

import threading
import time

import pytest
import torch

from eyrie.core import runner
from eyrie.core.errors import EyrieError
from eyrie.hidden_states import plan

pytestmark = pytest.mark.slow
WINDOW = 90_000


class Gauge:
    """The most bytes that states take on disk, looked at every few milliseconds."""

    def __init__(self, folders):
        self.folders, self.most, self._stop = folders, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self):
        while not self._stop.is_set():
            total = 0
            for folder in self.folders:
                for path in folder.rglob("*.safetensors"):
                    try:
                        total += path.stat().st_size
                    except FileNotFoundError:
                        continue
            self.most = max(self.most, total)
            time.sleep(0.005)

    def stop(self):
        self._stop.set()
        self._thread.join(5)
        return self.most


@pytest.fixture
def windowed(tiny, house, monkeypatch):
    """The house with a real hidden_states stage in window mode and a server for it."""
    from tiny_server import TinyServer

    server = TinyServer(tiny, house.tmp / "root/server/extract")
    del house.inputs["hidden_states"]
    house.states = {"storage": "window", "window_bytes": WINDOW, "reserve_bytes": 0, "high_water": 1.0}
    house.states.update(reference_max_bytes=0, probe_samples=2, concurrency=2)
    monkeypatch.setattr(plan, "endpoints", lambda ctx: [server.url])
    monkeypatch.setattr(plan, "reviver", lambda ctx, work: lambda url, why: None)
    monkeypatch.setattr(plan, "storage", lambda ctx: server.folder)
    monkeypatch.setattr(runner, "_serve", lambda ctx, work: None)
    house.server = server
    runner.run(house.pipeline(), "hidden_states")
    yield house
    server.close()


@pytest.fixture
def full(tiny, tmp_path_factory, monkeypatch):
    """The same training from a store that holds everything."""
    from draft_house import House

    with pytest.MonkeyPatch.context() as patch:
        house = House(tiny, tmp_path_factory.mktemp("full"), patch)
        house.run()
        return house.losses(), house.weights()


def same(house, full):
    losses, weights = full
    assert house.losses() == losses
    for name, tensor in house.weights().items():
        assert torch.equal(tensor, weights[name]), name


def test_a_small_window_trains_the_same_draft_and_stays_within_its_bytes(full, windowed):
    store = windowed.tmp / "root/runs/main/hidden_states/window"
    gauge = Gauge([store, windowed.server.folder])
    record = windowed.run()
    most = gauge.stop()
    figures = record["figures"]["window"]
    corpus = sum(line["bytes"] for line in _lines(windowed))
    assert corpus > 2.5 * WINDOW
    assert 0 < most <= WINDOW
    assert figures["peak_bytes"] <= WINDOW
    assert figures["deleted"] > 0
    assert figures["captured"] > 36  # more than once for what was deleted
    same(windowed, full)

    windowed.settings["seed"] = 43  # another run begins in the window that the last one left
    windowed.when(lambda: windowed.steps_done() >= 6, windowed.kill_trainer)
    with pytest.raises(EyrieError) as caught:
        windowed.run()
    assert caught.value.code == "trainer-failed"
    gauge = Gauge([store, windowed.server.folder])
    record = windowed.run()
    assert gauge.stop() <= WINDOW
    assert record["figures"]["resumed_from"] > 0
    assert sorted(windowed.losses()) == list(range(len(full[0])))


def _lines(house):
    from eyrie.hidden_states import manifest

    return list(manifest.read(house.pipeline().context("hidden_states").out / manifest.NAME))

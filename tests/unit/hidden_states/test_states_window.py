"""The window: never above its bytes, everything there when the trainer wants it, nothing lost by a kill -9."""

import random
import threading
import time

import pytest
import toy_states

from eyrie.core.errors import EyrieError
from eyrie.hidden_states import files
from eyrie.hidden_states.capture import Result
from eyrie.hidden_states.corpus import Row
from eyrie.hidden_states.keys import key_of, token_digest
from eyrie.hidden_states.store import Entry, Store
from eyrie.hidden_states.window import Feeder, Schedule, Visit, recover

SHAPE = toy_states.SHAPE


def rows(count):
    made = []
    for number in range(count):
        ids = [number % 32, *range(5 + number % 4)]
        made.append(Row(number, key_of(token_digest([number, *ids]), SHAPE.digest), len(ids)))
    return made


def size(row):
    return files.file_bytes(row.tokens, 4, 8, "bf16")


def schedule(all_rows, train, epochs, per_step=3, seed=0):
    visits, step = [], 0
    for epoch in range(epochs):
        order = all_rows[:train]
        random.Random(seed + epoch).shuffle(order)
        for at in range(0, train, per_step):
            visits.append(Visit(epoch, step, tuple(order[at : at + per_step])))
            step += 1
        visits += [Visit(epoch, -1, (row,)) for row in all_rows[train:]]
    return Schedule(visits)


class Rig:
    """A feeder whose captures write real files, and a trainer that walks the schedule."""

    def __init__(self, tmp_path, all_rows, window, epochs=3, train=None):
        self.store = Store(tmp_path / "window")
        self.rows, self.window, self.epochs = all_rows, window, epochs
        self.train = train or len(all_rows) - 3
        self.schedule = schedule(list(all_rows), self.train, epochs)
        self.peak = 0
        self.captures = []
        self.fail = ""

    def on_disk(self):
        return sum(path.stat().st_size for path in self.store.path.glob("??/*.safetensors"))

    def capture(self, wanted):
        result = Result()
        for row in wanted:
            if self.fail:
                result.failures[row.key] = ("invalid", self.fail)
                return result
            path = toy_states.states_file(self.store.file(row.key), list(range(row.tokens)))
            kept, digest = path.stat().st_size, files.checksum(path)
            self.store.record([Entry(row.key, row.tokens, kept, "bf16", "1,3,5,6", digest, SHAPE.digest)])
            self.captures.append(row.key)
            self.peak = max(self.peak, self.on_disk())
        return result

    def feeder(self, start=0):
        return Feeder(self.store, SHAPE, self.schedule, self.window, self.capture, start)

    def walk(self, feeder, start=0, until=None):
        """Be the trainer: wait for each visit's states, read them, say so. Returns the keys in the order read."""
        seen = []
        for number, visit in enumerate(self.schedule.visits[start:until], start):
            for row in visit.rows:
                self._wait(feeder, row)
                seen.append(row.key)
            self.over(feeder, visit)
            assert feeder.done <= number + 1
        return seen

    @staticmethod
    def over(feeder, visit):
        """Say that a visit is over."""
        if visit.step >= 0:
            feeder.trained(visit.step + 1)
        else:
            feeder.read([row.row for row in visit.rows])

    def _wait(self, feeder, row):
        end = time.monotonic() + 10
        while not self.store.file(row.key).exists():
            assert feeder.error is None, feeder.error
            assert time.monotonic() < end, "the trainer starves"
            time.sleep(0.002)


def test_a_window_smaller_than_the_corpus_feeds_every_epoch_and_stays_within_its_bytes(tmp_path):
    made = rows(30)
    total = sum(map(size, made))
    rig = Rig(tmp_path, made, window=total // 3)
    feeder = rig.feeder()
    feeder.start()
    seen = rig.walk(feeder)
    feeder.stop()
    assert seen == [row.key for visit in rig.schedule.visits for row in visit.rows]
    assert rig.peak <= rig.window
    assert len(rig.captures) > len(made)  # captured anew for later epochs
    assert feeder.figures()["deleted"] > 0
    assert len(rig.captures) < 3 * len(made)  # but what stays useful stays


def test_a_window_that_holds_all_captures_each_sample_once(tmp_path):
    made = rows(30)
    rig = Rig(tmp_path, made, window=2 * sum(map(size, made)))
    feeder = rig.feeder()
    feeder.start()
    rig.walk(feeder)
    feeder.stop()
    assert sorted(rig.captures) == sorted(row.key for row in made)
    assert feeder.figures()["deleted"] == 0


@pytest.mark.parametrize("cut", [0, 1, 7, 11, 25, 31])
def test_a_kill_anywhere_loses_nothing(tmp_path, cut):
    """The trainer resumes before where it was; orphans, half files and rows without files are put right."""
    made = rows(30)
    rig = Rig(tmp_path, made, window=sum(map(size, made)) // 3)
    feeder = rig.feeder()
    feeder.start()
    rig.walk(feeder, until=cut)
    feeder.stop()
    rig.store.close()
    present = sorted(rig.store.path.glob("??/*.safetensors"))
    if len(present) > 3:
        present[0].write_bytes(present[0].read_bytes()[:-4])
        present[1].unlink()
        rig.store.forget([present[2].stem])
    (rig.store.path / "00").mkdir(exist_ok=True)
    (rig.store.path / "00" / "x.tmp").write_bytes(b"half")
    resume = max(0, cut - 4)
    again = rig.feeder(resume)
    again.start()
    seen = rig.walk(again, start=resume)
    again.stop()
    assert seen == [row.key for visit in rig.schedule.visits[resume:] for row in visit.rows]
    assert rig.peak <= rig.window


def test_recover_believes_only_what_disk_and_manifest_agree_on(tmp_path):
    made = rows(5)
    rig = Rig(tmp_path, made, window=10**6, train=4)
    rig.capture(made)
    files_ = {row.key: rig.store.file(row.key) for row in made}
    keys = list(files_)
    files_[keys[0]].write_bytes(b"short")
    files_[keys[1]].unlink()
    rig.store.forget([keys[2]])
    present = recover(rig.store)
    assert set(present) == set(keys[3:])
    assert not files_[keys[0]].exists()
    assert not files_[keys[2]].exists()
    assert {entry.key for entry in rig.store.entries()} == set(keys[3:])


def test_a_window_too_small_for_one_step_says_how_much_it_needs(tmp_path):
    made = rows(12)
    rig = Rig(tmp_path, made, window=size(made[0]))
    feeder = rig.feeder()
    feeder.start()
    _until(lambda: feeder.error is not None)
    assert isinstance(feeder.error, EyrieError)
    assert feeder.error.code == "window-too-small"
    assert "window_bytes" in feeder.error.todo


def test_room_is_made_for_the_probe_in_a_window_that_an_earlier_attempt_filled(tmp_path):
    made = rows(30)
    rig = Rig(tmp_path, made, window=sum(map(size, made)) // 3)
    feeder = rig.feeder()
    feeder.start()
    rig.walk(feeder, until=9)
    feeder.stop()
    again = rig.feeder(5)
    again.make_room(rig.window // 2)
    assert 0 < rig.on_disk() <= rig.window - rig.window // 2
    with pytest.raises(EyrieError, match="the probe's samples take"):
        again.make_room(rig.window + 1)


def test_a_capture_that_fails_reaches_the_trainers_watch(tmp_path):
    made = rows(12)
    rig = Rig(tmp_path, made, window=10**6)
    rig.fail = "row 3: nan"
    feeder = rig.feeder()
    feeder.start()
    _until(lambda: feeder.error is not None)
    assert feeder.error.code == "window-capture"


def test_stopping_ends_the_feeders_thread(tmp_path):
    made = rows(30)
    rig = Rig(tmp_path, made, window=sum(map(size, made)) // 3)
    feeder = rig.feeder()
    feeder.start()
    feeder.stop()
    assert not any(thread.name == "feeder" for thread in threading.enumerate())


def test_window_mode_declares_its_rows_and_captures_nothing(house):
    house.settings.update(storage="window", window_bytes=10**6)
    record = house.run()
    assert house.served == [False]
    assert house.server.requests == {}
    assert record["account"]["kept"] == 10
    assert record["figures"]["corpus_bytes"] > 0
    assert house.context().stage.verify(house.context()) == []


def test_window_mode_needs_a_size():
    from eyrie.core import spec
    from eyrie.core.errors import SpecError
    from eyrie.hidden_states.settings import HiddenStatesSettings

    with pytest.raises(SpecError, match="needs window_bytes"):
        spec.load(HiddenStatesSettings, {"storage": "window"}, "hidden_states")


def _until(condition, limit=10):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)

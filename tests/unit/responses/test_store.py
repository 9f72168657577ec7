"""The store of answers: append-only, checksummed, torn ends cut, damage found, one writer."""

from __future__ import annotations

import errno
import hashlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyrie.core.errors import EyrieError
from eyrie.responses import store as module
from eyrie.responses.store import Store, frame, read_index, shard_numbers, unframe


def key(number):
    return hashlib.sha256(str(number).encode()).hexdigest()[:32]


def fill(path, count, size=40, **options):
    with Store(path, **options) as store:
        for number in range(count):
            store.append(key(number), b'{"n":%d,"x":"%s"}' % (number, b"y" * size))
            store.flush()


def contents(path, count):
    with Store(path) as store:
        index = store.index()
        return {n: store.read(place) for n in range(count) if (place := index.find(key(n))) is not None}


class TestFrame:
    @given(st.binary(max_size=300).filter(lambda data: b"\n" not in data))
    def test_what_is_framed_is_read_back(self, payload):
        line = frame(key(1), payload)
        assert line.endswith(b"\n")
        assert unframe(line[:-1]) == (key(1), payload)

    @given(st.data())
    def test_no_changed_byte_is_read_as_a_record(self, data):
        line = bytearray(frame(key(1), b'{"text":"some answer"}')[:-1])
        place = data.draw(st.integers(0, len(line) - 1))
        line[place] ^= data.draw(st.integers(1, 255))
        changed = unframe(bytes(line))
        # the checksum's own digits may change their case and stay the same number
        assert changed is None or changed == (key(1), b'{"text":"some answer"}')

    @pytest.mark.parametrize("line", [b"", b"x", b"0" * 41, b"zzzzzzzz " + b"0" * 32 + b" {}"])
    def test_other_lines_are_none(self, line):
        assert unframe(line) is None


class TestStore:
    def test_records_are_found_by_key(self, tmp_path):
        fill(tmp_path, 50)
        assert contents(tmp_path, 60).keys() == set(range(50))

    def test_newest_record_of_a_key_wins(self, tmp_path):
        with Store(tmp_path) as store:
            store.append(key(1), b'"old"')
            store.append(key(2), b'"other"')
            store.append(key(1), b'"new"')
        found = contents(tmp_path, 3)
        assert found == {1: b'"new"', 2: b'"other"'}

    def test_shards_roll_and_are_read_in_order(self, tmp_path):
        fill(tmp_path, 100, size=100, shard_bytes=2000)
        assert len(shard_numbers(tmp_path)) > 5
        assert len(contents(tmp_path, 100)) == 100

    @pytest.mark.parametrize("cut", [1, 5, 40, 80])
    def test_torn_last_record_is_cut_and_the_others_stay(self, tmp_path, cut):
        fill(tmp_path, 5)
        shard = tmp_path / "answers-000001.log"
        shard.write_bytes(shard.read_bytes()[:-cut])
        with Store(tmp_path) as store:
            assert store.cut_bytes > 0
            store.append(key(9), b'"after"')
        found = contents(tmp_path, 10)
        assert found.keys() == {0, 1, 2, 3, 9}
        assert all(unframe(line) for line in shard.read_bytes().splitlines())

    def test_a_file_without_any_newline_is_cut_to_nothing(self, tmp_path):
        tmp_path.mkdir(exist_ok=True)
        (tmp_path / "answers-000001.log").write_bytes(b"torn")
        fill(tmp_path, 2)
        assert len(contents(tmp_path, 2)) == 2

    def test_damaged_record_is_left_out_and_counted(self, tmp_path):
        fill(tmp_path, 5)
        shard = tmp_path / "answers-000001.log"
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
        index = read_index(tmp_path)
        assert index.damaged == 1
        assert len(index) == 4

    def test_damage_after_the_index_was_read_is_named(self, tmp_path):
        fill(tmp_path, 3)
        with Store(tmp_path) as store:
            place = store.index().find(key(1))
            shard = tmp_path / "answers-000001.log"
            data = bytearray(shard.read_bytes())
            data[place[1] + 60] ^= 1
            shard.write_bytes(data)
            with pytest.raises(EyrieError) as caught:
                store.read(place)
        assert caught.value.code == "store-damaged"
        assert str(place[1]) in caught.value.where

    def test_zeros_that_a_power_loss_leaves_are_skipped(self, tmp_path):
        fill(tmp_path, 3)
        shard = tmp_path / "answers-000001.log"
        shard.write_bytes(shard.read_bytes() + b"\0" * 4096 + b"\n")
        fill(tmp_path, 4)
        assert len(contents(tmp_path, 4)) == 4

    def test_two_writers_are_refused(self, tmp_path):
        with Store(tmp_path):
            with pytest.raises(EyrieError) as caught, Store(tmp_path):
                pass
            assert caught.value.code == "store-held"
            assert str(os.getpid()) in caught.value.why
        with Store(tmp_path):
            pass

    @pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, "disk-full"), (errno.EIO, "store-unwritable")])
    def test_failed_write_leaves_whole_records_and_says_why(self, tmp_path, monkeypatch, number, code):
        fill(tmp_path, 2)
        real = os.write
        room = [100]

        def write(fd, data):
            if room[0] <= 0:
                raise OSError(number, os.strerror(number))
            done = real(fd, bytes(data[: room[0]]))
            room[0] -= done
            return done

        with Store(tmp_path) as store:
            store.append(key(7), b'"%s"' % (b"z" * 500))
            monkeypatch.setattr(module.os, "write", write)
            with pytest.raises(EyrieError) as caught:
                store.flush()
            monkeypatch.undo()
            store._pending.clear()
        assert caught.value.code == code
        lines = (tmp_path / "answers-000001.log").read_bytes().splitlines()
        assert len(lines) == 2
        assert all(unframe(line) for line in lines)

    @given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=40), st.integers(0, 200))
    def test_any_history_cut_anywhere_is_a_prefix_of_itself(self, tmp_path_factory, history, cut):
        """Whatever byte a crash stops at, what is read back is what some moment of the past held."""
        path = tmp_path_factory.mktemp("store")
        moments = [{}]
        with Store(path) as store:
            for number, value in history:
                store.append(key(number), b"%d" % value)
                store.flush()
                moments.append({**moments[-1], number: b"%d" % value})
        shard = path / "answers-000001.log"
        data = shard.read_bytes()
        shard.write_bytes(data[: max(0, len(data) - cut)])
        assert contents(path, 10) in moments

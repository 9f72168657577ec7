"""kill -9 at any moment: the next run goes on, and the end is that of an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter

import httptools  # noqa: F401 - what forked children need is imported before the fork
import pyarrow.parquet  # noqa: F401
import pytest
import uvloop  # noqa: F401
from fake_server import FakeServer
from harness import run, said, settings_of, user, write_dataset

import eyrie.responses.keeper  # noqa: F401
from eyrie.responses.store import scan, shard_numbers

KILLS, ROUNDS, SEED = 200, 20, 20261130


def conversations(count):
    """Single questions and conversations of three turns."""
    rows = []
    for number in range(count):
        rows.append([user(f"Q{number}?")])
        if number % 5 == 0:
            rows[-1] += [said("x"), user(f"and then, {number}?"), said("y"), user(f"at last, {number}?")]
    return rows


def in_a_child(base, server, settings):
    """Run the stage's work in a forked process; its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            run(base, [server.url], settings)
        finally:
            os._exit(0)
    return pid


def keys(base):
    """How often each key stands in the store."""
    return Counter(
        record[0] for number in shard_numbers(base / "store") for _, record in scan(base / "store", number) if record
    )


@pytest.mark.slow
def test_two_hundred_random_kills_lose_and_double_nothing(tmp_path):
    dice, killed, partial = random.Random(SEED), 0, 0
    settings = settings_of(concurrency=4)
    with FakeServer(delay=0.006) as server:
        server.keep_requests = False
        calm = tmp_path / "calm"
        calm.mkdir()
        write_dataset(calm / "train.parquet", conversations(150))
        expected = run(calm, [server], settings)
        table = (calm / "responses.parquet").read_bytes()
        turns = len(expected.rows)
        for number in range(ROUNDS):
            base = tmp_path / f"round{number}"
            base.mkdir()
            write_dataset(base / "train.parquet", conversations(150))
            for _ in range(KILLS // ROUNDS):
                pid = in_a_child(base, server, settings)
                time.sleep(dice.uniform(0.02, 0.12))
                os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                killed += os.WIFSIGNALED(status)
                seen = keys(base)
                partial += 0 < len(seen) < turns
                assert set(seen.values()) <= {1}, "an answer is stored once"
            result = run(base, [server], settings)
            assert (base / "responses.parquet").read_bytes() == table
            assert result.account == expected.account
            assert len(keys(base)) == turns
            assert sum(keys(base).values()) == turns
            assert not list(base.glob(".*.tmp")), "no torn table is left"
    assert killed >= KILLS * 3 // 4, f"only {killed} of {KILLS} runs were hit"
    assert partial >= KILLS // 2, f"only {partial} of {KILLS} kills fell between the first answer and the last"

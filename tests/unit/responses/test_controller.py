"""The controller finds how much an endpoint can take, and records what it measured."""

from __future__ import annotations

import asyncio
import time

import pytest
from fake_server import FakeServer, Rule
from harness import questions, run, settings_of, write_dataset

from eyrie.responses import controller as module


class Busy(FakeServer):
    """A server with so many slots: more in flight only waits."""

    def __init__(self, slots, latency):
        super().__init__()
        self.keep_requests = False
        self._slots, self._latency, self.slots = None, latency, slots

    async def _chat(self, writer, request, prompt, text):
        if self._slots is None:
            self._slots = asyncio.Semaphore(self.slots)
        async with self._slots:
            await asyncio.sleep(self._latency)
        return await super()._chat(writer, request, prompt, text)


@pytest.fixture
def quick(monkeypatch):
    """Short measurements."""
    monkeypatch.setattr(module, "WINDOW_S", 0.4)


def find(tmp_path, server, count, **values):
    write_dataset(tmp_path / "train.parquet", questions(count))
    return run(tmp_path, [server], settings_of(concurrency=0, **values)).engine.controllers[0]


def test_limit_rises_until_the_rate_stops_growing(tmp_path, quick):
    with Busy(slots=32, latency=0.05) as server:
        found = find(tmp_path, server, 2500)
    rates = {point["concurrency"]: point["tok_s"] for point in found.curve}
    assert list(rates)[:3] == [8, 16, 32]
    assert rates[16] > 1.5 * rates[8]
    assert rates[32] > 1.4 * rates[16]
    assert max(rates) <= 256, "it stops soon after the 32 slots are full"
    assert 32 <= found.endpoint.limit <= 128
    assert rates[found.endpoint.limit] * 1.05 >= max(rates.values())


def test_latency_bound_is_kept(tmp_path, quick):
    with Busy(slots=16, latency=0.05) as server:
        found = find(tmp_path, server, 1500, latency_bound_s=0.08)
    assert found.endpoint.limit == 16
    assert [point["concurrency"] for point in found.curve if point["latency_p50_s"] > 0.08] in ([], [32])


def test_upper_bound_is_kept(tmp_path, quick):
    with Busy(slots=500, latency=0.05) as server:
        found = find(tmp_path, server, 1000, max_concurrency=12)
        assert server.stats.max_parallel <= 12
    assert found.endpoint.limit == 12


def test_given_concurrency_is_not_touched(tmp_path):
    with Busy(slots=4, latency=0.01) as server:
        write_dataset(tmp_path / "train.parquet", questions(100))
        found = run(tmp_path, [server], settings_of(concurrency=24)).engine.controllers[0]
    assert found.endpoint.limit == 24
    assert found.curve == []
    assert found.as_dict()["fixed"] is True


def test_earlier_finding_is_where_the_next_run_starts(tmp_path):
    with Busy(slots=64, latency=0.05) as server:
        write_dataset(tmp_path / "train.parquet", questions(200))
        run(tmp_path, [server], settings_of(concurrency=0), with_engine=lambda engine: engine.controllers[0].start(48))
        assert server.stats.max_parallel == 48


def test_too_many_requests_lower_the_limit(tmp_path):
    rules = [Rule("number 3?", status=429, headers={"Retry-After": "0.05"}, times=1)]
    with FakeServer(rules, delay=0.01) as server:
        write_dataset(tmp_path / "train.parquet", questions(60))
        result = run(tmp_path, [server], settings_of(concurrency=0), with_engine=lambda e: e.controllers[0].start(10))
    assert result.engine.endpoints[0].limit == 7
    assert len(result.rows) == 60


def test_small_work_ends_before_anything_is_measured(tmp_path):
    with FakeServer() as server:
        start = time.monotonic()
        found = find(tmp_path, server, 10)
        assert time.monotonic() - start < 3
    assert found.curve == []

"""Verify: every fault by name, the bad ones in quarantine, and only they captured anew."""

import time

import pytest
import toy_states
from capture_house import ROWS

from eyrie.core import planner
from eyrie.hidden_states import manifest, verify
from eyrie.hidden_states.store import Entry, Store


def spoil(kind, path):
    data = path.read_bytes()
    if kind == "bit":
        path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    elif kind == "truncated":
        path.write_bytes(data[:-5])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "foreign":
        toy_states.states_file(path, [9, 9, 9])
    elif kind == "gone":
        path.unlink()


CODES = {"bit": "checksum", "truncated": "truncated", "empty": "empty", "foreign": "size", "gone": "missing"}


def test_all_well_is_no_fault(house):
    house.run()
    ctx = house.context()
    assert ctx.stage.verify(ctx) == []


@pytest.mark.parametrize("kind", CODES)
def test_a_bad_file_is_named_quarantined_and_alone_captured_again(house, kind):
    house.run()
    good = {path: path.stat().st_mtime_ns for path in house.files()}
    ctx = house.context()
    line = list(manifest.read(ctx.out / manifest.NAME))[4]
    victim = next(path for path in good if path.stem == line["key"])
    spoil(kind, victim)
    (fault,) = ctx.stage.verify(ctx)
    assert fault.code == CODES[kind]
    assert fault.where.startswith("row 4 ")
    assert not victim.exists()
    quarantined = list((victim.parents[1] / "quarantine").glob("*")) if kind != "gone" else []
    assert len(quarantined) == (kind != "gone")
    assert not planner.plan(house.context())["up_to_date"]
    before = sum(house.server.requests.values())
    assert house.run()["figures"]["captured"] == 1
    assert sum(house.server.requests.values()) == before + 1 + 2  # the capture, and the probe of that row
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in good.items() if path != victim)
    assert house.context().stage.verify(house.context()) == []


def test_a_lost_link_is_a_fault(house):
    house.run()
    ctx = house.context()
    (ctx.out / manifest.LINKS / "hs_3.safetensors").unlink()
    (fault,) = ctx.stage.verify(ctx)
    assert fault.code == "link-missing"
    assert "rows [3]" in fault.what


def test_a_sample_reads_only_so_many(house, monkeypatch):
    house.run()
    read = []
    real = verify._check
    monkeypatch.setattr(verify, "_check", lambda path, line: (read.append(path), real(path, line))[1])
    assert verify.faults(house.context(), sample=3) == []
    assert len(read) == 3


def test_looking_without_repair_changes_nothing(house):
    house.run()
    victim = house.files()[0]
    spoil("bit", victim)
    assert len(verify.faults(house.context(), repair=False)) == 1
    assert victim.exists()
    assert (house.context().out / manifest.NAME).exists()


def test_the_plan_of_a_hundred_thousand_captured_samples_takes_under_a_second(house):
    """By the record and the manifest's size, not by a walk over files."""
    house.run()
    ctx = house.context()
    with Store(ctx.base / "store") as store:
        store.path.mkdir(parents=True, exist_ok=True)
        rows = (Entry(f"{n:064x}", 2300, 10**6, "bf16", "1,3,5,6", "0" * 32, "d") for n in range(100_000))
        with store.db:
            store.db.executemany(
                "INSERT INTO samples (key, tokens, bytes, dtype, layers, checksum, digest, captured)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
                [(r.key, r.tokens, r.bytes, r.dtype, r.layers, r.checksum, r.digest) for r in rows],
            )
    started = time.perf_counter()
    plan = planner.plan(house.context())
    assert plan["up_to_date"]
    assert time.perf_counter() - started < 1.0
    started = time.perf_counter()
    stale = house.context().stage.forecast(house.context())
    assert stale["stored_samples"] == 100_000 + len(ROWS)
    assert time.perf_counter() - started < 1.0

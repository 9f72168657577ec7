"""The stage against a fake extract server: nothing lost, nothing doubled, only what is missing captured."""

import json
import threading
import time

import pytest
import toy_states
from capture_house import ROWS
from safetensors.torch import load_file

from eyrie.core.errors import EyrieError, GateError, Interrupted
from eyrie.core.stage import Work
from eyrie.hidden_states import manifest
from eyrie.hidden_states.store import Store


def store_of(house):
    return Store(house.tmp / "root/runs/main/hidden_states/store")


def lines_of(house):
    return list(manifest.read(house.context().out / manifest.NAME))


def asked(house):
    """Requests per row's ids, the probe's taken off (it asks twice for each of its samples)."""
    return sum(house.server.requests.values())


def test_a_capture_keeps_every_row_and_the_books_balance(house):
    record = house.run()
    assert record["account"]["in"] == record["account"]["kept"] == len(ROWS)
    assert [line["row"] for line in lines_of(house)] == list(range(len(ROWS)))
    assert house.served == [True]
    for line in lines_of(house):
        link = house.context().out / manifest.LINKS / f"hs_{line['row']}.safetensors"
        assert link.is_symlink()
        assert link.stat().st_mode & 0o777 == 0o644
        found = load_file(link)
        assert found["token_ids"].tolist() == ROWS[line["row"]]
        assert list(found["hidden_states"].shape) == [len(ROWS[line["row"]]), 4, toy_states.HIDDEN]


def test_the_forecast_of_bytes_is_exact(house):
    assert house.run()["figures"]["forecast_error"]["bytes"] == 0.0


def test_states_lie_in_sharded_folders_by_content(house):
    house.run()
    for path in house.files():
        assert path.parent.name == path.name[:2]
        assert len(path.stem) == 64


def test_a_second_run_is_up_to_date_and_asks_nothing(house):
    house.run()
    before = asked(house)
    house.run()
    assert asked(house) == before


def test_re_prepared_data_captures_only_what_is_new(house):
    house.run()
    times = {path: path.stat().st_mtime_ns for path in house.files()}
    before = asked(house)
    new = [[1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]]
    house.prepare([*reversed(ROWS[2:]), *new], tag="b")
    record = house.run()
    assert record["figures"]["reused"] == len(ROWS) - 2
    assert record["figures"]["captured"] == 2
    assert asked(house) == before + 2 + 2 * 2  # two captures, and the probe of both
    assert all(path.stat().st_mtime_ns == times[path] for path in times)
    assert len(lines_of(house)) == len(ROWS)


def test_equal_rows_are_captured_once(house):
    house.prepare([ROWS[0], ROWS[1], ROWS[0], ROWS[0]])
    record = house.run()
    assert (record["figures"]["rows"], record["figures"]["unique"]) == (4, 2)
    assert len(house.files()) == 2
    assert record["account"]["kept"] == 4


def test_a_deleted_file_alone_is_captured_again(house):
    """Decided from the disk, not from a cached list."""
    house.run()
    gone = house.files()[3]
    gone.unlink()
    (house.context().out / manifest.NAME).unlink()
    before = asked(house)
    assert house.run()["figures"]["captured"] == 1
    assert gone.exists()
    assert asked(house) == before + 1 + 2


def test_other_layers_or_other_weights_are_other_states(house):
    house.run()
    count = len(house.files())
    config = json.loads((house.target / "config.json").read_text())
    (house.target / "config.json").write_text(json.dumps({**config, "rope_theta": 5}))
    house.prepare(ROWS, tag="other-weights")
    assert house.run()["figures"]["captured"] == len(ROWS)
    assert len(house.files()) == 2 * count


def test_all_present_needs_no_server(house):
    house.run()
    house.prepare(ROWS[:5], tag="fewer")
    house.run()
    assert house.served == [True, False]


@pytest.mark.parametrize("fault", ["truncated", "empty", "no-file", "no-path", "echo", "nan", "short"])
def test_a_bad_answer_is_asked_for_again(house, fault):
    house.settings["write_timeout_s"] = 0.3
    ids = tuple(ROWS[5])
    house.server.faults[ids] = [fault, fault]
    record = house.run()
    assert record["account"]["kept"] == len(ROWS)
    assert record["account"]["failed"] == {}
    assert house.server.requests[ids] == 3
    assert not list(house.server.folder.glob("*.safetensors"))


def test_a_sample_that_stays_bad_fails_by_name_and_the_rest_is_kept(house):
    house.server.faults[tuple(ROWS[5])] = ["nan"] * 20
    with pytest.raises(EyrieError, match=r"1 of 10 samples could not be captured.*row 5") as caught:
        house.run()
    assert caught.value.code == "capture-incomplete"
    assert len(house.files()) == len(ROWS) - 1
    house.server.faults.clear()
    before = asked(house)
    assert house.run()["account"]["kept"] == len(ROWS)
    assert asked(house) == before + 1 + 2


def test_a_share_of_failures_can_be_allowed_and_is_in_the_books(house):
    house.settings["max_failed_share"] = 0.1
    house.server.faults[tuple(ROWS[5])] = ["400"]
    account = house.run()["account"]
    assert account["kept"] == len(ROWS) - 1
    assert account["failed"] == {"refused": 1}
    assert account["examples"] == {"refused": ["row 5"]}
    assert [line["row"] for line in lines_of(house)] == [row for row in range(10) if row != 5]


def test_everything_failing_alike_stops_early(house, monkeypatch):
    monkeypatch.setattr("eyrie.hidden_states.capture.GIVE_UP_AFTER", 3)
    probed = {tuple(ROWS[0]), tuple(ROWS[-1])}
    for ids in map(tuple, ROWS):
        if ids not in probed:
            house.server.faults[ids] = ["400"] * 9
    with pytest.raises(EyrieError, match=r"[3-9] samples failed one after another") as caught:
        house.run()
    assert caught.value.code == "capture-failing"


def test_an_outage_is_waited_for_and_nothing_is_doubled(house):
    house.settings["concurrency"] = 2
    house.server.delay = 0.05
    for ids in map(tuple, ROWS[3:6]):
        house.server.faults[ids] = ["cut"]
    record = house.run()
    assert record["account"]["kept"] == len(ROWS)
    assert len(house.files()) == len(ROWS)


def test_a_dead_server_is_brought_back(house, monkeypatch):
    monkeypatch.setattr("eyrie.hidden_states.capture.REVIVE_AFTER_S", 0.2)
    house.on_revive = lambda: setattr(house.server, "forever", None)
    original = house.server._completions

    probe_requests = 4

    async def dies(request):
        answer = await original(request)
        if sum(house.server.requests.values()) == probe_requests + 3:
            house.server.forever = "dead"
        return answer

    house.server.stop()
    house.server._completions = dies
    house.server.start()
    record = house.run()
    assert record["account"]["kept"] == len(ROWS)
    assert house.revived


def test_a_hanging_server_is_brought_back(house):
    house.settings.update(request_timeout_s=0.4)
    house.on_revive = lambda: setattr(house.server, "forever", None)
    house.server.faults[tuple(ROWS[4])] = ["hang"]
    record = house.run()
    assert record["account"]["kept"] == len(ROWS)
    assert "did not answer" in house.revived[0]


def test_a_server_that_stays_away_ends_the_run_and_keeps_what_there_is(house):
    house.settings.update(outage_wait_s=0.5, concurrency=1)
    house.server.faults["*"] = [""] * 4 + [""] * 3 + ["dead"] * 50
    house.patch.setattr("eyrie.hidden_states.client.Endpoint.healthy", _never)
    with pytest.raises(EyrieError) as caught:
        house.run()
    assert caught.value.code == "server-gone"
    kept = len(house.files())
    assert 0 < kept < len(ROWS)
    house.server.faults.clear()
    assert house.run()["figures"]["captured"] == len(ROWS) - kept


async def _never(self):
    return False


def test_a_sample_that_kills_the_server_each_time_is_named(house):
    house.server.faults[tuple(ROWS[6])] = ["cut"] * 50
    with pytest.raises(EyrieError, match="while row 6 was with it") as caught:
        house.run()
    assert caught.value.code == "server-keeps-dying"


def test_a_stop_request_keeps_what_is_captured_and_the_next_run_goes_on(house, monkeypatch):
    house.server.delay = 0.05
    house.settings["concurrency"] = 1
    works = []
    init = Work.__init__

    def remember(self, progress):
        init(self, progress)
        works.append(self)

    monkeypatch.setattr(Work, "__init__", remember)
    threading.Thread(
        target=lambda: (_until(lambda: len(house.files()) >= 3), works[-1].__setattr__("stop_requested", True))
    ).start()
    with pytest.raises(Interrupted):
        house.run()
    kept = len(house.files())
    assert 3 <= kept < len(ROWS)
    with store_of(house) as store:
        assert store.totals()[0] == kept
    record = house.run()
    assert record["figures"]["captured"] == len(ROWS) - kept
    assert record["account"]["kept"] == len(ROWS)


def _until(condition, limit=20):
    end = time.monotonic() + limit
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def test_what_a_kill_left_without_a_manifest_row_is_checked_and_adopted(house):
    house.run()
    paths = house.files()
    with store_of(house) as store:
        store.forget([path.stem for path in paths])
    paths[0].write_bytes(paths[0].read_bytes()[:-5])
    (paths[1].parent / "half.tmp").write_bytes(b"x")
    (house.context().out / manifest.NAME).unlink()
    record = house.run()
    assert record["figures"]["captured"] == 1
    assert len(house.files()) == len(ROWS)
    assert not list(house.files()[0].parents[1].glob("??/*.tmp"))


def test_two_servers_share_the_work_by_key(house):
    from fake_extract import FakeExtract

    from eyrie.hidden_states.keys import endpoint_of

    second = FakeExtract(house.server.folder, house.target)
    house.server.delay = second.delay = 0.02
    house.settings["concurrency"] = 1
    house.urls.append(second.url)
    try:
        record = house.run()
    finally:
        second.stop()
    assert record["figures"]["probe"]["servers"] == 2
    shares = {0: 0, 1: 0}
    for line in lines_of(house):
        shares[endpoint_of(line["key"], 2)] += 1
    assert min(shares.values()) > 0
    together = house.server.requests + second.requests
    assert sum(together.values()) == len(ROWS) + 2 * 4  # each row once; both servers probed with two samples, twice
    assert min(sum(house.server.requests.values()), sum(second.requests.values())) > 4


def test_one_of_two_servers_dying_leaves_its_share_to_the_other(house):
    from fake_extract import FakeExtract

    second = FakeExtract(house.server.folder, house.target)
    second.faults["*"] = [""] * 4 + ["dead"] * 200
    house.urls.append(second.url)
    healthy = {second.url: False}

    async def is_healthy(self):
        return healthy.get(self.url, True)

    house.patch.setattr("eyrie.hidden_states.client.Endpoint.healthy", is_healthy)
    try:
        record = house.run()
    finally:
        second.stop()
    assert record["account"]["kept"] == len(ROWS)
    assert len(house.files()) == len(ROWS)


def test_the_servers_folder_is_left_clean(house):
    stray = house.server.folder / "cmpl-stray.safetensors"
    toy_states.states_file(stray, [1, 2, 3])
    import os

    os.utime(stray, (1, 1))
    house.run()
    assert not list(house.server.folder.iterdir())


def test_states_nobody_refers_to_go_when_asked(house):
    house.run()
    house.settings["keep_unreferenced"] = False
    first = house.context().out
    house.prepare(ROWS[:4], tag="fewer")
    import shutil

    shutil.rmtree(first)
    record = house.run()
    assert len(house.files()) == 4
    assert record["figures"]["pruned_bytes"] > 0


def test_declared_sizes_must_be_the_checkpoints(house):
    config = json.loads((house.target / "config.json").read_text())
    (house.target / "config.json").write_text(json.dumps({**config, "hidden_size": 16}))
    with pytest.raises(GateError, match="hidden_size is declared as 8, the checkpoint says 16"):
        house.run()


def test_the_endpoint_may_be_written_with_or_without_v1(house):
    for suffix in ("/v1", "/v1/", "/"):
        house.urls = [house.server.url + suffix]
        house.prepare([[1, 2, 3, len(suffix)]], tag=suffix)
        assert house.run()["account"]["kept"] == 1


def test_a_wrong_address_is_named_with_its_status(house):
    house.urls = [house.server.url + "/elsewhere"]
    with pytest.raises(EyrieError, match="/elsewhere/v1/models answered 404"):
        house.run()

"""Sending as a supervised job, the link's measure, and the words that rsync is given."""

from __future__ import annotations

import shlex
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from eyrie.core import atomic
from eyrie.core.errors import EyrieError, SpecError
from eyrie.core.lock import Lock
from eyrie.port import carry, cli, keys, measure, moving, transfer, ways
from eyrie.supervise.base import STOPPED, UnitStatus


class Still:
    """A supervisor that starts nothing and remembers what it was asked for."""

    def __init__(self) -> None:
        self.programs: list[Any] = []

    def stop(self, name: str) -> None:
        pass

    def start(self, program: Any) -> None:
        self.programs.append(program)

    def status(self, name: str) -> UnitStatus:
        return UnitStatus(STOPPED)


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Still:
    still = Still()
    monkeypatch.setattr("eyrie.supervise.backend", lambda root, execution: still)
    return still


def packed(hosts: Any, tmp_path: Path) -> dict[str, Any]:
    hosts.run("alpha", "dataset")
    source = carry.survey(hosts.alpha, {})
    plan = carry.plan(hosts.beta, {"source": source, "link": {"mb_s": 1000.0}})
    made = carry.pack(hosts.alpha, {"decisions": plan["decisions"]})
    return {**made, "to": {"folder": str(tmp_path / "there")}}


def test_a_job_sends_and_leaves_its_result(hosts: Any, supervisor: Still, tmp_path: Path) -> None:
    request = packed(hosts, tmp_path)
    answer = moving.start(hosts.alpha, {**request, "spec": hosts.alpha.raw})
    assert answer["started"]
    folder = moving.job_dir(hosts.alpha)
    assert stat.S_IMODE((folder / "request.json").stat().st_mode) == 0o600
    assert "spec" not in atomic.read_json(folder / "request.json")
    assert moving.status(hosts.alpha)["lost"], "the supervisor lost it: it is not there, and it left nothing"
    assert moving.work(Path(supervisor.programs[0].argv[-1])) == 0
    found = moving.status(hosts.alpha)
    assert found["finished"]
    assert found["result"]["files"] == 2
    assert found["result"]["cuts"] == 0
    assert found["progress"]["total"] == request["bytes"]
    assert (tmp_path / "there" / "dataset" / "out" / "result").exists()
    assert (tmp_path / "there" / "manifest.jsonl").exists()


def test_a_failed_job_says_why(hosts: Any, supervisor: Still, tmp_path: Path) -> None:
    request = packed(hosts, tmp_path)
    moving.start(hosts.alpha, request)
    (hosts.alpha.context("dataset").out / "result").unlink()
    assert moving.work(moving.job_dir(hosts.alpha)) == 1
    found = moving.status(hosts.alpha)
    assert found["error"]["code"] == "transfer-refused"
    assert not (tmp_path / "there" / "manifest.jsonl").exists(), "the manifest says 'all sent'"


def test_a_second_start_attaches_or_is_refused(hosts: Any, supervisor: Still, tmp_path: Path) -> None:
    request = packed(hosts, tmp_path)
    moving.start(hosts.alpha, request)
    job = atomic.read_json(moving.job_dir(hosts.alpha) / "request.json")
    with Lock(moving.job_dir(hosts.alpha) / "lock", {"fingerprint": job["fingerprint"]}):
        assert moving.start(hosts.alpha, request)["attached"]
        with pytest.raises(EyrieError, match="another port is being sent"):
            moving.start(hosts.alpha, {**request, "to": {"folder": "/elsewhere"}})
    assert len(supervisor.programs) == 1


def test_trees_may_come_one_by_one(hosts: Any, tmp_path: Path) -> None:
    hosts.run("alpha")
    source = carry.survey(hosts.alpha, {})
    plan = carry.plan(hosts.beta, {"source": source, "link": {"mb_s": 1000.0}})
    made = carry.pack(hosts.alpha, {"decisions": plan["decisions"]})
    there = tmp_path / "there"
    for tree in made["trees"]:
        last = tree is made["trees"][-1]
        answer = carry.send({**made, "trees": [tree], "seal": last, "to": {"folder": str(there)}})
        assert answer["bytes"] == tree["bytes"]
        assert (there / "manifest.jsonl").exists() is last
    assert carry.prove({"folder": str(there), "sha256": made["sha256"]})["ok"]


def ended(job: Path) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while (found := carry.status_here({"job": str(job)}))["running"] or not (found["finished"] or found["lost"]):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def test_without_a_supervisor_a_process_of_its_own_sends(hosts: Any, tmp_path: Path) -> None:
    request = {**packed(hosts, tmp_path), "job": str(tmp_path / "job")}
    assert carry.start_here(request)["started"]
    found = ended(tmp_path / "job")
    assert found["result"]["files"] == 2
    assert found["progress"]["total"] == request["bytes"]
    assert (tmp_path / "there" / "manifest.jsonl").exists()
    (hosts.alpha.context("dataset").out / "result").unlink()
    assert carry.start_here(request)["started"], "the one before is over"
    assert ended(tmp_path / "job")["error"]["code"] == "transfer-refused"


def test_the_same_send_from_here_is_attached_to(hosts: Any, tmp_path: Path) -> None:
    request = {**packed(hosts, tmp_path), "job": str(tmp_path / "job")}
    carry.start_here(request)
    ended(tmp_path / "job")
    job = atomic.read_json(tmp_path / "job" / "request.json")
    with Lock(tmp_path / "job" / "lock", {"fingerprint": job["fingerprint"]}):
        assert carry.start_here(request)["attached"]
        with pytest.raises(EyrieError, match="another port is being sent from here"):
            carry.start_here({**request, "to": {"folder": "/elsewhere"}})


def test_a_sender_that_does_not_come_up_is_named(hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = {**packed(hosts, tmp_path), "job": str(tmp_path / "job")}
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(EyrieError, match="did not come up"):
        carry.start_here(request)
    assert carry.status_here({"job": str(tmp_path / "job")})["lost"]


def test_probe_measures_a_link_that_works(hosts: Any, tmp_path: Path) -> None:
    hosts.run("alpha", "dataset")
    (tmp_path / "there").mkdir()
    found = moving.probe(hosts.alpha, {"folder": str(tmp_path / "there")}, size=1 << 20)
    assert found["reachable"]
    assert found["mb_s"] > 1


def test_probe_says_why_a_link_does_not_work(hosts: Any, tmp_path: Path) -> None:
    hosts.run("alpha", "dataset")
    found = moving.probe(hosts.alpha, {"rsh": ["false"], "host": "beta", "folder": "/tmp"})
    assert not found["reachable"]
    assert found["why"]


def test_key_is_private_and_goes_away(hosts: Any) -> None:
    made = carry.key(hosts.alpha, {})
    path = Path(made["path"])
    assert made["public"].startswith("ssh-ed25519 ")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    words = keys.ssh_words(hosts.alpha, "10.0.0.2", 2222, "root", ["ssh-ed25519 AAAA"])
    assert (path.parent / "known_hosts").read_text() == "[10.0.0.2]:2222 ssh-ed25519 AAAA\n"
    assert "StrictHostKeyChecking=yes" in words
    checked = subprocess.run([*words, "-G", "10.0.0.2"], check=True, capture_output=True, text=True).stdout
    assert f"userknownhostsfile {path.parent / 'known_hosts'}" in checked
    assert "port 2222" in checked
    assert carry.key(hosts.alpha, {"state": "absent"}) == {"removed": True}
    assert not path.exists()


@pytest.mark.parametrize(
    ("connection", "words", "place"),
    [
        ({"kind": "local", "host": "localhost"}, "", "/x"),
        ({"kind": "docker", "host": "box"}, "docker exec -i", "box:/x"),
        ({"kind": "docker", "host": "box", "user": "eyrie"}, "docker exec -i -u eyrie", "box:/x"),
    ],
)
def test_ways_by_connection(connection: dict[str, Any], words: str, place: str) -> None:
    way = ways.way(connection)
    assert shlex.join(way.rsh) == words
    assert way.place("/x") == place


def test_ssh_takes_the_inventorys_own_arguments() -> None:
    way = ways.way(
        {
            "kind": "ssh",
            "host": "gpu.example",
            "port": "2201",
            "user": "root",
            "private_key": "/k",
            "common_args": "-o ProxyCommand='ssh -W %h:%p jump'",
        }
    )
    assert way.rsh[:3] == ("ssh", "-p", "2201")
    assert way.rsh[-2:] == ("-o", "ProxyCommand=ssh -W %h:%p jump")
    assert way.rsh[way.rsh.index("-i") : way.rsh.index("-i") + 2] == ("-i", "/k")
    argv = transfer.rsync_argv("/a", way.place("/b"), Path("/l"), way, transfer.Limits())
    assert shlex.split(argv[argv.index("--rsh") + 1]) == list(way.rsh)


def test_a_connection_that_rsync_cannot_use_is_refused() -> None:
    with pytest.raises(EyrieError, match="'winrm'"):
        ways.way({"kind": "winrm", "host": "w"})
    with pytest.raises(SpecError, match="unknown setting"):
        ways.way({"kind": "ssh", "hots": "w"})


def test_requests_are_checked(hosts: Any, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="lacks trees, sha256, to"):
        cli.answer("send", {"manifest": "m"})
    with pytest.raises(SpecError, match="lacks spec"):
        cli.answer("survey", {})
    (tmp_path / "r").write_text("[1]")
    with pytest.raises(SpecError, match="must be a JSON object"):
        cli.read_request(str(tmp_path / "r"))
    with pytest.raises(SpecError, match="cannot read the request"):
        cli.read_request(str(tmp_path / "missing"))
    assert cli.answer("survey", {"spec": hosts.alpha.raw})["host"] == "alpha"


def test_the_way_through_the_controller_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    shell.chmod(0o755)
    monkeypatch.setattr(ways, "way", lambda data: transfer.Way((str(shell),), data["host"]))
    both = measure.through_here({"host": "a"}, {"host": "b"}, size=4 << 20)
    assert both["mb_s"] < min(both["pull_mb_s"], both["push_mb_s"])
    here = measure.through_here(None, {"host": "b"}, size=4 << 20)
    assert here["pull_mb_s"] == 1000.0
    shell.write_text("#!/bin/sh\necho no route >&2\nexit 255\n")
    with pytest.raises(EyrieError, match="no route"):
        measure.through_here(None, {"host": "b"})

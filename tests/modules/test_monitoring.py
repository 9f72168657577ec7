"""The monitoring role for real: its own configuration, a real Prometheus that scrapes, every panel of its dashboard."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from eyrie.core import children, state
from eyrie.core.lock import Lock
from eyrie.core.state import StateDir
from eyrie.serve import lint

PROJECT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LIMIT_S = 60.0
# writes down how it was called, and answers that it changed something only the first time
COMMAND = """#!{python}
import json, pathlib, sys
calls = pathlib.Path({calls!r})
first = not calls.exists()
with calls.open("a") as stream:
    stream.write(json.dumps(sys.argv[1:]) + "\\n")
print(json.dumps({{"changed": first or sys.argv[2] == "stop"}}))
"""


def program(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is not on PATH: these tests need Debian's package prometheus"
    return found


class Engine(ThreadingHTTPServer):
    """Counters as an EAGLE3 server of vLLM has them, growing from scrape to scrape."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.scrapes = 0
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def page(self) -> str:
        self.scrapes += 1
        n, labels = self.scrapes, 'engine="0",model_name="toy"'
        values = {
            "generation_tokens_total": 500 * n,
            "prompt_tokens_total": 900 * n,
            "spec_decode_num_drafts_total": 250 * n,
            "spec_decode_num_draft_tokens_total": 750 * n,
            "spec_decode_num_accepted_tokens_total": 250 * n,
            "num_requests_running": 8,
            "num_requests_waiting": 2,
            "kv_cache_usage_perc": 0.25,
        }
        lines = [f"vllm:{name}{{{labels}}} {value}" for name, value in values.items()]
        for position, share in enumerate((0.6, 0.3, 0.1)):
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines.append(f'{name}{{{labels},position="{position}"}} {share * 250 * n}')
        for bound, count in (("0.1", 3 * n), ("1.0", 4 * n), ("+Inf", 4 * n)):
            lines.append(f'vllm:time_to_first_token_seconds_bucket{{{labels},le="{bound}"}} {count}')
        return "\n".join(lines) + "\n"


class Page(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        data = self.server.page().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        return None


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(opened.getsockname()[1]) for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


class Node:
    """A root folder on this machine, and the role applied to it."""

    def __init__(self, root: Path, engine: Engine):
        self.root, self.folder = root, root / "monitoring"
        self.port, self.exporter = free_ports(2)
        self.calls_path = root / "calls"
        command = root / "venv" / "bin" / "eyrie"
        command.parent.mkdir(parents=True)
        command.write_text(COMMAND.format(python=sys.executable, calls=str(self.calls_path)))
        command.chmod(0o755)
        self.variables: dict[str, Any] = {
            "eyrie_root": str(root),
            "eyrie_execution_supervisor": "supervisord",
            "eyrie_server_port": engine.server_port,
            "eyrie_monitoring_package": "",
            "eyrie_monitoring_prometheus": program("prometheus"),
            "eyrie_monitoring_port": self.port,
            "eyrie_monitoring_exporter_port": self.exporter,
            "eyrie_monitoring_interval_s": 1,
        }

    def play(self, *flags: str, **more: Any) -> dict[str, int]:
        """Apply the role; {ok, changed, failed, ...} of the host."""
        argv = [str(BIN / "ansible-playbook"), "playbooks/monitoring.yml", "-l", "local", *flags]
        argv += ["-e", json.dumps({**self.variables, **more})]
        env = {**os.environ, "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default", "ANSIBLE_NOCOLOR": "1"}
        done = subprocess.run(argv, cwd=PROJECT, env=env, capture_output=True, text=True, check=False)
        self.said = done.stdout + done.stderr
        recap = [line for line in done.stdout.splitlines() if line.startswith("localhost ")]
        assert recap, self.said
        return {name: int(count) for name, _, count in (part.partition("=") for part in recap[-1].split()[2:])}

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in self.calls_path.read_text().splitlines()]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Node:
    return Node(tmp_path_factory.mktemp("node"), engine)


def test_the_role_configures_once_and_starts_what_it_configured(node: Node) -> None:
    checked = node.play("--check")
    assert (checked["failed"], node.folder.exists()) == (0, False), node.said
    assert "--check" in node.calls()[0]
    node.calls_path.unlink()
    first = node.play()
    assert first["failed"] == 0, node.said
    assert first["changed"] == 4, node.said  # folders, configuration, dashboard, start
    assert node.calls()[0][:2] == ["monitor", "start"]
    assert f"--folder={node.folder}" in node.calls()[0]
    assert f"--address=127.0.0.1:{node.port}" in node.calls()[0]
    again = node.play()
    assert (again["failed"], again["changed"]) == (0, 0), node.said
    stopped = node.play(eyrie_monitoring_state="stopped")
    assert (stopped["failed"], stopped["changed"]) == (0, 1), node.said
    assert node.calls()[-1][:2] == ["monitor", "stop"]


def test_a_configuration_that_prometheus_refuses_never_replaces_the_one_that_works(node: Node) -> None:
    config = node.folder / "prometheus.yml"
    before = config.read_text()
    refused = node.play(eyrie_server_host="no/host")
    assert refused["failed"] == 1
    assert '"no/host:' in node.said
    assert "is not a valid hostname" in node.said
    assert config.read_text() == before


def test_the_configuration_is_what_promtool_accepts(node: Node) -> None:
    argv = [program("promtool"), "check", "config", str(node.folder / "prometheus.yml")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("unit", ["eyrie-exporter", "eyrie-prometheus"])
def test_systemd_reads_the_units_as_they_are_meant(tmp_path: Path, unit: str) -> None:
    """Awkward characters in the root's name reach the programs unchanged, and nothing is misread in silence."""
    given = {"eyrie_root": "/srv/80% $x/eyrie", "eyrie_server_user": "eyrie", "ansible_managed": "by a test"}
    source = PROJECT / "roles" / "monitoring" / "templates" / f"{unit}.service.j2"
    argv = [str(BIN / "ansible"), "localhost", "-m", "ansible.builtin.template"]
    argv += ["-a", f"src={source} dest={tmp_path / unit}", "-e", f"@{PROJECT / 'roles/monitoring/vars/main.yml'}"]
    done = subprocess.run([*argv, "-e", json.dumps(given)], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / unit).read_text()
    # findings with a line are what systemd would misread; those without are what a GPU server's unit must have
    assert [finding for finding in lint.unit(text) if finding.level == lint.ERROR and finding.line] == []
    assert "User=eyrie\n" in text
    assert "/srv/80%% $$x/eyrie" in next(line for line in text.splitlines() if line.startswith("ExecStart="))


def test_a_host_that_is_not_provisioned_is_refused_with_the_next_step(node: Node, tmp_path: Path) -> None:
    refused = node.play(eyrie_root=str(tmp_path / "bare"))
    assert (refused["failed"], refused["changed"]) == (1, 0)
    assert "Run playbooks/provision.yml first" in node.said


class Api:
    """Prometheus' own HTTP API."""

    def __init__(self, port: int):
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=10) as reply:
            return json.load(reply)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        return list(self.get("/api/v1/query", query=expression)["result"])

    def wait(self, expression: str) -> list[dict[str, Any]]:
        """The answer as soon as there is one."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            try:
                if found := self.query(expression):
                    return found
            except OSError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"no answer to {expression}")


@pytest.fixture(scope="module")
def prometheus(node: Node) -> Iterator[Api]:
    """Prometheus with the role's configuration, the exporter beside it, a stage that runs."""
    folder = StateDir(node.root / "runs" / "main" / "state" / "draft")
    folder.path.mkdir(parents=True)
    folder.write({"stage": "draft", "fingerprint": "f" * 64, "status": state.RUNNING, "started": time.time()})
    progress = {"phase": "epoch 1", "done": 30, "total": 120, "unit": "steps", "rate": 1.5, "eta_s": 60.0, "bytes": 5}
    folder.progress_path.write_text(json.dumps({**progress, "detail": {"loss": 4.25}, "updated": time.time()}))
    argv = [sys.executable, "-m", "eyrie", "monitor", "exporter", "--root", str(node.root)]
    argv += ["--listen", f"127.0.0.1:{node.exporter}"]
    watch = [program("prometheus"), f"--config.file={node.folder / 'prometheus.yml'}"]
    watch += [f"--storage.tsdb.path={node.folder / 'data'}", f"--web.listen-address=127.0.0.1:{node.port}"]
    with Lock(folder.lock_path, {"fingerprint": "f" * 64}), open(node.root / "watch.log", "wb") as log:
        processes = [
            subprocess.Popen(argv, env=children.environment(), stdout=log, stderr=log),
            subprocess.Popen(watch, stdout=log, stderr=log),
        ]
        try:
            api = Api(node.port)
            api.wait('count(up == 1) == 3 and on () sum(count_over_time(up{job="server"}[1m])) > 3')
            yield api
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(30)


def test_it_scrapes_the_stages_and_the_server(prometheus: Api) -> None:
    up = {sample["metric"]["job"]: sample["value"][1] for sample in prometheus.query("up")}
    assert up == {"eyrie": "1", "server": "1", "prometheus": "1"}
    done = prometheus.query('eyrie_stage_done{run="main",stage="draft"} / eyrie_stage_total')
    assert [sample["value"][1] for sample in done] == ["0.25"]
    assert prometheus.query("eyrie_stage_eta_seconds")[0]["value"][1] == "60"
    labels = prometheus.get("/api/v1/status/config")["yaml"]
    assert "host: localhost" in labels


def dashboard() -> dict[str, Any]:
    return dict(json.loads((PROJECT / "roles" / "monitoring" / "files" / "grafana-eyrie.json").read_text()))


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: str(panel["title"]))
def test_every_panel_has_something_to_show(prometheus: Api, panel: dict[str, Any]) -> None:
    """As Grafana fills the variables in; a host without GPUs has none to show, but the queries must be right."""
    for target in panel["targets"]:
        expression = target["expr"].replace("$__rate_interval", "1m").replace("$run", ".*")
        found = prometheus.query(expression)
        if "eyrie_gpu" in expression:
            assert found == [] or found[0]["metric"]["gpu"] == "0"
        else:
            assert found, expression
            assert all(sample["value"][1] != "NaN" for sample in found), (expression, found)


def test_acceptance_is_what_the_counters_say(prometheus: Api) -> None:
    def value(title: str) -> list[float]:
        expression = next(panel for panel in panels() if panel["title"] == title)["targets"][0]["expr"]
        return [float(s["value"][1]) for s in prometheus.query(expression.replace("$__rate_interval", "1m"))]

    assert value("Acceptance length") == pytest.approx([2.0])
    assert sorted(value("Acceptance per position")) == pytest.approx([0.1, 0.3, 0.6])


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    """What Grafana's importer needs: ids of their own, places that do not overlap, a data source that can be chosen."""
    board = dashboard()
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(board)
    assert {variable["name"] for variable in board["templating"]["list"]} == {"datasource", "run"}
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells
    for panel in panels():
        assert panel["description"]
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])

"""The exporter and a real Prometheus under a real supervisord: started once, started anew when something changed."""

from __future__ import annotations

import json
import shutil
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from eyrie.core.errors import EyrieError
from eyrie.monitor import supervised
from eyrie.supervise.supervisord import Supervisord

pytestmark = pytest.mark.node


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[supervised.Watch]:
    program = shutil.which("prometheus")
    assert program, "prometheus is not on PATH: these tests need Debian's package of that name"
    folder = tmp_path / "monitoring"
    folder.mkdir()
    exporter, address = (f"127.0.0.1:{free_port()}" for _ in range(2))
    made = supervised.Watch(tmp_path, folder, "supervisord", exporter, program, address, "1d", "100MB")
    configure(made)
    yield made
    Supervisord(tmp_path).shutdown()


def configure(watch: supervised.Watch, interval: int = 1) -> None:
    watch.config.write_text(
        f"global: {{scrape_interval: {interval}s, scrape_timeout: {interval}s}}\n"
        f"scrape_configs: [{{job_name: eyrie, static_configs: [{{targets: ['{watch.exporter}']}}]}}]\n"
    )


def test_they_are_started_once_and_anew_when_something_changed(watch: supervised.Watch) -> None:
    both = [supervised.EXPORTER, supervised.PROMETHEUS]
    assert supervised.start(watch, check=True)["started"] == both
    assert not (watch.root / "supervisor").exists()  # nothing was done
    first = supervised.start(watch)
    assert (first["changed"], first["started"]) == (True, both)
    assert supervised.start(watch) == {"changed": False, "started": [], "address": f"http://{watch.address}"}
    with urllib.request.urlopen(f"http://{watch.address}/api/v1/status/flags", timeout=10) as reply:
        flags = json.load(reply)["data"]
    assert flags["web.listen-address"] == watch.address
    assert flags["storage.tsdb.path"] == str(watch.folder / "data")
    configure(watch, 2)
    assert supervised.start(watch)["started"] == [supervised.PROMETHEUS]
    assert supervised.stop(watch, check=True) == {"changed": True, "stopped": both}
    assert supervised.stop(watch) == {"changed": True, "stopped": both}
    assert supervised.stop(watch) == {"changed": False, "stopped": []}


def test_a_prometheus_that_does_not_start_says_why(watch: supervised.Watch) -> None:
    watch.config.write_text("scrape_configs: [{job_name: a}, {job_name: a}]\n")
    with pytest.raises(EyrieError, match="eyrie-prometheus does not come up") as caught:
        supervised.start(watch)
    assert "multiple scrape configs with job name" in caught.value.why


def test_without_a_configuration_nothing_is_started(watch: supervised.Watch) -> None:
    watch.config.unlink()
    with pytest.raises(EyrieError) as caught:
        supervised.start(watch)
    assert caught.value.code == "no-config"

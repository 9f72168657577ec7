"""The exporter and Prometheus under the host's supervisor, for hosts without systemd (there the role has units)."""

from __future__ import annotations

import hashlib
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import fingerprint
from eyrie.supervise import Program, Supervisor, backend
from eyrie.supervise.base import tail
from eyrie.supervise.interpreter import python_path, venv_python

EXPORTER, PROMETHEUS = "eyrie-exporter", "eyrie-prometheus"
READY_LIMIT_S = 60.0
STOP_TIMEOUT_S = 60


@dataclass(frozen=True)
class Watch:
    """What is started: folder holds prometheus.yml, the data and the logs; addresses are host:port."""

    root: Path
    folder: Path
    supervisor: str
    exporter: str
    prometheus: str
    address: str
    retention: str
    retention_size: str

    @property
    def config(self) -> Path:
        return self.folder / "prometheus.yml"

    def programs(self) -> list[tuple[Program, str]]:
        """Each program with the address that says that it is ready."""
        exporter = Program(
            EXPORTER,
            (venv_python(), "-m", "eyrie", "monitor", "exporter", "--root", str(self.root), "--listen", self.exporter),
            self.folder / "log" / "exporter.log",
            self.folder,
            python_path(),
            STOP_TIMEOUT_S,
            restart=True,
        )
        prometheus = Program(
            PROMETHEUS,
            (
                self.prometheus,
                f"--config.file={self.config}",
                f"--storage.tsdb.path={self.folder / 'data'}",
                f"--storage.tsdb.retention.time={self.retention}",
                f"--storage.tsdb.retention.size={self.retention_size}",
                f"--web.listen-address={self.address}",
            ),
            self.folder / "log" / "prometheus.log",
            self.folder,
            {},
            STOP_TIMEOUT_S,
            restart=True,
        )
        return [(exporter, f"http://{self.exporter}/"), (prometheus, f"http://{self.address}/-/ready")]


def start(watch: Watch, check: bool = False) -> dict[str, Any]:
    """Bring both programs to what is declared: {changed, started: [names], address}. check: only say.

    A program is started anew when its arguments or Prometheus' configuration changed. Raises EyrieError.
    """
    if not check and not watch.config.is_file():
        raise EyrieError(
            "there is no configuration.",
            where=str(watch.config),
            code="no-config",
            todo="Run playbooks/monitoring.yml.",
        )
    supervisor = backend(watch.root, {"supervisor": watch.supervisor})
    started = []
    for program, ready in watch.programs():
        wanted = _identity(program, watch.config)
        known = atomic.read_json(_record(watch, program.name), {}) or {}
        if supervisor.status(program.name).active and known.get("fingerprint") == wanted:
            continue
        started.append(program.name)
        if check:
            continue
        supervisor.stop(program.name)
        supervisor.start(program)
        _await(supervisor, program, ready)
        atomic.write_json(_record(watch, program.name), {"fingerprint": wanted, "argv": list(program.argv)})
    return {"changed": bool(started), "started": started, "address": f"http://{watch.address}"}


def stop(watch: Watch, check: bool = False) -> dict[str, Any]:
    """Stop both; what was recorded is kept."""
    supervisor = backend(watch.root, {"supervisor": watch.supervisor})
    names = [program.name for program, _ in watch.programs() if supervisor.status(program.name).active]
    for name in [] if check else names:
        supervisor.stop(name)
    return {"changed": bool(names), "stopped": names}


def _identity(program: Program, config: Path) -> str:
    text = config.read_bytes() if program.name == PROMETHEUS and config.is_file() else b""
    return fingerprint(
        {
            "argv": program.argv,
            "environment": program.environment,
            "config": hashlib.sha256(text).hexdigest(),
        }
    )


def _record(watch: Watch, name: str) -> Path:
    return watch.folder / f"{name}.json"


def _await(supervisor: Supervisor, program: Program, url: str) -> None:
    """Wait until a program answers. Raises EyrieError with its last words."""
    deadline = time.monotonic() + READY_LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - an address of ours
                return
        except (OSError, urllib.error.HTTPError):
            pass
        if not supervisor.status(program.name).active or time.monotonic() > deadline:
            raise EyrieError(
                f"{program.name} does not come up.",
                where=str(program.log),
                why=" | ".join(tail(program.log, 4)) or "It wrote nothing.",
                code="monitor-not-up",
                todo="Is the port free? eyrie_monitoring_port and eyrie_monitoring_exporter_port say which.",
            )
        time.sleep(0.1)

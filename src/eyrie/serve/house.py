"""The units of a host as they really are: which profile runs, with what, and who is left over."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from eyrie.core.fingerprint import fingerprint
from eyrie.core.pipeline import Pipeline
from eyrie.serve import execute, launch, lint
from eyrie.serve.settings import PROFILES, ServerSettings
from eyrie.supervise import Program, backend
from eyrie.supervise.base import Supervisor, UnitStatus
from eyrie.supervise.interpreter import python_path, venv_python


class House:
    """Server units of one root under one supervisor."""

    def __init__(self, pipeline: Pipeline, settings: ServerSettings):
        self.root = pipeline.root
        self.settings = settings
        self.supervisor: Supervisor = backend(pipeline.root, pipeline.execution)

    def unit(self, profile: str) -> str:
        """eyrie-server@baseline.service under systemd, eyrie-server-baseline under supervisord."""
        return f"eyrie-server@{profile}" if self.supervisor.kind == "systemd" else f"eyrie-server-{profile}"

    def program(self, profile: str) -> Program:
        argv = (venv_python(), "-m", "eyrie", "server", "exec", profile, "--root", str(self.root))
        return Program(
            self.unit(profile),
            argv,
            launch.log_path(self.root, profile),
            launch.folder(self.root),
            python_path(),
            self.settings.stop_timeout_s,
            restart=True,
            installed=True,
        )

    def status(self, profile: str) -> UnitStatus:
        return self.supervisor.status(self.unit(profile))

    def launched(self, profile: str) -> dict[str, Any]:
        return execute.launched(self.root, profile)

    def pids(self, profile: str) -> set[int]:
        """All processes of a profile: the unit's, and those an earlier launch left."""
        return self.supervisor.pids(self.unit(profile)) | execute.leftovers(self.root, profile)

    def active(self) -> list[str]:
        """Profiles whose unit is active or whose process lives without it (its supervisor died)."""
        return [name for name in PROFILES if self.status(name).active or self.launched(name)]

    def unit_digest(self, profile: str) -> str:
        """SHA-256 over the unit's files and drop-ins; '' where the supervisor has none. They may be edited by hand."""
        files = self.supervisor.unit_files(self.unit(profile))
        return fingerprint([file.read_text("utf-8", "replace") for file in files]) if files else ""

    def unit_faults(self, profile: str) -> list[str]:
        """What systemd would misread in the unit's files."""
        return [
            f"{file}:{finding.line}: {finding.message}"
            for number, file in enumerate(self.supervisor.unit_files(self.unit(profile)))
            for finding in lint.unit(file.read_text("utf-8", "replace"))
            if finding.level == lint.ERROR and (number == 0 or finding.line)  # a drop-in need not hold everything
        ]

    def log(self, profile: str) -> Path:
        return launch.log_path(self.root, profile)


def rotate(log: Path, keep: int = 3) -> None:
    """A new log for a new start; the last few are kept."""
    log.parent.mkdir(parents=True, exist_ok=True)
    for number in range(keep - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            os.replace(older, log.with_name(f"{log.name}.{number + 1}"))
    if log.exists():
        os.replace(log, log.with_name(f"{log.name}.1"))

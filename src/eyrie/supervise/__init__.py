"""Who keeps long work alive: systemd where PID 1 is systemd, supervisord elsewhere. One meaning, two backends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from eyrie.core.errors import SpecError
from eyrie.core.spec import nearest
from eyrie.supervise.base import Program, Supervisor, UnitStatus

KINDS = ("auto", "systemd", "supervisord")
SYSTEMD_MARK = Path("/run/systemd/system")

__all__ = ["KINDS", "Program", "Supervisor", "UnitStatus", "backend", "kind_for"]


def kind_for(execution: dict[str, Any]) -> str:
    """'systemd' or 'supervisord': as declared, else systemd where it runs as PID 1 and we may speak to it."""
    wanted = str(execution.get("supervisor") or "auto")
    if wanted not in KINDS:
        raise SpecError(
            f"{wanted!r} is no supervisor.{nearest(wanted, KINDS)}",
            where="execution.supervisor",
            todo=f"Known: {', '.join(KINDS)}.",
        )
    if wanted != "auto":
        return wanted
    return "systemd" if SYSTEMD_MARK.is_dir() and os.geteuid() == 0 else "supervisord"


def backend(root: Path, execution: dict[str, Any]) -> Supervisor:
    """The supervisor of a root folder. Starts nothing."""
    if kind_for(execution) == "systemd":
        from eyrie.supervise.systemd import Systemd

        return Systemd(root)
    from eyrie.supervise.supervisord import Supervisord

    return Supervisord(root)

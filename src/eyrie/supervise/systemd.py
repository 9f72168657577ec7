"""systemd: servers are units that the role installed; jobs are transient units."""

from __future__ import annotations

import subprocess
from pathlib import Path

from eyrie.core.errors import EyrieError
from eyrie.supervise import processes
from eyrie.supervise.base import ABSENT, CHANGING, FAILED, RUNNING, STOPPED, Program, Supervisor, UnitStatus

STATES = {
    "active": RUNNING,
    "reloading": RUNNING,
    "activating": CHANGING,
    "deactivating": CHANGING,
    "inactive": STOPPED,
    "failed": FAILED,
}
PROPERTIES = "LoadState,ActiveState,SubState,MainPID,ExecMainStatus,NRestarts,Result,ControlGroup"


class Systemd(Supervisor):
    kind = "systemd"

    def __init__(self, root: Path):
        self.root = root

    def start(self, program: Program) -> None:
        unit = unit_name(program.name)
        if program.installed:
            if self.show(program.name).get("LoadState") != "loaded":
                raise EyrieError(
                    f"unit {unit} is not installed.",
                    code="unit-missing",
                    todo="Run playbooks/serve.yml (train.yml does): the server role installs it.",
                )
            if self.show(program.name, "NeedDaemonReload").get("NeedDaemonReload") == "yes":
                self._call(["systemctl", "daemon-reload"], "daemon-reload")
            self._systemctl("reset-failed", unit, check=False)
            self._systemctl("start", unit)
            return
        self._systemctl("reset-failed", unit, check=False)
        program.log.parent.mkdir(parents=True, exist_ok=True)
        self._call(transient(program, unit), f"start {unit}")

    def stop(self, name: str) -> None:
        pids = self.pids(name)
        if self.status(name).state in (ABSENT, STOPPED, FAILED):
            self._systemctl("reset-failed", unit_name(name), check=False)
            return
        self._systemctl("stop", unit_name(name))
        processes.wait_gone(pids, 5)

    def status(self, name: str) -> UnitStatus:
        shown = self.show(name)
        if shown.get("LoadState") in (None, "", "not-found"):
            return UnitStatus(ABSENT)
        return UnitStatus(
            STATES.get(shown.get("ActiveState", ""), FAILED),
            int(shown.get("MainPID") or 0),
            int(shown.get("ExecMainStatus") or 0),
            int(shown.get("NRestarts") or 0),
            f"{shown.get('SubState', '')} ({shown.get('Result', '')})",
        )

    def pids(self, name: str) -> set[int]:
        """Processes in the unit's control group, by /proc (works on cgroup v1, v2 and in containers)."""
        shown = self.show(name)
        group = shown.get("ControlGroup") or ""
        main = int(shown.get("MainPID") or 0)
        found = processes.family(main) if main else set()
        if group not in ("", "/"):
            found |= {process.pid for process in processes.alive() if in_group(process.pid, group)}
        return found

    def log_hint(self, name: str) -> str:
        return f"journalctl -u {unit_name(name)} -n 50"

    def unit_files(self, name: str) -> list[Path]:
        """The unit's file and its drop-ins, as they lie on disk; [] when it is not installed."""
        shown = self.show(name, "FragmentPath,DropInPaths")
        paths = [shown.get("FragmentPath", ""), *shown.get("DropInPaths", "").split()]
        return [Path(path) for path in paths if path]

    def show(self, name: str, properties: str = PROPERTIES) -> dict[str, str]:
        done = subprocess.run(
            ["systemctl", "show", unit_name(name), "--property", properties],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        if done.returncode:
            raise EyrieError(
                f"systemctl show {unit_name(name)} failed: {done.stderr.strip()}",
                code="systemd-unreachable",
                todo="Set execution.supervisor to supervisord where PID 1 is not systemd.",
            )
        pairs = (line.partition("=") for line in done.stdout.splitlines())
        return {key: value for key, _, value in pairs}

    def _systemctl(self, verb: str, unit: str, check: bool = True) -> None:
        self._call(["systemctl", verb, unit], f"{verb} {unit}", check)

    def _call(self, argv: list[str], what: str, check: bool = True) -> None:
        done = subprocess.run(argv, capture_output=True, text=True)
        if check and done.returncode:
            unit = what.split()[-1]
            said = (done.stderr or done.stdout).strip()[-500:]
            raise EyrieError(
                f"systemd could not {what}{': ' + said if said else '.'}",
                where=unit,
                code="start-failed",
                why=" | ".join(_journal(unit)),
                todo=f"See `systemctl status {unit}`.",
            )


def _journal(unit: str, lines: int = 5) -> list[str]:
    """The last lines that systemd wrote about a unit."""
    done = subprocess.run(
        ["journalctl", "--unit", unit, "--lines", str(lines), "--output", "cat", "--all", "--no-pager"],
        capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.splitlines() if done.returncode == 0 else []


def unit_name(name: str) -> str:
    return name if name.endswith(".service") else f"{name}.service"


def in_group(pid: int, group: str) -> bool:
    """Whether a process is in a control group or below it."""
    try:
        lines = (processes.PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return False
    paths = [line.split(":", 2)[2] for line in lines if line.count(":") >= 2]
    return any(path == group or path.startswith(group + "/") for path in paths)


def transient(program: Program, unit: str) -> list[str]:
    """systemd-run's arguments. It passes them over D-Bus, where only '$' keeps a meaning (doubled here)."""
    properties = {
        "Type": "exec",
        "KillMode": "mixed",
        "TimeoutStopSec": str(program.stop_timeout_s),
        "WorkingDirectory": str(program.directory),
        "StandardOutput": f"append:{program.log}",
        "StandardError": f"append:{program.log}",
        "LimitNOFILE": "1048576:1048576",
        "Restart": "on-failure" if program.restart else "no",
    }
    argv = ["systemd-run", "--quiet", "--collect", f"--unit={unit}"]
    argv += [f"--property={key}={value}" for key, value in properties.items()]
    argv += [f"--setenv={key}={value}" for key, value in sorted(program.environment.items())]
    return [*argv, "--", *(word.replace("$", "$$") for word in program.argv)]

"""supervisord: for hosts whose PID 1 is not systemd (rented containers, the embedded default).

<root>/supervisor/supervisord.conf, conf.d/<name>.ini, supervisord.{pid,log}. It is started on demand, detached,
and outlives the connection that started it. Its socket lies in a short folder outside the root: the kernel allows
108 bytes for the path of a UNIX socket.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import resource
import shlex
import socket
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.supervise import processes
from eyrie.supervise.base import ABSENT, CHANGING, FAILED, RUNNING, STOPPED, Program, Supervisor, UnitStatus

#: XML-RPC faults of supervisor that only say "it is so already"
BAD_NAME, ALREADY_STARTED, NOT_RUNNING, ALREADY_ADDED = 10, 60, 70, 90
STATES = {
    "RUNNING": RUNNING,
    "STARTING": RUNNING,
    "STOPPING": CHANGING,
    "BACKOFF": CHANGING,
    "EXITED": STOPPED,
    "STOPPED": STOPPED,
    "FATAL": FAILED,
    "UNKNOWN": FAILED,
}
START_LIMIT_S = 20.0


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str):
        super().__init__("localhost", timeout=600)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class _UnixTransport(xmlrpc.client.Transport):
    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        return _UnixConnection(self.path)


class Supervisord(Supervisor):
    kind = "supervisord"

    def __init__(self, root: Path):
        self.folder = root / "supervisor"
        self.config = self.folder / "supervisord.conf"
        self.socket = socket_folder() / (hashlib.sha256(str(root.absolute()).encode()).hexdigest()[:16] + ".sock")

    # what a unit is

    def start(self, program: Program) -> None:
        with self._locked():
            self._ensure_daemon()
            atomic.write_text(self.folder / "conf.d" / f"{program.name}.ini", render(program))
            program.log.parent.mkdir(parents=True, exist_ok=True)
            self._load(program.name)
            self._start(program)

    def _load(self, name: str) -> None:
        """Make the daemon know the file's present content."""
        added, changed, _removed = self._rpc.supervisor.reloadConfig()[0]
        if name in changed:
            self._tolerate((NOT_RUNNING, BAD_NAME), "stopProcessGroup", name)
            self._rpc.supervisor.removeProcessGroup(name)
        if name in added or name in changed:
            self._tolerate((ALREADY_ADDED,), "addProcessGroup", name)

    def _start(self, program: Program) -> None:
        try:
            self._rpc.supervisor.startProcess(program.name, False)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode != ALREADY_STARTED:
                raise EyrieError(
                    f"supervisord could not start {program.name}: {fault.faultString}",
                    code="start-failed",
                    todo=f"Look at {self.folder / 'supervisord.log'}.",
                ) from None

    def stop(self, name: str) -> None:
        pids = self.pids(name)
        if self.status(name).state == ABSENT:
            return
        self._tolerate((NOT_RUNNING, BAD_NAME), "stopProcess", name, False)
        self.wait_stopped(name, self._stop_limit(name))
        processes.wait_gone(pids, 5)

    def _stop_limit(self, name: str) -> float:
        """stopwaitsecs as configured, and a little for the kernel."""
        for line in (self.folder / "conf.d" / f"{name}.ini").read_text("utf-8").splitlines():
            if line.startswith("stopwaitsecs="):
                return float(line.split("=")[1]) + 15
        return 135.0

    def status(self, name: str) -> UnitStatus:
        try:
            info = self._rpc.supervisor.getProcessInfo(name)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode == BAD_NAME:
                return UnitStatus(ABSENT)
            raise EyrieError(f"supervisord does not answer: {fault.faultString}", code="supervisor-fault") from None
        except OSError:
            return UnitStatus(ABSENT, detail="supervisord does not run")
        state = STATES.get(info["statename"], FAILED)
        if info["statename"] == "EXITED" and info["exitstatus"] != 0:
            state = FAILED
        pid = int(info["pid"])
        return UnitStatus(state, pid, int(info["exitstatus"]), 0, info["spawnerr"] or info["description"])

    def pids(self, name: str) -> set[int]:
        status = self.status(name)
        return processes.family(status.pid) if status.pid else set()

    def log_hint(self, name: str) -> str:
        return f"{sys.executable} -m supervisor.supervisorctl -c {self.config} status {name}"

    # the daemon

    def shutdown(self) -> None:
        """Stop the daemon with all its programs."""
        with self._locked():
            pid = self.daemon_pid()
            if pid:
                self._rpc.supervisor.shutdown()
                processes.wait_gone({pid}, 180)

    def daemon_pid(self) -> int:
        """The daemon's pid when it answers, else 0."""
        try:
            return int(self._rpc.supervisor.getPID())
        except (OSError, xmlrpc.client.Error, http.client.HTTPException):
            return 0

    def _ensure_daemon(self) -> None:
        if self.daemon_pid():
            return
        self._refuse_deaf_daemon()
        (self.folder / "conf.d").mkdir(parents=True, exist_ok=True)
        private_folder(self.socket.parent)
        self.socket.unlink(missing_ok=True)
        atomic.write_text(self.config, daemon_config(self.socket))
        argv = [sys.executable, "-m", "supervisor.supervisord", "-c", str(self.config)]
        try:
            done = subprocess.run(
                argv, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                start_new_session=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise EyrieError("supervisord did not detach within 60 s.", code="supervisord-failed") from None
        deadline = time.monotonic() + START_LIMIT_S
        while not self.daemon_pid():
            if done.returncode or time.monotonic() > deadline:
                last = (done.stderr or done.stdout).strip().splitlines()[-3:]
                raise EyrieError(
                    "supervisord did not start.",
                    code="supervisord-failed",
                    why=" ".join(last) or f"rc {done.returncode}",
                    todo=f"Look at {self.folder / 'supervisord.log'}; is `supervisor` installed in the venv?",
                )
            time.sleep(0.05)

    def _refuse_deaf_daemon(self) -> None:
        """A daemon that lives but whose socket was deleted keeps its programs: a second one must not start."""
        try:
            pid = int((self.folder / "supervisord.pid").read_text())
        except (OSError, ValueError):
            return
        if processes.read(pid) and str(self.config) in processes.command(pid, 4096):
            raise EyrieError(
                f"supervisord (pid {pid}) runs but does not answer at {self.socket}.",
                code="supervisord-deaf",
                why="Its socket was deleted or it hangs.",
                todo=f"End it with `kill {pid}` (its programs stop with it, and resume later), then run again.",
            )

    @property
    def _rpc(self) -> Any:
        return xmlrpc.client.ServerProxy("http://localhost", transport=_UnixTransport(str(self.socket)))

    def _tolerate(self, codes: tuple[int, ...], method: str, *args: Any) -> None:
        try:
            getattr(self._rpc.supervisor, method)(*args)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode not in codes:
                raise EyrieError(f"supervisord: {method}: {fault.faultString}", code="supervisor-fault") from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer of the configuration at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def socket_folder() -> Path:
    """The same for every session of a user, and short: /run for root, else /tmp."""
    uid = os.geteuid()
    if uid == 0 and os.access("/run", os.W_OK):
        return Path("/run/eyrie")
    return Path(f"/tmp/eyrie-{uid}")  # noqa: S108 - private_folder() checks owner and mode


def private_folder(path: Path) -> None:
    """Make a folder that only we can enter. Raises EyrieError when someone else's stands there."""
    path.mkdir(mode=0o700, exist_ok=True)
    info = path.lstat()
    if path.is_symlink() or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise EyrieError(
            f"{path} is not a private folder of ours (owner {info.st_uid}, mode {info.st_mode & 0o777:o}).",
            code="unsafe-folder",
            todo="Remove it or `chmod 700` it: supervisord's socket lies there.",
        )


def daemon_config(socket_path: Path) -> str:
    """supervisord.conf; all other paths are relative to it, so the root's name never meets supervisor's '%' syntax."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    return f"""; written by eyrie; programs are in conf.d/
[supervisord]
logfile=%(here)s/supervisord.log
pidfile=%(here)s/supervisord.pid
childlogdir=%(here)s
minfds={files}

[unix_http_server]
file={socket_path}
chmod=0700

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface

[supervisorctl]
serverurl=unix://{socket_path}

[include]
files=conf.d/*.ini
"""


def render(program: Program) -> str:
    """A [program] section. supervisor reads '%' as its own syntax and ' ;' as a comment."""
    lines = {
        "command": shlex.join(program.argv),
        "directory": str(program.directory),
        "environment": ",".join(f"{key}={_quoted(value)}" for key, value in sorted(program.environment.items())),
        "autostart": "false",
        "autorestart": "unexpected" if program.restart else "false",
        "startsecs": "10" if program.restart else "0",
        "startretries": "3" if program.restart else "0",
        "stopsignal": "TERM",
        "stopasgroup": "false",
        "killasgroup": "true",
        "stopwaitsecs": str(program.stop_timeout_s),
        "redirect_stderr": "true",
        "stdout_logfile": str(program.log),
        "stdout_logfile_maxbytes": "0",
    }
    for key, value in lines.items():
        if any(bad in value for bad in ("\n", "\r", "\0", " ;", "\t;", " #", "\t#")):
            raise EyrieError(
                f"{key} of {program.name} cannot be written for supervisord: {value!r}.",
                code="unwritable-value",
                todo="Line breaks and ' ;' or ' #' are not allowed there: use another path.",
            )
    body = "\n".join(f"{key}={value.replace('%', '%%')}" for key, value in lines.items())
    return f"[program:{program.name}]\n{body}\n"


def _quoted(value: str) -> str:
    if '"' in value and "'" in value:
        raise EyrieError(f"a value with both kinds of quotes cannot be written for supervisord: {value!r}.")
    return f"'{value}'" if '"' in value else f'"{value}"'

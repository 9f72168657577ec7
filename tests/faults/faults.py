"""What can happen to a stage: each fault disturbs one run of it and says what that run answered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from house import House, answer_of, empty

SERVED = ("responses", "hidden_states", "benchmark")
#: settings that make the stage another one, for a second operator who wants something else
OTHER: dict[str, dict[str, Any]] = {
    "dataset": {"heldout": 9},
    "responses": {"max_tokens": 31},
    "tokens": {"seq_length": 127},
    "hidden_states": {"storage": "fp8"},
    "draft": {"epochs": 3},
    "benchmark": {"rounds": 2},
}
CUT_S = 2.5
LIMIT_S = 240.0


@dataclass
class Case:
    """One cell of the matrix while it runs. seconds, requests: of the undisturbed run; moment: 0..1 of it.

    recovered: seconds of the run that went on, where the fault itself had to see to that run.
    """

    house: House
    stage: str
    fingerprint: str
    seconds: float
    requests: int
    moment: float = 0.5
    notes: list[str] = field(default_factory=list)
    recovered: float = 0.0

    def wait_midway(self, process: subprocess.Popen[bytes] | None) -> bool:
        """Until the stage is in the middle of its work; False when it ended before."""
        began = time.monotonic()
        wanted = self.requests * self.moment
        while time.monotonic() - began < LIMIT_S:
            if process is not None and process.poll() is not None:
                self.notes.append("ended before the fault")
                return False
            if self.stage in SERVED and self.requests:
                if sum(self.house.requests().values()) >= wanted:
                    return True
            elif self.stage == "draft":
                if self.trained() >= self.moment:
                    return True
            elif time.monotonic() - began >= self.seconds * self.moment:
                return True
            time.sleep(0.01)
        raise TimeoutError(f"{self.stage} did not get to its middle")

    def trained(self) -> float:
        """Share of the training's steps that are done, as the trainer itself tells it at every step."""
        plan, done = {}, 0
        for path in self.house.root.glob("runs/main/draft/*/train/metrics.jsonl"):
            for line in path.read_text().splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                plan = record.get("plan", plan)
                done = record.get("global_step", done - 1) + 1 if "train" in record else done
        return done / (plan["steps_per_epoch"] * plan["epochs"]) if plan else 0.0

    def finish(self, process: subprocess.Popen[bytes]) -> tuple[int, dict[str, Any]]:
        out, _ = process.communicate(timeout=LIMIT_S)
        return process.returncode, answer_of(out)

    def told(self, status: int, answer: dict[str, Any]) -> None:
        """A failure must be told as an error with words, not as a traceback."""
        if status != 0:
            error = answer.get("error") or {}
            self.notes.append(f"said {error.get('code')}" if error.get("what") else "SAID NOTHING")


def kill_worker(case: Case) -> None:
    """kill -9 of the stage's process; its children are left as they are."""
    process = case.house.command("run", case.stage)
    if case.wait_midway(process):
        os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def kill_server(case: Case) -> None:
    """kill -9 of the server under the stage."""
    process = case.house.command("run", case.stage)
    if case.wait_midway(process):
        killed = case.house.kill({min(case.house.server_pids())} if case.house.server_pids() else set())
        case.notes.append(f"{killed} killed")
    case.told(*case.finish(process))


def lose_controller(case: Case) -> None:
    """The controller started the stage under the supervisor and is gone."""
    process = case.house.command("start", case.stage)
    status, answer = case.finish(process)
    case.told(status, answer)
    case.wait_midway(None)
    again = case.house.command("start", case.stage)
    status, answer = case.finish(again)
    case.told(status, answer)
    case.notes.append("attached" if answer.get("attached") else "ended meanwhile")
    _await_end(case)


def _await_end(case: Case) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if case.house.record(case.stage, case.fingerprint).get("status") in ("done", "failed", "interrupted"):
            return
        time.sleep(0.05)
    raise TimeoutError(f"{case.stage} did not end")


def restart(case: Case) -> None:
    """The container is restarted: supervisor, job and server are gone at once."""
    case.finish(case.house.command("start", case.stage))
    case.wait_midway(None)
    case.house.kill_all()


def disk_full(case: Case) -> None:
    """The disk fills in the middle; then room is made."""
    house = case.house
    with tmpfs(case, 0.4) as grow:
        process = house.command("run", case.stage)
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            if _paused(house, case.stage):
                case.notes.append("paused")
                break
            time.sleep(0.05)
        grow()
        case.told(*case.finish(process))
        again(case)


def read_only(case: Case) -> None:
    """The disk is read-only when the stage begins."""
    with tmpfs(case, 4.0) as grow:
        grow()  # room is not what is wrong here
        mount("-o", "remount,ro", str(case.house.root))
        case.told(*case.finish(case.house.command("run", case.stage)))
        mount("-o", "remount,rw", str(case.house.root))
        again(case)


def again(case: Case) -> None:
    """Run again while the small disk is still mounted; what is on it is compared afterwards."""
    status, answer, seconds = case.house.run(case.stage, LIMIT_S)
    case.told(status, answer)
    case.recovered = seconds
    kept = case.house.work / "kept"
    empty(kept)
    subprocess.run(["cp", "-a", f"{case.house.root}/.", str(kept)], check=True)
    case.house.kill_all()


def _paused(house: House, stage: str) -> bool:
    from eyrie.core import atomic

    progress = atomic.read_json(house.root / "runs" / "main" / "state" / stage / "progress.json", {}) or {}
    return bool((progress.get("detail") or {}).get("paused"))


@contextmanager
def tmpfs(case: Case, share: float) -> Iterator[Callable[[], None]]:
    """The root on a small disk: what is there, and `share` of what the stage will write. Yields what makes room."""
    house = case.house
    house.restore(case.stage)
    before = house.work / "before"
    empty(before)
    subprocess.run(["cp", "-a", f"{house.root}/.", str(before)], check=True)
    mount("-t", "tmpfs", "-o", "size=1g", "none", str(house.root))
    try:
        subprocess.run(["cp", "-a", f"{before}/.", str(house.root)], check=True)
        info = os.statvfs(house.root)
        used = (info.f_blocks - info.f_bfree) * info.f_frsize
        size = used + int(share * _written(house, case.stage))
        mount("-o", f"remount,size={size}", str(house.root))
        yield lambda: mount("-o", "remount,size=1g", str(house.root))
    finally:
        house.kill_all()
        subprocess.run(["umount", "-l", str(house.root)], check=True)
    empty(house.root)
    if (house.work / "kept").is_dir():
        subprocess.run(["cp", "-a", f"{house.work / 'kept'}/.", str(house.root)], check=True)


def _written(house: House, stage: str) -> int:
    """Bytes that the undisturbed stage left."""
    folder = house.snapshots / stage / ("models" if stage == "target" else f"runs/main/{stage}")
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in files)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def torn_file(case: Case) -> None:
    """kill -9, and the file written last is cut in half, as after a loss of power; the state's record too."""
    began = time.time()
    kill_worker(case)
    case.house.kill_all()
    outputs = "models" if case.stage == "target" else f"runs/main/{case.stage}"
    for place in (outputs, f"runs/main/state/{case.stage}"):
        newest = _newest(case.house.root / place, began)
        if newest is not None:
            size = newest.stat().st_size
            os.truncate(newest, size // 2)
            case.notes.append(f"cut {newest.name[:24]}")


def _newest(folder: Path, since: float) -> Path | None:
    files = [
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and path.stat().st_size > 1 and path.stat().st_nlink == 1
    ]
    fresh = [path for path in files if path.stat().st_mtime >= since]
    return max(fresh, key=lambda path: path.stat().st_mtime_ns, default=None)


def clock_jump(case: Case) -> None:
    """The clock goes back three days in the middle."""
    process = case.house.command("run", case.stage, FAULT_CLOCK=f"{case.seconds * case.moment:.2f},-259200")
    case.told(*case.finish(process))


def second_operator(case: Case) -> None:
    """Somebody starts the same stage meanwhile, with the same settings and with others."""
    case.moment = 0.15  # early, so that the other's own start-up falls into the work
    process = case.house.command("run", case.stage)
    if case.wait_midway(process):
        status, answer = case.finish(case.house.command("run", case.stage))
        case.notes.append(f"same: {(answer.get('error') or {}).get('code', status)}")
        if case.stage in OTHER:
            spec = case.house.spec(**{case.stage: OTHER[case.stage]})
            status, answer = case.finish(case.house.command("run", case.stage, spec))
            case.notes.append(f"other: {(answer.get('error') or {}).get('code', status)}")
    case.told(*case.finish(process))


def network_cut(case: Case) -> None:
    """Every connection to the server is dropped for a while."""
    cut = case.house.control / "cut"
    process = case.house.command("run", case.stage)
    if case.wait_midway(process):
        cut.touch()
        time.sleep(CUT_S)
        cut.unlink()
    case.told(*case.finish(process))


FAULTS: dict[str, Callable[[Case], None]] = {
    "kill -9 worker": kill_worker,
    "kill -9 server": kill_server,
    "controller lost": lose_controller,
    "restart": restart,
    "disk full": disk_full,
    "read-only disk": read_only,
    "torn file": torn_file,
    "clock jump": clock_jump,
    "second operator": second_operator,
    "network cut": network_cut,
}
NEEDS_SERVER = {"kill -9 server", "network cut"}
NEEDS_MOUNT = {"disk full", "read-only disk"}


def may_mount() -> bool:
    """Whether this user may mount a small disk."""
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(["mount", "-t", "tmpfs", "none", folder], capture_output=True, check=False)
        if tried.returncode == 0:
            subprocess.run(["umount", folder], check=True)
        return tried.returncode == 0

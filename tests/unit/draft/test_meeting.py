"""What listens while processes meet: one address, not every interface."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from eyrie.draft import group, meeting
from eyrie.draft.settings import DraftSettings

pytestmark = pytest.mark.node

#: each process says what it, the other one and torchrun listen on, once all have met
MEMBER = """
import os, socket
from pathlib import Path
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
sockets = set()
for folder in Path("/proc").glob("[0-9]*"):
    try:
        parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        if str(os.getppid()) in (folder.name, parent):
            sockets |= {os.readlink(link) for link in (folder / "fd").iterdir()}
    except OSError:
        continue
listening = []
for table in ("tcp", "tcp6"):
    for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            listening.append(fields[1].split(":")[0])
os.write(1, f"MET {int(total)} {','.join(sorted(set(listening)))}\\n".encode())
dist.barrier()
dist.destroy_process_group()
"""
SRC = Path(meeting.__file__).parents[2]
LOOPBACK_HEX = "0100007F"


def test_two_processes_meet_and_listen_on_loopback_only(tmp_path: Path) -> None:
    script = tmp_path / "member.py"
    script.write_text(MEMBER)
    settings = DraftSettings(processes=2)
    options = ["--nproc-per-node", "2", *group.rendezvous(settings, "here", "fp")]
    done = subprocess.run(
        [sys.executable, "-m", "eyrie.draft.meeting", group.listens_on(settings, "here"), *options, str(script)],
        env={**os.environ, **group.environment(settings), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = [line.split() for line in done.stdout.splitlines() if line.startswith("MET")]
    assert said == [["MET", "2", LOOPBACK_HEX]] * 2, done.stderr[-2000:]


def test_the_port_is_held_from_when_it_was_chosen() -> None:
    with meeting.listener("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("address", "cure"), [("192.0.2.1", "set eyrie_draft_local_addr"), ("127.0.0.1", "choose another one")]
)
def test_where_it_cannot_listen_it_says_why(address: str, cure: str) -> None:
    with meeting.listener("127.0.0.1", 0) as taken, pytest.raises(SystemExit, match=cure):
        meeting.listener(address, taken.getsockname()[1])

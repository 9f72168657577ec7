"""rsync over links that are cut: what arrived is kept, what is torn goes on, what is refused says so."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from eyrie.core.errors import EyrieError, Interrupted
from eyrie.port import transfer
from eyrie.port.manifest import Entry
from eyrie.port.transfer import Limits, Way

#: a remote shell that runs the command here and dies after so many bytes, as often as the file says
CUTTER = """#!{python}
import os, subprocess, sys, threading

cuts = {cuts!r}
left = int(open(cuts).read())
open(cuts, "w").write(str(max(0, left - 1)))
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

def copy(source, sink, limit):
    while block := os.read(source, 4096):
        limit -= len(block)
        if limit < 0:
            child.kill()
            os._exit(255)
        try:
            os.write(sink, block)
        except BrokenPipeError:
            break
    os.close(sink)

limit = {limit} if left > 0 else 1 << 60
up = threading.Thread(target=copy, args=(0, child.stdin.fileno(), limit), daemon=True)
down = threading.Thread(target=copy, args=(child.stdout.fileno(), 1, limit))
up.start(); down.start(); down.join()
sys.exit(child.wait())
"""


def cutting_shell(tmp: Path, cuts: int, limit: int) -> Way:
    script, count = tmp / "shell.py", tmp / "cuts"
    count.write_text(str(cuts))
    script.write_text(CUTTER.format(python=sys.executable, cuts=str(count), limit=limit))
    script.chmod(0o755)
    return Way((str(script),), "elsewhere")


def files(folder: Path, count: int = 4, size: int = 200_000) -> list[Entry]:
    folder.mkdir()
    for index in range(count):
        (folder / f"f{index}").write_bytes(os.urandom(size))
    return [Entry("draft", "out", f"f{index}", size, 0o644, "-") for index in range(count)]


def test_only_listed_files_with_modes_and_links(tmp_path: Path) -> None:
    entries = files(tmp_path / "a", 2, 10)
    (tmp_path / "a" / "f1").chmod(0o600)
    (tmp_path / "a" / "unlisted").write_text("x")
    (tmp_path / "a" / "new\nline").write_text("odd name")
    (tmp_path / "a" / "best").symlink_to("f1")
    entries += [Entry("draft", "out", "best", link="f1"), Entry("draft", "out", "new\nline", 8, 0o644, "-")]
    attempts = transfer.send(entries, str(tmp_path / "a"), str(tmp_path / "b"), Way(), Limits())
    assert attempts == 1
    assert sorted(os.listdir(tmp_path / "b")) == ["best", "f0", "f1", "new\nline"]
    assert stat.S_IMODE((tmp_path / "b" / "f1").stat().st_mode) == 0o600
    assert os.readlink(tmp_path / "b" / "best") == "f1"


def test_cut_links_are_taken_up_again(tmp_path: Path) -> None:
    entries = files(tmp_path / "a")
    (tmp_path / "b").mkdir()
    pauses: list[float] = []
    moved: list[int] = []
    way = cutting_shell(tmp_path, cuts=5, limit=250_000)
    attempts = transfer.send(
        entries,
        str(tmp_path / "a"),
        way.place(str(tmp_path / "b")),
        way,
        Limits(tries=3),
        moved.append,
        sleep=pauses.append,
    )
    assert 3 <= attempts <= 6
    assert len(pauses) == attempts - 1
    for entry in entries:
        assert (tmp_path / "b" / entry.path).read_bytes() == (tmp_path / "a" / entry.path).read_bytes()
    assert sum(moved) < 2 * 4 * 200_000, "what had arrived was not sent again"


def test_a_torn_file_goes_on_where_it_stopped(tmp_path: Path) -> None:
    entries = files(tmp_path / "a", 1, 1_000_000)
    (tmp_path / "b").mkdir()
    way = cutting_shell(tmp_path, cuts=1, limit=700_000)
    with pytest.raises(EyrieError, match="stays dead"):
        transfer.send(
            entries, str(tmp_path / "a"), way.place(str(tmp_path / "b")), way, Limits(tries=0), sleep=lambda s: None
        )
    torn = tmp_path / "b" / transfer.PARTIAL / "f0"
    assert 400_000 < torn.stat().st_size < 1_000_000
    # the second shell lets less through than the file is long: only a resumed transfer fits
    (tmp_path / "cuts").write_text("1")
    transfer.send(
        entries, str(tmp_path / "a"), way.place(str(tmp_path / "b")), way, Limits(tries=1), sleep=lambda s: None
    )
    assert (tmp_path / "b" / "f0").read_bytes() == (tmp_path / "a" / "f0").read_bytes()


def test_a_dead_link_ends_with_what_to_do(tmp_path: Path) -> None:
    entries = files(tmp_path / "a", 1, 1000)
    (tmp_path / "b").mkdir()
    pauses: list[float] = []
    way = cutting_shell(tmp_path, cuts=99, limit=0)
    with pytest.raises(EyrieError, match="4 attempts in a row") as caught:
        transfer.send(
            entries,
            str(tmp_path / "a"),
            way.place(str(tmp_path / "b")),
            way,
            Limits(tries=4, pause_s=2, longest_pause_s=5),
            sleep=pauses.append,
        )
    assert caught.value.code == "link-dead"
    assert pauses == [2, 4, 5]


def test_a_refusal_is_not_tried_again(tmp_path: Path) -> None:
    entries = files(tmp_path / "a", 1, 10)
    entries.append(Entry("draft", "out", "gone", 1, 0o644, "-"))
    with pytest.raises(EyrieError, match="rsync ended with 23") as caught:
        transfer.send(entries, str(tmp_path / "a"), str(tmp_path / "b"), Way(), Limits())
    assert "gone" in caught.value.why
    assert (tmp_path / "b" / "f0").exists()


def test_bandwidth_is_bound(tmp_path: Path) -> None:
    import time

    entries = files(tmp_path / "a", 1, 600_000)
    begin = time.monotonic()
    transfer.send(entries, str(tmp_path / "a"), str(tmp_path / "b"), Way(), Limits(bandwidth_kb_s=300))
    assert 1.2 < time.monotonic() - begin < 8


def test_stop_is_heard_between_attempts(tmp_path: Path) -> None:
    entries = files(tmp_path / "a", 1, 10)

    def stop() -> None:
        raise Interrupted("asked to stop")

    with pytest.raises(Interrupted):
        transfer.send(entries, str(tmp_path / "a"), str(tmp_path / "b"), Way(), Limits(), check_stop=stop)
    assert not (tmp_path / "b").exists()


def test_ipv6_hosts_are_bracketed() -> None:
    assert Way(("ssh",), "fe80::1").place("/x") == "[fe80::1]:/x"
    assert Way(("ssh",), "box").place("/x") == "box:/x"
    assert Way().place("/x") == "/x"

"""The fault matrix: every stage x every fault, run again, compared with the undisturbed result.

    python tests/faults/matrix.py [--short] [--stage NAME ...] [--fault NAME ...] [--seed N]
                                  [--work FOLDER] [--json FILE] [--page FILE]

In pieces: the same --work keeps the undisturbed run from one call to the next, the same --json gathers the cases, and
--page writes what was gathered as the table of docs/faults.md. Real stages, real supervisor, real trainer and load
generator; the target is a toy and the server answers from a hash. Needs the node environment, and root for the small
disks of two faults. Exit status 1 when a case was not survived.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from faults import FAULTS, NEEDS_MOUNT, NEEDS_SERVER, SERVED, Case, may_mount
from house import STAGES, House
from page import page

#: what CI runs: each fault at least once, on the stages where it bites
SHORT = (
    ("target", "kill -9 worker"),
    ("dataset", "disk full"),
    ("responses", "second operator"),
    ("responses", "kill -9 worker"),
    ("responses", "kill -9 server"),
    ("responses", "network cut"),
    ("responses", "restart"),
    ("tokens", "torn file"),
    ("tokens", "read-only disk"),
    ("hidden_states", "kill -9 worker"),
    ("hidden_states", "controller lost"),
    ("hidden_states", "clock jump"),
)
#: requests that a stage may ask again: those in flight, and a repeated probe
REDONE = {"responses": 10, "hidden_states": 24, "benchmark": 60}


@dataclass
class Row:
    """lost, doubled: items of the result that are missing or too many; redone: requests asked more than once.

    allowed: as many of these as the fault itself costs.
    """

    stage: str
    fault: str
    survived: bool = False
    lost: int = 0
    doubled: int = 0
    redone: int = 0
    allowed: int = 0
    recover_s: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        frugal = self.redone <= self.allowed
        return self.survived and not self.lost and not self.doubled and frugal and "SAID NOTHING" not in self.notes


@dataclass
class Undisturbed:
    """What a stage makes when nothing happens: its items, seconds, and requests by prompt."""

    items: Counter[str]
    seconds: float
    requests: Counter[str]
    fingerprint: str


def undisturbed(house: House, last: str, say: Any) -> dict[str, Undisturbed]:
    """Run the chain up to `last` once, with a snapshot after each stage; what an earlier call ran is taken from it."""
    kept = house.work / "undisturbed.json"
    raw = json.loads(kept.read_text()) if kept.exists() else {}
    found = {
        stage: Undisturbed(Counter(entry["items"]), entry["seconds"], Counter(entry["requests"]), entry["fingerprint"])
        for stage, entry in raw.items()
    }
    wanted = [stage for stage in STAGES[: STAGES.index(last) + 1] if stage not in found]
    if wanted and found:
        house.restore(wanted[0])
    for stage in wanted:
        (house.control / "log").unlink(missing_ok=True)
        status, answer, seconds = house.run(stage)
        if status != 0:
            raise SystemExit(f"the undisturbed {stage} failed: {json.dumps(answer)[:2000]}")
        found[stage] = Undisturbed(house.items(stage), seconds, house.requests(), str(answer["fingerprint"]))
        say(f"undisturbed {stage}: {seconds:.1f} s, {sum(found[stage].items.values())} items")
        house.snapshot(stage)
        kept.write_text(json.dumps({name: vars(entry) for name, entry in found.items()}))
    return found


def run_case(house: House, stage: str, fault: str, known: Undisturbed, moment: float) -> Row:
    """One cell of the matrix."""
    half = sum(known.requests.values()) // 2 if fault == "torn file" else 0  # what was cut off is gone
    row = Row(stage, fault, allowed=REDONE.get(stage, 0) + half)
    house.restore(stage)
    case = Case(house, stage, known.fingerprint, known.seconds, sum(known.requests.values()), moment)
    try:
        FAULTS[fault](case)
        began = time.monotonic()
        status, answer, _ = house.run(stage)
        row.recover_s = round(max(case.recovered, time.monotonic() - began), 1)
        if status != 0:
            error = answer.get("error") or {}
            case.notes.append(f"run again: {error.get('code')} {str(error.get('what'))[:120]}")
        items = house.items(stage, known.fingerprint)
        row.lost = sum((known.items - items).values())
        row.doubled = sum((items - known.items).values())
        row.survived = status == 0 and items == known.items
        row.redone = redone(known.requests, house.requests())
    except Exception as error:  # the table shows it: one broken case must not hide the others
        case.notes.append(f"{type(error).__name__}: {error}")
    finally:
        house.kill_all()
    row.notes = case.notes
    return row


def redone(before: Counter[str], after: Counter[str]) -> int:
    """Requests beyond those of the undisturbed run, of prompts that it knows."""
    return sum(max(0, after[key] - count) for key, count in before.items())


def table(rows: list[Row]) -> str:
    """The matrix as text."""
    head = ("stage", "fault", "survived", "lost", "doubled", "redone", "recover", "notes")
    cells = []
    for row in rows:
        counts = (str(number) for number in (row.lost, row.doubled, row.redone))
        survived = "yes" if row.survived else "NO"
        cells.append((row.stage, row.fault, survived, *counts, f"{row.recover_s:.1f} s", ", ".join(row.notes)))
    widths = [max(len(line[i]) for line in [head, *cells]) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in [head, *cells]]
    return "\n".join(line.rstrip() for line in lines)


def wanted(args: argparse.Namespace) -> list[tuple[str, str]]:
    pairs = list(SHORT) if args.short else [(stage, fault) for stage in STAGES for fault in FAULTS]
    pairs = [(s, f) for s, f in pairs if (not args.stage or s in args.stage) and (not args.fault or f in args.fault)]
    pairs = [(s, f) for s, f in pairs if f not in NEEDS_SERVER or s in SERVED]
    return pairs if may_mount() else [(s, f) for s, f in pairs if f not in NEEDS_MOUNT]


@contextlib.contextmanager
def working(folder: Path | None) -> Iterator[Path]:
    """The folder that was asked for, which stays, or a temporary one."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="faults-") as name:
            yield Path(name)
        return
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def gather(path: Path, known: dict[str, Undisturbed], rows: list[Row]) -> dict[str, Any]:
    """What a file of cases holds, and these rows over it."""
    held = json.loads(path.read_text()) if path.exists() else {"undisturbed_s": {}, "cases": []}
    fresh = {(row.stage, row.fault) for row in rows}
    held["cases"] = [case for case in held["cases"] if (case["stage"], case["fault"]) not in fresh]
    held["cases"] += [{**asdict(row), "good": row.good} for row in rows]
    held["undisturbed_s"] |= {stage: round(entry.seconds, 1) for stage, entry in known.items()}
    return held


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Every stage x every fault, compared with the undisturbed result.")
    parser.add_argument("--short", action="store_true", help="the dozen cases that CI runs")
    parser.add_argument("--stage", action="append", choices=STAGES)
    parser.add_argument("--fault", action="append", choices=list(FAULTS))
    parser.add_argument("--seed", type=int, default=1, help="decides at which moment each fault comes")
    parser.add_argument("--work", type=Path, default=None, help="a folder that is kept (default: a temporary one)")
    parser.add_argument("--json", type=Path, default=None, help="gather the cases there")
    parser.add_argument("--page", type=Path, default=None, help="write what --json gathered as a page")
    args = parser.parse_args(argv)
    pairs = wanted(args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    with working(args.work) as work:
        house = House(work, 60 if args.short else 96)
        began = time.monotonic()

        def say(text: str) -> None:
            sys.stderr.write(f"{time.monotonic() - began:6.1f} s  {text}\n")

        try:
            last = max((stage for stage, _ in pairs), key=STAGES.index)
            known = undisturbed(house, last, say)
            rows = []
            for stage, fault in pairs:
                moment = random.Random(f"{args.seed} {stage} {fault}").uniform(0.25, 0.8)
                rows.append(run_case(house, stage, fault, known[stage], moment))
                say(f"{stage} x {fault}: {'ok' if rows[-1].good else 'NOT SURVIVED'} {rows[-1].notes}")
                if args.json:
                    gathered = gather(args.json, known, rows)
                    args.json.write_text(json.dumps(gathered, indent=2) + "\n")
        finally:
            house.kill_all()
        seconds = time.monotonic() - began
    if args.json and args.page:
        args.page.write_text(page(json.loads(args.json.read_text())))
    sys.stdout.write(table(rows) + "\n")
    good = sum(row.good for row in rows)
    left_out = "" if may_mount() else " Without the right to mount, the small disks' faults were left out."
    sys.stdout.write(f"{good} of {len(rows)} survived with nothing lost or doubled, {seconds:.0f} s.{left_out}\n")
    return 0 if good == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())

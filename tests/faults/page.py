"""The gathered cases of the fault matrix as a page for people."""

from __future__ import annotations

from typing import Any

from faults import FAULTS, NEEDS_SERVER, SERVED
from house import STAGES

INTRO = """# What a run survives

Each stage of a real run (real stages, supervisor, trainer and load generator; a toy target, and a server that answers
from a hash instead of a model) is disturbed once by each fault at a moment drawn by a seed, run again, and compared
item by item with the undisturbed result: rows, prompts and answers token by token, states and weights byte by byte,
the benchmark's cells and the report's books.

```
make faults                 # every stage x every fault (as root: two faults mount small disks)
make faults SHORT=1         # a dozen of them; part of `make test`
```

A cell is the time that the next run needed to be up to date after the fault (0.1 to 0.3 s: the disturbed run itself had
gone on to its end, and there was nothing left to do); **(+n)** are requests to the server that were asked again: those
in flight, a repeated proof, and after a torn file what was cut off. `-`: the stage has no server. Measured in one run
of 552 s on two CPU cores that other work shared (the draft's kill and restart by themselves): the counts are exact,
the seconds are upper bounds.

"""

MEANING = {
    "kill -9 worker": "the stage's process is killed; its children are left as they are",
    "kill -9 server": "the server under the stage is killed",
    "controller lost": "the connection ends after the start; a second operator attaches",
    "restart": "supervisor, job and server are killed at once, as by a restart of the container or a reboot",
    "disk full": "room for less than half of what the stage writes; later there is room again",
    "read-only disk": "the disk is read-only when the stage begins; later it is not",
    "torn file": "kill -9, and the file written last and the stage's record are cut in half, as by a loss of power",
    "clock jump": "the clock goes back three days in the middle",
    "second operator": "somebody starts the same stage meanwhile, with the same settings and with others",
    "network cut": "every connection to the server is dropped for 2.5 s",
}


def page(gathered: dict[str, Any]) -> str:
    """Markdown of {undisturbed_s, cases}."""
    cases = {(case["stage"], case["fault"]): case for case in gathered["cases"]}
    good = sum(case["good"] for case in cases.values())
    lost, doubled = (sum(case[key] for case in cases.values()) for key in ("lost", "doubled"))
    text = INTRO + f"**{good} of {len(cases)} survived; {lost} items lost, {doubled} doubled.**\n\n"
    text += row(["fault", *(stage.replace("_", " ") for stage in STAGES)])
    text += row(["---"] * (1 + len(STAGES)))
    undisturbed = (f"{gathered['undisturbed_s'].get(stage, 0):.1f} s" for stage in STAGES)
    text += row(["*undisturbed*", *undisturbed])
    for fault in FAULTS:
        text += row([fault, *(cell(cases.get((stage, fault)), stage, fault) for stage in STAGES)])
    text += "\n| fault | what is done |\n|---|---|\n"
    text += "".join(row([fault, MEANING[fault]]) for fault in FAULTS)
    return text


def cell(case: dict[str, Any] | None, stage: str, fault: str) -> str:
    if fault in NEEDS_SERVER and stage not in SERVED:
        return "-"
    if case is None:
        return "not run"
    if not case["good"]:
        return f"**not survived** (lost {case['lost']}, doubled {case['doubled']})"
    return f"{case['recover_s']:.1f} s" + (f" (+{case['redone']})" if case["redone"] else "")


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"

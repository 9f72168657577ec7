"""Seconds and bytes of the report of a large run: made-up outputs of every stage, the stage as the runner runs it.

    python bench/report.py [--samples 100000] [--steps 50000] [--json]

Times are of a process of its own, the interpreter's start and all imports included; the outputs are made before.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
HOUSE = PROJECT / "tests" / "unit" / "report"
sys.path[:0] = [str(HOUSE), str(PROJECT / "src")]
RUN = "import sys, report; report.work(sys.argv[1])"


def prepare(root: Path, samples: int, steps: int, sources: int, tokens: int) -> None:
    """Leave what the stages before the report would."""
    import report_house

    from eyrie.core import registry

    registry.get = report_house.stand_in
    report_house.House(root, report_house.Size(samples, sources, steps, tokens)).pipeline()


def work(root: str) -> None:
    """Run the stage over a prepared root; what it cost, as JSON."""
    import report_house

    from eyrie.core import registry, runner

    registry.get = report_house.stand_in
    pipeline = report_house.spec(Path(root))
    runner.run(pipeline, "report")
    used = resource.getrusage(resource.RUSAGE_SELF)
    out = pipeline.context("report").out
    sizes = {name: (out / name).stat().st_size for name in ("report.html", "report.json")}
    print(json.dumps({"cpu_s": round(used.ru_utime + used.ru_stime, 2), "peak_bytes": used.ru_maxrss * 1024, **sizes}))


def measure(samples: int, steps: int, repeats: int) -> dict[str, Any]:
    runs = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as name:
            prepare(Path(name), samples, steps, sources=10, tokens=163_840)
            env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT / "bench"), *sys.path[:2]])}
            begin = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-c", RUN, name], env=env, capture_output=True, text=True, check=False
            )
            seconds = time.monotonic() - begin
            if done.returncode:
                raise SystemExit(done.stderr)
            runs.append({**json.loads(done.stdout), "wall_s": round(seconds, 2), "load1": round(os.getloadavg()[0], 2)})
    best = min(runs, key=lambda run: run["wall_s"])
    return {"samples": samples, "steps": steps, "wall_s": best["wall_s"], "cpu_s": best["cpu_s"], "runs": runs, **{
        "html_bytes": best["report.html"], "json_bytes": best["report.json"], "peak_bytes": best["peak_bytes"]
    }}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.samples, options.steps, options.repeats)
    print(json.dumps(found) if options.json else "\n".join(f"{key}: {value}" for key, value in found.items()))


if __name__ == "__main__":
    main()

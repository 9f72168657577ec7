#!/usr/bin/env python3
"""Known vulnerabilities of everything that is pinned, by pip-audit.

    audit.py [--service pypi|osv] [--unreachable fail|warn] [--installed FOLDER] LOCK...

LOCK: a complete list of pinned distributions. --installed: a site-packages folder (the controller's environment).
Exit status 0: none is known; 1: some are; 2: the advisory source could not be asked, which is no pass
(--unreachable warn makes it 0, and says so all the same). audit-accepted.txt beside this file holds accepted ids.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ACCEPTED = Path(__file__).with_name("audit-accepted.txt")
#: a source that knows fewer of the distributions has no advisories of them (a mirror without that interface)
KNOWN_SHARE = 0.9
LOCAL = re.compile(r"(==[^\s;+]+)\+[A-Za-z0-9.]+")  # torch==2.13.0+cpu: advisories are of 2.13.0


@dataclass
class Result:
    """found: (distribution, version, id, versions that mend it); skipped: what the source does not know."""

    name: str
    count: int = 0
    found: list[tuple[str, str, str, str]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    unreachable: str = ""


def accepted(path: Path = ACCEPTED) -> dict[str, str]:
    """{id: why}. Raises SystemExit for an id without a reason."""
    known = {}
    for line in path.read_text("utf-8").splitlines():
        words = line.split(maxsplit=1)
        if words and not line.startswith("#"):
            if len(words) < 2:
                raise SystemExit(f"{path}: {words[0]} is accepted without a reason.")
            known[words[0]] = words[1]
    return known


def audit(name: str, what: list[str], service: str) -> Result:
    """Ask pip-audit. what: its arguments that say of which distributions."""
    argv = [sys.executable, "-m", "pip_audit", *what, "--format", "json", "--progress-spinner", "off"]
    argv += ["--vulnerability-service", service, "--timeout", "20"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    try:
        return read(name, json.loads(done.stdout))
    except (ValueError, KeyError):
        words = [line for line in done.stderr.splitlines() if line.strip()][-1:] or [f"exit status {done.returncode}"]
        return Result(name, unreachable=words[0][:300])


def read(name: str, answer: dict[str, Any]) -> Result:
    """pip-audit's JSON as a result. Pure."""
    result = Result(name)
    for item in answer["dependencies"]:
        if "skip_reason" in item:
            result.skipped.append(item["name"])
            continue
        result.count += 1
        for entry in item["vulns"]:
            mended = ", ".join(entry.get("fix_versions") or []) or "no version yet"
            result.found.append((item["name"], item["version"], entry["id"], mended))
    every = result.count + len(result.skipped)
    if result.count < KNOWN_SHARE * every:
        result.unreachable = f"it answered for {result.count} of {every} distributions (a mirror has no advisories?)"
    return result


def judge(results: list[Result], known: dict[str, str], unreachable: str) -> tuple[list[str], int]:
    """(lines for people, exit status). Pure."""
    lines, status = [], 0
    for result in results:
        if result.unreachable:
            lines.append(f"{result.name}: NOT AUDITED, the advisory source could not be asked: {result.unreachable}")
            status = status or (2 if unreachable == "fail" else 0)
            if not result.found:
                continue
        open_ = [entry for entry in result.found if entry[2] not in known]
        lines.append(f"{result.name}: {result.count} distributions, {len(open_)} known vulnerabilities")
        for distribution, version, identifier, mended in result.found:
            note = f"accepted: {known[identifier]}" if identifier in known else f"mended in {mended}"
            lines.append(f"  {distribution} {version}  {identifier}  {note}")
        if result.skipped and not result.unreachable:
            lines.append(f"  not known to the source: {', '.join(result.skipped)}")
        status = 1 if open_ else status
    return lines, status


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Known vulnerabilities of everything that is pinned.")
    parser.add_argument("locks", nargs="+", type=Path)
    parser.add_argument("--installed", type=Path, action="append", default=[])
    parser.add_argument("--service", choices=["pypi", "osv"], default="pypi")
    parser.add_argument("--unreachable", choices=["fail", "warn"], default="fail")
    args = parser.parse_args(argv)
    results = [audit(str(folder), ["--path", str(folder)], args.service) for folder in args.installed]
    with tempfile.TemporaryDirectory() as folder:
        for lock in args.locks:
            public = Path(folder) / lock.name
            public.write_text(LOCAL.sub(r"\1", lock.read_text("utf-8")), "utf-8")
            what = ["--requirement", str(public), "--no-deps", "--disable-pip"]
            results.append(audit(str(lock), what, args.service))
    lines, status = judge(results, accepted(), args.unreachable)
    sys.stdout.write("\n".join(lines) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())

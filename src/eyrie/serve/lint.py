"""Lint of unit and environment files: what systemd would misread without a word, as errors before it is installed.

`systemd-analyze verify` sees neither lost quotes nor a '%' that became something else; this does. It is what the
server role's `validate` runs, and what a hand-edited unit is held against.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.serve import quoting
from eyrie.supervise import SYSTEMD_MARK

ERROR, WARNING = "error", "warning"
#: specifiers that may stand anywhere, and those that are only meant at the start of a path
ANYWHERE, PATHS = set("iInNpPjJ%"), set("hStTLCEdY")
#: shorter than that no engine stops; shorter than this a large one may not
MIN_STOP_S, GOOD_STOP_S = 10.0, 120.0
#: programs and modules that start a serving engine
_ENGINE = re.compile(r"(.*/)?(vllm|sglang|eyrie)|(vllm|sglang)\..+")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Finding:
    """line: 1-based, 0 for something that is missing."""

    line: int
    level: str
    code: str
    message: str


@dataclass(frozen=True)
class Setting:
    line: int
    section: str
    key: str
    value: str


def files(paths: list[Path]) -> dict[str, Any]:
    """Lint files; raises EyrieError when one has an error, else {ok, findings}."""
    found: dict[str, list[dict[str, Any]]] = {}
    broken = []
    for path in paths:
        text = path.read_text("utf-8")
        findings = [*unit(text), *analyzed(text)] if is_unit(text) else environment(text)
        found[str(path)] = [asdict(finding) for finding in findings]
        broken += [f"{path}:{item.line}: {item.message}" for item in findings if item.level == ERROR]
    if broken:
        raise EyrieError(
            f"{len(broken)} error{'s' if len(broken) > 1 else ''}: " + " ".join(broken),
            code="unit-lint",
            todo="systemd would start something else than what is written there.",
        )
    return {"ok": True, "findings": found}


def analyzed(text: str) -> list[Finding]:
    """What systemd's own check says of a unit, where systemd runs; its words name the line."""
    if not SYSTEMD_MARK.is_dir() or shutil.which("systemd-analyze") is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "eyrie-lint.service"
        path.write_text(text, "utf-8")
        done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True)
    said = [line.removeprefix(str(path)).lstrip(":") for line in done.stderr.splitlines() if path.name in line]
    found = []
    for line in said:
        number, _, message = line.partition(":")
        message = message.strip() if number.isdecimal() else line
        found.append(Finding(int(number) if number.isdecimal() else 0, ERROR, "systemd", message))
    return found


def is_unit(text: str) -> bool:
    return re.search(r"^\[(Unit|Service|Install)\]\s*$", text, re.MULTILINE) is not None


def parse(text: str) -> list[Setting]:
    """Settings of a unit file in order, continuation lines joined."""
    found, section, pending, start = [], "", "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if not pending and (not line.strip() or line.lstrip()[0] in "#;"):
            continue
        if pending and line.lstrip()[:1] in ("#", ";"):  # comments may stand between continued lines
            continue
        start = start if pending else number
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        whole, pending = (pending + line).strip(), ""
        if whole.startswith("[") and whole.endswith("]"):
            section = whole[1:-1]
            continue
        key, _, value = whole.partition("=")
        found.append(Setting(start, section, key.strip(), value.strip()))
    return found


def unit(text: str) -> list[Finding]:
    """Findings of a unit file, in order of lines."""
    settings = parse(text)
    found: list[Finding] = []
    for item in settings:
        if item.section == "Service" and item.key in ("ExecStart", "ExecStartPre", "ExecStartPost", "ExecStop"):
            found += _command(item)
        elif item.section == "Service" and item.key == "Environment":
            found += _assignments(item)
        elif item.section == "Service" and item.key.startswith("StartLimit"):
            message = f"{item.key} is ignored in [Service]: it belongs in [Unit]."
            found.append(Finding(item.line, ERROR, "start-limit-section", message))
        if item.section in ("Service", "Unit"):
            found += _specifiers(item)
    found += _limits(settings)
    return sorted(found, key=lambda item: (item.line, item.code))


def _command(item: Setting) -> list[Finding]:
    try:
        words = quoting.split(item.value.lstrip("-+!:@"))
    except quoting.Unbalanced as error:
        return [Finding(item.line, ERROR, "quotes", f"{item.key}: {error}.")]
    found = []
    for word in words[1:]:
        value = word.partition("=")[2] if word.startswith("--") and "={" in word else word
        if value.startswith(("{", "[")) and not _is_json(value.replace("%%", "%")):
            text = f"the program receives {word!r}, which is not JSON: put single quotes around the whole argument."
            found.append(Finding(item.line, ERROR, "json-lost", text))
    return found


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _assignments(item: Setting) -> list[Finding]:
    try:
        words = quoting.split(item.value)
    except quoting.Unbalanced as error:
        return [Finding(item.line, ERROR, "quotes", f"Environment: {error}.")]
    lost = [word for word in words if not re.match(r"[A-Za-z_][A-Za-z0-9_]*=", word)]
    text = 'Environment: {0!r} is no assignment and is dropped; write Environment="NAME=two words".'
    return [Finding(item.line, ERROR, "assignment-lost", text.format(word)) for word in lost]


def _specifiers(item: Setting) -> list[Finding]:
    """A '%' is either doubled or one of the few specifiers that are meant."""
    found, position = [], 0
    while (position := item.value.find("%", position)) >= 0:
        char = item.value[position + 1 : position + 2]
        after = item.value[position + 2 : position + 3]
        before = item.value[position - 1 : position]
        path = char in PATHS and after in ("/", "", " ", '"', "'") and before in ("", "=", ":", " ", '"', "'")
        if not (char and (char in ANYWHERE or path)):
            text = f"{item.key}: '%{char}' is a specifier for systemd; write '%%{char}' for the character."
            found.append(Finding(item.line, ERROR, "percent", text))
        position += 2
    return found


def _limits(settings: list[Setting]) -> list[Finding]:
    """Start limits, stop deadline, files, log rate, caches."""
    service = {item.key: item for item in settings if item.section == "Service"}
    top = {item.key: item for item in settings if item.section == "Unit"}
    start = service.get("ExecStart")
    if start is None:
        return []
    found = _start_limits(service, top) + _stop(service, start)
    environment = " ".join(item.value for item in settings if item.key == "Environment")
    if "LimitNOFILE" not in service:
        found.append(Finding(0, ERROR, "files", "LimitNOFILE is missing: 1024 files end at about 1000 connections."))
    appends = service.get("StandardOutput") and service["StandardOutput"].value.startswith("append:")
    rate = service.get("LogRateLimitIntervalSec")
    if not appends and (rate is None or seconds(rate.value) != 0):
        text = "LogRateLimitIntervalSec=0 is missing: the journal drops lines of a chatty start."
        found.append(Finding(0, WARNING, "log-rate", text))
    if _serves(start.value) and "HF_HOME=" not in environment:
        text = "HF_HOME is not set: a service has no home, caches would land on the root disk."
        found.append(Finding(0, ERROR, "hf-home", text))
    return found


def _serves(command: str) -> bool:
    try:
        return any(_ENGINE.fullmatch(word) for word in quoting.split(command)[:3])
    except quoting.Unbalanced:
        return False


def _start_limits(service: dict[str, Setting], top: dict[str, Setting]) -> list[Finding]:
    restart = service.get("Restart")
    if restart is None or restart.value == "no" or any(key.startswith("StartLimit") for key in service):
        return []
    interval, burst = top.get("StartLimitIntervalSec"), top.get("StartLimitBurst")
    if interval is None or burst is None:
        text = "Restart= without StartLimitIntervalSec and StartLimitBurst in [Unit]: a slow start loops for ever."
        return [Finding(restart.line, ERROR, "start-limit", text)]
    window = seconds(interval.value)
    one = seconds(service["RestartSec"].value) if "RestartSec" in service else 0.1
    one += seconds(service["TimeoutStartSec"].value) if "TimeoutStartSec" in service else 90.0
    need = int(burst.value) * one
    if window <= need:
        text = (
            f"{burst.value} starts of up to {one:.0f} s never fit into {window:.0f} s: more than {need:.0f} is needed."
        )
        return [Finding(interval.line, ERROR, "start-limit", text)]
    return []


def _stop(service: dict[str, Setting], start: Setting) -> list[Finding]:
    found = []
    kill = service.get("KillMode")
    if kill is not None and kill.value in ("process", "none"):
        text = f"KillMode={kill.value} leaves workers on the GPU: control-group ends them all."
        found.append(Finding(kill.line, ERROR, "kill-mode", text))
    stop = service.get("TimeoutStopSec")
    drain = re.search(r"--shutdown-timeout[= ](\d+)", start.value)
    least = max(MIN_STOP_S, float(drain[1]) + 1 if drain else 0.0)
    if stop is not None and seconds(stop.value) < max(least, GOOD_STOP_S):
        level = ERROR if seconds(stop.value) < least else WARNING
        text = f"TimeoutStopSec={stop.value} is short: SIGKILL in the middle of a stop leaves orphans on the GPU."
        found.append(Finding(stop.line, level, "stop-timeout", text))
    return found


def seconds(value: str) -> float:
    """A systemd time span ('3h 20min', '2700', 'infinity') in seconds."""
    if value.strip() in ("infinity", ""):
        return float("inf")
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)", value)
    return sum(float(number) * _UNITS.get(name, 1.0) for number, name in parts)


def environment(text: str) -> list[Finding]:
    """Findings of an EnvironmentFile: it is no shell script."""
    found: list[Finding] = []
    for number, name, value in assignments(text):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            message = f"{name!r} is no name: the line is ignored (no `export` here)."
            found.append(Finding(number, ERROR, "no-name", message))
            continue
        if re.search(r"\s[#;]", value):
            message = f"{name} keeps its comment: its value is {value!r}."
            found.append(Finding(number, ERROR, "inline-comment", message))
        if re.search(r"\$(\{|[A-Za-z_])", value):
            found.append(Finding(number, ERROR, "not-expanded", f"{name} stays {value!r}: variables are not expanded."))
    return found


def assignments(text: str) -> list[tuple[int, str, str]]:
    """(line, name, value) as a service sees the file: quotes removed, continuation lines joined."""
    found, pending, start = [], "", 0
    for number, line in enumerate(text.split("\n"), 1):
        start = start if pending else number
        if not pending and (not line.strip() or line.lstrip()[0] in "#;"):
            continue
        if line.endswith("\\"):
            pending += line[:-1]
            continue
        name, _, value = (pending + line).partition("=")
        pending = ""
        found.append((start, name.strip(), _unquoted(value.strip())))
    return found


def _unquoted(value: str) -> str:
    """The value of an environment file's line: a value in quotes loses them, inner quotes of a bare value stay."""
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'" and value[0] not in value[1:-1]:
        return value[1:-1]
    return value

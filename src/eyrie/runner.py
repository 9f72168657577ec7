"""`python -m eyrie.runner`: a playbook as a service runs it, through ansible-runner, on the controller.

The play's output goes to standard error as it comes; standard output gets one JSON summary at the end. Events, output
and the summary are kept below the artifacts folder (mode 0700), the newest few of them. Exit status: the play's own,
or 4 when it did nothing because no host matched (Ansible calls that a success).

Secrets have no way in: variables come from files or as non-secret KEY=VALUE, since ansible-runner keeps its command
line and its extra variables in clear text. Give secrets by Vault or by the environment that the inventory reads.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError, SpecError
from eyrie.ops import notify
from eyrie.ops.shown import redact

NO_HOSTS = 4
SECRET = re.compile(r"(?i)(token|passw|secret|api_?key|credential|private)")
STATS = ("ok", "changed", "failures", "dark", "skipped", "rescued", "ignored")
TEXTS = ("msg", "stderr", "stdout", "exception", "module_stderr", "module_stdout")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m eyrie.runner", description="Run a playbook as a service does.")
    top.add_argument("--playbook", default="train.yml", help="relative to the project (default: train.yml)")
    top.add_argument("-l", "--limit", required=True, help="the hardware profile or host")
    top.add_argument("-t", "--tags", default="")
    top.add_argument("-C", "--check", action="store_true", help="plan only")
    top.add_argument("-D", "--diff", action="store_true")
    top.add_argument("-e", "--extra-var", action="append", default=[], metavar="KEY=VALUE | @FILE")
    top.add_argument("--inventory", default="", help="another inventory than the project's")
    top.add_argument("--project", type=Path, default=None, help="folder of ansible.cfg (default: found by itself)")
    top.add_argument("--artifacts", type=Path, default=None, help="default: artifacts/runner of the project")
    top.add_argument("--keep", type=int, default=20, help="so many runs' artifacts are kept")
    top.add_argument("--ident", default="", help="name of this run's artifacts (default: a new one)")
    top.add_argument("--hook", default="", metavar="PROGRAM", help="gets the summary as JSON on standard input")
    top.add_argument("--hook-on", choices=("failed", "always"), default="failed")
    return top


def project_of(given: Path | None) -> Path:
    """The folder that holds ansible.cfg. Raises SpecError."""
    candidates = [given] if given else [Path.cwd(), Path(__file__).resolve().parents[2]]
    for folder in candidates:
        if folder is not None and (folder / "ansible.cfg").is_file():
            return folder.resolve()
    raise SpecError(
        "there is no ansible.cfg here.", where=str(candidates[0]), todo="Give --project.", code="no-project"
    )


def command_line(args: argparse.Namespace) -> str:
    """Further arguments of ansible-playbook. Raises SpecError on what looks like a secret."""
    import shlex

    words = ["--check"] * args.check + ["--diff"] * args.diff
    for given in args.extra_var:
        name, _, value = given.partition("=")
        if not given.startswith("@") and (not value or SECRET.search(name)):
            why = "it would be kept in clear text." if value else "it is no KEY=VALUE or @FILE."
            todo = "Use Vault, the environment, or -e @file."
            raise SpecError(f"-e {name} is refused: {why}", code="runner-secret", todo=todo)
        if given.startswith("@"):
            given = f"@{Path(given[1:]).resolve()}"
        words += ["-e", given]
    return shlex.join(words)


class Events:
    """Passes the play's output on, and keeps what failed."""

    def __init__(self, doctor: bool = True):
        self.failed: list[dict[str, Any]] = []
        self.doctor = doctor

    def __call__(self, event: dict[str, Any]) -> bool:
        """ansible-runner's event_handler: True keeps the event's file."""
        text = str(event.get("stdout") or "")
        if text:
            sys.stderr.write(text + "\n")
        data = event.get("event_data") or {}
        if event.get("event") in ("runner_on_failed", "runner_on_unreachable") and not data.get("ignore_errors"):
            self.failed.append(failure(data, event["event"] == "runner_on_unreachable"))
        return True


def failure(data: dict[str, Any], unreachable: bool = False) -> dict[str, Any]:
    """{host, task, message, doctor} of a failed task's event."""
    result = data.get("res") or {}
    found = list(result.get("doctor") or [])
    if not found:
        from eyrie.ops.doctor.evidence import Document
        from eyrie.ops.doctor.examine import diagnose

        text = "\n".join(str(result[key])[:20000] for key in TEXTS if result.get(key))
        text = f"UNREACHABLE! {text}" if unreachable else text
        found = diagnose([Document("play", "the task's result", "", text)])
    first = {key: found[0][key] for key in ("id", "title", "cause", "cure")} if found else None
    return {
        "host": data.get("host"),
        "task": data.get("task"),
        "message": redact(str(result.get("msg") or ""))[:2000],
        "doctor": first,
    }


def summary(runner: Any, events: Events, args: argparse.Namespace) -> dict[str, Any]:
    """What happened, for machines: {status, rc, hosts, failed, ...}."""
    stats = runner.stats or {}
    hosts: dict[str, dict[str, int]] = {}
    for key in STATS:
        for host, count in (stats.get(key) or {}).items():
            hosts.setdefault(host, {})[key] = count
    for host in stats.get("processed") or {}:
        hosts.setdefault(host, {})
    status, rc = str(runner.status), int(runner.rc or 0)
    if rc == 0 and not hosts:
        status, rc = "no hosts matched", NO_HOSTS
    return {
        "playbook": args.playbook,
        "limit": args.limit,
        "check": args.check,
        "status": status,
        "rc": rc,
        "ident": runner.config.ident,
        "artifacts": str(runner.config.artifact_dir),
        "hosts": hosts,
        "changed": sum(host.get("changed", 0) for host in hosts.values()),
        "failed": events.failed,
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run the playbook; returns the summary. Raises EyrieError when it cannot be started."""
    project = project_of(args.project)
    try:
        ansible_runner = import_module("ansible_runner")
    except ImportError:
        todo = "Install ansible-runner beside ansible-core on the controller."
        raise EyrieError("ansible-runner is not installed.", code="runner-missing", todo=todo) from None
    place = (args.artifacts or project / "artifacts" / "runner").resolve()
    place.mkdir(parents=True, exist_ok=True)
    os.chmod(place, 0o700)
    events = Events()
    options: dict[str, Any] = {"ident": args.ident} if args.ident else {}
    if args.tags:
        options["tags"] = args.tags
    if args.inventory:
        options["inventory"] = str(Path(args.inventory).resolve())
    words = command_line(args)
    runner = ansible_runner.run(
        private_data_dir=str(place),
        project_dir=str(project),
        artifact_dir=str(place),
        playbook=args.playbook,
        limit=args.limit,
        cmdline=words or None,
        envvars={"ANSIBLE_CONFIG": str(project / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        rotate_artifacts=args.keep,
        suppress_env_files=True,
        quiet=True,
        event_handler=events,
        status_handler=without_environment,
        **options,
    )
    answer = summary(runner, events, args)
    atomic.write_json(Path(answer["artifacts"]) / "summary.json", answer, mode=0o600)
    return answer


def without_environment(status: dict[str, Any], runner_config: Any) -> None:
    """Take the environment's values out of the `command` artifact: ansible-runner writes them all, secrets too."""
    path = Path(runner_config.artifact_dir) / "command"
    written = atomic.read_json(path)
    if isinstance(written, dict) and isinstance(written.get("env"), dict):
        atomic.write_json(path, {**written, "env": sorted(written["env"])}, mode=0o600)


def tell(args: argparse.Namespace, answer: dict[str, Any]) -> None:
    """Call the hook; its failure is told and changes nothing."""
    if not args.hook or (args.hook_on == "failed" and answer["rc"] == 0):
        return
    event = {"event": f"play.{'done' if answer['rc'] == 0 else 'failed'}", "text": sentence(answer), **answer}
    try:
        notify.send(event, notify.Settings(command=[args.hook]))
    except EyrieError as error:
        sys.stderr.write(f"eyrie: {error}\n")


def sentence(answer: dict[str, Any]) -> str:
    """One line of the summary."""
    text = f"{answer['playbook']} -l {answer['limit']}: {answer['status']}, {answer['changed']} changed"
    for item in answer["failed"][:1]:
        text += f". {item['host']}: {item['task']}: {item['message']}"
        if item["doctor"]:
            text += f" Cause: {item['doctor']['cause']} Cure: {item['doctor']['cure']}"
    return text


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        answer = run(args)
    except EyrieError as error:
        sys.stdout.write(json.dumps({"error": error.as_dict()}, ensure_ascii=False) + "\n")
        sys.stderr.write(f"eyrie: {error}\n")
        return 2
    tell(args, answer)
    sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
    return int(answer["rc"])


if __name__ == "__main__":
    sys.exit(main())

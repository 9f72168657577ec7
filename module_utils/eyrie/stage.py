# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""The one driver that the stage modules share: plan -> compare -> act -> wait -> result."""

from __future__ import annotations

import json
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.eyrie.cli import Cli, CliError, describe
from ansible.module_utils.eyrie.estimate import estimate

ARGUMENTS = {
    "spec": {"type": "dict", "required": True},
    "cli": {"type": "path"},
    "wait": {"type": "bool", "default": True},
    "poll": {"type": "float", "default": 2.0},
    "timeout": {"type": "int", "default": 0},
}


def default_cli(spec):
    return "%s/venv/bin/eyrie" % str(spec.get("root", "")).rstrip("/")


def main(stage):
    """Run a stage module to its one exit."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = Driver(module, stage).run()
    except CliError as error:
        module.fail_json(msg=error.msg, stage=stage, **error.result)
    module.exit_json(**result)


class Driver(object):
    """Bring one stage up to date, or say what would be done."""

    def __init__(self, module, stage):
        self.module = module
        self.stage = stage
        self.spec = module.params["spec"]
        self.cli = Cli(module, module.params["cli"] or default_cli(self.spec))

    def run(self):
        plan = self.plan()
        result = {
            "changed": not plan["up_to_date"],
            "stage": self.stage,
            "plan": plan,
            "diff": as_diff(self.stage, plan),
            "finished": plan["up_to_date"],
        }
        if plan["up_to_date"]:
            result["msg"] = "%s is up to date (%s)." % (self.stage, plan["fingerprint"][:12])
            result["record"] = plan.get("record")
            return result
        refused = [gate for gate in plan["gates"] if not gate["ok"]]
        if refused:
            raise CliError(
                "%s is refused before it starts: %s" % (self.stage, " ".join(gate["message"] for gate in refused)),
                plan=plan,
                diff=result["diff"],
            )
        if self.module.check_mode:
            result["msg"] = "%s would run: %s" % (self.stage, reasons(plan))
            return result
        if not self.cli.installed:
            raise CliError(
                "The node package is not installed: %s is missing." % self.cli.command,
                todo="Run playbooks/provision.yml (train.yml does).",
            )
        result.update(self.cli.call("start", self.stage, spec=self.spec))
        if self.module.params["wait"]:
            result.update(self.wait())
        return result

    def plan(self):
        """The node package's plan, or on a host without it the forecast from settings alone."""
        if self.cli.installed:
            return self.cli.call("plan", self.stage, spec=self.spec)
        return unplanned(self.stage, self.spec)

    def wait(self):
        """Wait until the stage's job ends; its failure is the task's."""
        deadline = self.module.params["timeout"] and time.time() + self.module.params["timeout"]
        while True:
            status = self.status()
            if status["finished"]:
                return status
            if deadline and time.time() > deadline:
                raise CliError(
                    "%s is still running after %s s; it goes on without this task." % (self.stage, self.module.params["timeout"]),
                    todo="Run again to attach to it.",
                    status=status,
                )
            time.sleep(self.module.params["poll"])

    def status(self):
        return stage_status(self.cli, self.stage, self.spec)


def stage_status(cli, stage, spec):
    """{finished, record, progress}; raises CliError when the stage failed or was interrupted."""
    answer = cli.call("status", stage, "--root", spec["root"], "--run", str(spec["run"]))
    status = answer["stages"][0]
    if status["status"] in ("failed", "interrupted"):
        raise CliError(
            "%s %s. %s" % (stage, status["status"], describe(status.get("error")) or "It was killed."),
            status=status,
            todo="Run again: it resumes. Log: %s" % status["log"],
        )
    done = status["status"] == "done"
    return {
        "finished": done,
        "progress": status.get("progress"),
        "progress_text": progress_text(stage, status.get("progress")),
        "record": {key: status.get(key) for key in ("seconds", "account", "bytes", "figures")} if done else None,
    }


def unplanned(stage, spec):
    """The plan of a host where nothing is installed yet."""
    return {
        "stage": stage,
        "fingerprint": "",
        "up_to_date": False,
        "status": "absent",
        "differences": [{"name": "node package", "current": "absent", "desired": "installed"}],
        "inputs": {},
        "outputs": "",
        "forecast": estimate(stage, spec),
        "gates": [],
        "running": None,
        "record": None,
    }


def reasons(plan):
    """Why a stage would run, in one line."""
    shown = ["%s: %s -> %s" % (d["name"], brief(d["current"]), brief(d["desired"])) for d in plan["differences"][:4]]
    more = len(plan["differences"]) - len(shown)
    return "; ".join(shown) + ("; and %d more" % more if more > 0 else "")


def brief(value, limit=48):
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def as_diff(stage, plan):
    """Differences as Ansible shows them with --diff."""
    before = dict((d["name"], d["current"]) for d in plan["differences"])
    after = dict((d["name"], d["desired"]) for d in plan["differences"])
    return {
        "before_header": "%s (as it is)" % stage,
        "after_header": "%s (as declared)" % stage,
        "before": as_lines(before),
        "after": as_lines(after),
    }


def as_lines(values):
    return "".join("%s: %s\n" % (name, json.dumps(values[name], sort_keys=True)) for name in sorted(values))


def progress_text(stage, progress):
    """'capture 12,340/83,288 samples, 1.9 TB, 14.2/s, 3 h 12 min left'."""
    if not progress:
        return "%s: starting" % stage
    text = "%s: %s" % (stage, progress["phase"])
    if progress["total"]:
        text += " {:,}/{:,} {}".format(progress["done"], progress["total"], progress["unit"])
    if progress["bytes"]:
        text += ", " + human_bytes(progress["bytes"])
    if progress["rate"]:
        text += ", %.3g/s" % progress["rate"]
    if progress["eta_s"] is not None:
        text += ", %s left" % human_seconds(progress["eta_s"])
    for key in sorted(progress.get("detail") or {}):
        text += ", %s %s" % (key, brief(progress["detail"][key], 24))
    return text


def human_bytes(size):
    size = float(size)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return ("%d %s" if unit == "B" else "%.1f %s") % (size, unit)
        size /= 1000


def human_seconds(seconds):
    seconds = int(round(seconds))
    if seconds < 100:
        return "%d s" % seconds
    minutes = (seconds + 30) // 60
    if minutes < 60:
        return "%d min" % minutes
    return "%d h %02d min" % (minutes // 60, minutes % 60)

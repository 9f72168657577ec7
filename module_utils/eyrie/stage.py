# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""The one driver that the stage modules share: plan -> compare -> act -> wait -> result."""

from __future__ import annotations

import json
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.eyrie.cli import Cli, CliError, describe
from ansible.module_utils.eyrie.doctor import findings, sentence
from ansible.module_utils.eyrie.estimate import estimate
from ansible.module_utils.eyrie.text import progress_text, reasons

ARGUMENTS = {
    "spec": {"type": "dict", "required": True},
    "cli": {"type": "path"},
    "wait": {"type": "bool", "default": True},
    "poll": {"type": "float", "default": 2.0},
    "timeout": {"type": "int", "default": 0},
}

#: in reading order, as src/eyrie/core/registry.py has them
STAGES = ("target", "dataset", "responses", "tokens", "hidden_states", "draft", "benchmark", "report")


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
        since = time.time()
        result.update(self.cli.call("start", self.stage, spec=self.spec))
        result["since"] = since if result.get("started") else 0
        if self.module.params["wait"]:
            result.update(self.wait(plan["fingerprint"], result["since"]))
        return result

    def plan(self):
        """The node package's plan, or on a host without it the forecast from settings alone."""
        if not self.cli.installed:
            return unplanned(self.stage, self.spec)
        try:
            return self.cli.call("plan", self.stage, spec=self.spec)
        except CliError:
            other = self.cli.replaced_by(self.spec)
            if other and self.module.check_mode:  # the play itself would replace the package before this task
                return unplanned(self.stage, self.spec, other)
            raise

    def wait(self, fingerprint, since):
        """Wait until the stage's job ends; its failure is the task's."""
        limit = self.module.params["timeout"]
        deadline = limit and time.time() + limit
        while True:
            step = self.module.params["poll"]
            if deadline:
                step = max(0.0, min(step, deadline - time.time()))
            status = wait_stage(self.cli, self.stage, self.spec, fingerprint, since, step)
            if status["finished"]:
                return status
            if deadline and time.time() >= deadline:
                raise CliError(
                    "%s is still running after %s s; it goes on without this task." % (self.stage, limit),
                    todo="Run again to attach to it.",
                    status=status,
                )


def wait_stage(cli, stage, spec, fingerprint, since, seconds):
    """Wait up to `seconds`: {finished, status, record, progress, progress_text}; CliError when the job failed."""
    where = ["--root", spec["root"], "--run", str(spec["run"])]
    what = ["--fingerprint", fingerprint, "--since", repr(float(since)), "--seconds", str(seconds)]
    status = cli.call("wait", stage, *(where + what))
    if status["status"] in ("failed", "interrupted"):
        found = findings(cli, spec, stage)
        said = describe(status.get("error")) or "It was killed."
        raise CliError(
            "%s %s. %s%s" % (stage, status["status"], said, sentence(found)),
            status=status,
            doctor=found,
            error=status.get("error") or {},
            todo="Run again: it resumes. Log: %s" % status["log"],
        )
    status["progress_text"] = progress_text(stage, status["progress"])
    return status


ABSENT = {"name": "node package", "current": "absent", "desired": "installed"}


def unplanned(stage, spec, difference=ABSENT):
    """The plan of a host where nothing is installed yet, or a package that does not know this spec."""
    return {
        "stage": stage,
        "fingerprint": "",
        "up_to_date": False,
        "status": "absent",
        "differences": [difference],
        "inputs": {},
        "outputs": "",
        "forecast": estimate(stage, spec),
        "gates": [],
        "running": None,
        "record": None,
    }


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

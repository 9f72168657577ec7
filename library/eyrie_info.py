#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Read what a run would do, where it stands and what it made."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_info
short_description: Read what a run would do, where it stands and what it made
description:
  - Reads only; the host is never changed.
  - On a host without the node package the plan is made of the profile's planning figures, and nothing fails.
options:
  query:
    description:
      - C(plan) compares every stage with the spec.
      - C(wait) looks at the job of O(stage) until it ends or O(wait) seconds are over; fails when the job failed.
      - C(status) says where every stage stands.
      - C(verify) re-reads every output and names each fault.
      - C(summary) reads the report of the finished run.
    type: str
    choices: [plan, wait, status, verify, summary]
    default: plan
  stage:
    description: The stage to wait for.
    type: str
  fingerprint:
    description: Fingerprint of the job to wait for, from the plan of O(stage).
    type: str
  since:
    description: When that job was started, as the stage's module returned it; records of earlier attempts do not count.
    type: float
    default: 0
  wait:
    description: Seconds to look at most; for a job that runs for long the module looks up to a minute at a time.
    type: float
    default: 5
extends_documentation_fragment: [eyrie, eyrie.cli, eyrie.reads]
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Show what a run would do
  eyrie_info:
    spec: "{{ eyrie_spec }}"

- name: Look at a running stage
  eyrie_info:
    spec: "{{ eyrie_spec }}"
    query: wait
    stage: draft
    fingerprint: "{{ result.plan.fingerprint }}"
"""

RETURN = r"""
lines:
  description: The answer as lines of text, for people.
  type: list
  elements: str
  returned: with C(plan), C(status), C(verify) and C(summary)
installed:
  description: Whether the node package is there.
  type: bool
  returned: always
stages:
  description: Plan or state of each stage, in order.
  type: list
  elements: dict
  returned: with C(plan) and C(status)
finished:
  description: Whether the stage is done.
  type: bool
  returned: with C(wait)
progress_text:
  description: Done of total, rate and time left, in one line.
  type: str
  returned: with C(wait)
ok:
  description: Whether every output is whole.
  type: bool
  returned: with C(verify)
report:
  description: The run's report; null when there is none.
  type: dict
  returned: with C(summary)
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.eyrie.cli import Cli, CliError
from ansible.module_utils.eyrie.estimate import estimate
from ansible.module_utils.eyrie.stage import ABSENT, STAGES, default_cli, unplanned, wait_stage
from ansible.module_utils.eyrie.text import plan_lines, status_lines, summary_lines, verify_lines

#: a job that has run for an hour is looked at for a minute at a time
GROW = 60.0
LONGEST_S = 60.0
BARE = "Nothing is installed on this host yet: the forecasts are the profile's planning figures."
OLDER = "The host's node package is another one, which cannot plan this spec; it is replaced first. It said: %s"


def plan(module, cli, spec):
    install = estimate("runtime", spec)
    price = float((spec.get("planning") or {}).get("price_hour") or 0)
    if not cli.installed:
        plans = [unplanned(stage, spec) for stage in STAGES]
        return {"stages": plans, "lines": [*plan_lines(plans, dict(ABSENT, forecast=install), price), BARE]}
    other = cli.replaced_by(spec)
    note = other and dict(other, forecast={"bytes": 0, "seconds": 5})
    try:
        plans = cli.call("plan", "all", spec=spec)["stages"]
    except CliError as error:
        if not other:
            raise
        plans = [unplanned(stage, spec, other) for stage in STAGES]
        return {"stages": plans, "lines": [*plan_lines(plans, note, price), OLDER % error.msg]}
    return {"stages": plans, "lines": plan_lines(plans, note, price)}


def wait(module, cli, spec):
    params = module.params
    seconds = params["wait"]
    look = wait_stage(cli, params["stage"], spec, params["fingerprint"], params["since"], 0)
    if not look["finished"] and seconds > 0:
        seconds = max(seconds, min(LONGEST_S, look["seconds"] / GROW))
        look = wait_stage(cli, params["stage"], spec, params["fingerprint"], params["since"], seconds)
    return look


def status(module, cli, spec):
    if not cli.installed:
        return {"stages": [], "lines": ["Nothing is installed here: no stage has run."]}
    answer = cli.call("status", "--root", spec["root"], "--run", str(spec["run"]), "--json")
    return {"stages": answer["stages"], "lines": status_lines(answer["stages"]) + answer.get("lines", [])}


def verify(module, cli, spec):
    if not cli.installed:
        return {"ok": True, "faults": {}, "lines": ["Nothing is installed here: there is nothing to verify."]}
    answer = cli.call("verify", "all", spec=spec)
    return {"ok": answer["ok"], "faults": answer["faults"], "lines": verify_lines(answer)}


def summary(module, cli, spec):
    if not cli.installed:
        return {"report": None, "lines": []}
    outputs = cli.call("plan", "report", spec=spec)["outputs"]
    try:
        with open(os.path.join(outputs, "report.json"), encoding="utf-8") as stream:
            report = json.load(stream)
    except (IOError, ValueError) as error:
        return {"report": None, "lines": ["There is no report yet: %s" % error]}
    return {"report": report, "lines": summary_lines(report)}


QUERIES = {"plan": plan, "wait": wait, "status": status, "verify": verify, "summary": summary}


def main():
    module = AnsibleModule(
        argument_spec={
            "spec": {"type": "dict", "required": True},
            "cli": {"type": "path"},
            "query": {"type": "str", "choices": ["plan", "wait", "status", "verify", "summary"], "default": "plan"},
            "stage": {"type": "str"},
            "fingerprint": {"type": "str"},
            "since": {"type": "float", "default": 0},
            "wait": {"type": "float", "default": 5},
        },
        required_if=[("query", "wait", ("stage", "fingerprint"))],
        supports_check_mode=True,
    )
    spec = module.params["spec"]
    cli = Cli(module, module.params["cli"] or default_cli(spec))
    query = module.params["query"]
    try:
        result = QUERIES[query](module, cli, spec)
    except CliError as error:
        module.fail_json(msg=error.msg, query=query, **error.result)
    module.exit_json(changed=False, query=query, installed=cli.installed, **result)


if __name__ == "__main__":
    main()

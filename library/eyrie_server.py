#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Make one profile of the target serve, with proof, or stop whatever serves."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_server
short_description: Make one server profile of the target serve, with proof
description:
  - The profiles C(baseline), C(extract) and C(eagle3) exclude each other. Started means that exactly this profile, with
    exactly the declared arguments, serves and has proven it - owner of the port, model, speculation in force, a real
    answer. A profile that does so already is left alone.
  - Everything that can be checked is checked before the running server is touched. When a switch fails, the profile
    that served before is brought back and the module fails with the reason and the last log lines.
  - The switch runs under the host's supervisor and outlives the connection; a second call attaches to it.
options:
  profile:
    description: The profile to serve. Needed unless O(state=stopped).
    type: str
    choices: [baseline, extract, eagle3]
  state:
    description:
      - V(started) serves O(profile).
      - V(awaited) waits for a switch that an earlier task began, and changes nothing.
      - V(stopped) stops whatever profile serves and waits until its GPU memory is free.
    type: str
    choices: [started, awaited, stopped]
    default: started
  wait:
    description: Seconds to wait for the switch; it goes on after that. -1 waits until its end, 0 not at all.
    type: float
    default: -1
attributes:
  check_mode:
    support: full
    description: Says which unit would stop and start. Gates whose input is not made yet are not held against it.
  diff_mode:
    support: full
    description: Shows each argument and variable that differs from what runs.
  idempotent:
    support: full
extends_documentation_fragment: [eyrie, eyrie.cli]
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Serve the draft
  eyrie_server:
    spec: "{{ eyrie_spec }}"
    profile: eagle3

- name: Free the GPUs
  eyrie_server:
    spec: "{{ eyrie_spec }}"
    state: stopped
"""

RETURN = r"""
plan:
  description: Which units would stop and start, differences and gates.
  type: dict
  returned: with --check or --diff
serving:
  description: Base URL, model, profile, fingerprint, identity as proven, and the times of the last switch.
  type: dict
  returned: once it serves
finished:
  description: Whether the profile serves now.
  type: bool
  returned: when O(state) is not V(stopped)
progress_text:
  description: Where the switch stands.
  type: str
  returned: while it is under way
stopped:
  description: Profiles that were (in check mode, would be) stopped.
  type: list
  elements: str
  returned: when O(state=stopped)
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.eyrie.cli import Cli, CliError
from ansible.module_utils.eyrie.stage import as_diff, default_cli

LOOK_S = 5.0


class Server(object):
    """One call of the module."""

    def __init__(self, module):
        self.module = module
        self.spec = module.params["spec"]
        self.profile = module.params["profile"]
        self.cli = Cli(module, module.params["cli"] or default_cli(self.spec))

    def run(self):
        if not self.cli.installed:
            return self.bare()
        return getattr(self, self.module.params["state"])()

    def call(self, verb, *args):
        return self.cli.call("server", verb, *args, spec=self.spec)

    def bare(self):
        """A host without the node package: nothing serves there."""
        if self.module.params["state"] == "stopped":
            return {"changed": False, "stopped": []}
        if not self.module.check_mode:
            raise CliError(
                "The node package is not installed: %s is missing." % self.cli.command,
                todo="Run playbooks/provision.yml (train.yml and serve.yml do).",
            )
        text = "Would serve %s once the node package is installed." % self.profile
        return {"changed": self.module.params["state"] == "started", "finished": False, "msg": text}

    def started(self):
        result = {}
        if self.module.check_mode or self.module._diff:
            plan = self.call("plan", self.profile)
            result = {"plan": plan, "diff": as_diff("server %s" % self.profile, plan), "finished": plan["up_to_date"]}
            if self.module.check_mode:
                return self.planned(plan, result)
        begun = self.call("begin", self.profile)
        result.update(changed=begun["started"], finished=begun["finished"], serving=begun.get("serving"))
        if not begun["finished"]:
            result.update(self.wait())
        return result

    def planned(self, plan, result):
        refused = [gate for gate in plan["gates"] if not gate["ok"] and not gate["pending"]]
        if refused:
            text = " ".join("[%s] %s" % (gate["name"], gate["message"]) for gate in refused)
            raise CliError("%s would be refused: %s" % (self.profile, text), **result)
        said = "%s serves already." % self.profile
        if not plan["up_to_date"]:
            stops = ", ".join(plan["stops"]) or "nothing"
            said = "Would stop %s and start %s." % (stops, ", ".join(plan["starts"]))
        pending = " ".join(gate["message"] for gate in plan["gates"] if not gate["ok"])
        return dict(result, changed=not plan["up_to_date"], msg=(said + " " + pending).strip())

    def awaited(self):
        return dict(self.wait(), changed=False)

    def wait(self):
        """Look at the switch until it ends or `wait` is over; its failure is the task's."""
        limit = self.module.params["wait"]
        end = time.time() + limit
        while True:
            step = LOOK_S if limit < 0 else max(0.0, min(LOOK_S, end - time.time()))
            answer = self.call("look", self.profile, "--seconds", str(step))
            if answer["finished"] or (limit >= 0 and time.time() >= end):
                found = {"finished": answer["finished"], "serving": answer["serving"]}
                return found if answer["finished"] else dict(found, progress_text=answer["text"])

    def stopped(self):
        active = self.call("status")["active"]
        result = {"changed": bool(active), "stopped": active}
        if active and not self.module.check_mode:
            self.call("stop")
        return result


def main():
    module = AnsibleModule(
        argument_spec={
            "spec": {"type": "dict", "required": True},
            "profile": {"type": "str", "choices": ["baseline", "extract", "eagle3"]},
            "state": {"type": "str", "choices": ["started", "awaited", "stopped"], "default": "started"},
            "wait": {"type": "float", "default": -1},
            "cli": {"type": "path"},
        },
        required_if=[("state", "started", ["profile"]), ("state", "awaited", ["profile"])],
        supports_check_mode=True,
    )
    try:
        result = Server(module).run()
    except CliError as error:
        module.fail_json(msg=error.msg, **error.result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()

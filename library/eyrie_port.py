#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""One step of carrying a run from one host to another."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_port
short_description: One step of carrying a run from one host to another
description:
  - Speaks to C(eyrie port) (or C(eyrie teardown)) on a host; the steps and their order are the role C(port)'s.
  - Reading steps are O(action=survey), O(action=plan), O(action=wait), O(action=check), O(action=measure),
    O(action=identities), O(action=agree) and O(action=teardown_plan).
options:
  action:
    description:
      - C(survey) reads what the run holds on the source; C(plan) says on the destination what is copied, made again and
        reused; C(pack) lists what travels with its checksums; C(prepare) makes the folder that it arrives in.
      - C(key) makes or removes the key pair of one port; C(probe) measures the link from host to host, C(measure) the
        way through the controller.
      - C(start) sends under the source's supervisor and C(wait) looks at that; with O(sources) a process of its own
        sends from this machine, and O(request) names the folder of that job. C(send) sends in the foreground.
      - C(check) names what did not arrive as it left; C(prove) does so where the pack lies; C(land) puts it in place.
      - C(identities) and C(agree) compare the hosts of a group.
      - C(teardown_plan), C(teardown_pack), C(teardown_mark) say, list and remember what is saved of a host.
    type: str
    required: true
    choices: [survey, plan, pack, prepare, key, probe, start, wait, send, check, prove, land,
              measure, identities, agree, teardown_plan, teardown_pack, teardown_mark]
  request:
    description: What the step needs, as C(eyrie port --help) lists it; C(spec) is the run's full spec on that host.
    type: dict
    default: {}
  root:
    description: The host's root folder, whose C(venv/bin/eyrie) is asked.
    type: path
  sources:
    description: The folder with the node package's sources, asked in place of an installed one (on the controller).
    type: path
  seconds:
    description: How long one look of C(wait) lasts.
    type: float
    default: 5
attributes:
  check_mode:
    support: partial
    description: Reading steps read; the others say that they would act.
  diff_mode:
    support: none
    description: The plan's lines say what differs.
  idempotent:
    support: full
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Read what the run holds
  eyrie_port:
    action: survey
    root: "{{ eyrie_root }}"
    request: {spec: "{{ eyrie_spec }}"}
"""

RETURN = r"""
answer:
  description: The node package's answer.
  type: dict
  returned: when the step was carried out
lines:
  description: The plan as lines of text.
  type: list
  elements: str
  returned: with C(plan) and C(teardown_plan)
finished:
  description: Whether everything was sent.
  type: bool
  returned: with C(wait)
"""

import sys
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.eyrie.cli import Cli, CliError, describe
from ansible.module_utils.eyrie.text import human_bytes, human_seconds

READING = ("survey", "plan", "wait", "check", "measure", "identities", "agree", "teardown_plan")
CHANGING = ("prepare", "send", "start", "land", "teardown_mark")
WORKING = ("pack", "key", "probe", "prove", "teardown_pack")
TEARDOWN = ("teardown_plan", "teardown_pack", "teardown_mark")
ABSENT = "The node package is not there: it is installed first, then looked again."


class Checkout(Cli):
    """The node package's sources run by this very Python: for the controller, where nothing is installed."""

    def __init__(self, module, sources):
        super(Checkout, self).__init__(module, sys.executable)
        self.sources = sources

    def call(self, verb, *args, **kwargs):
        argv = [self.command, "-m", "eyrie", verb, *args]
        data = self.module.jsonify(kwargs.get("spec"))
        rc, out, err = self.module.run_command(argv, data=data, environ_update={"PYTHONPATH": self.sources})
        return self._answer(argv[2:], rc, out, err)


def client(module):
    if module.params["sources"]:
        return Checkout(module, module.params["sources"])
    return Cli(module, "%s/venv/bin/eyrie" % module.params["root"].rstrip("/"))


def ask(module, cli):
    """The answer of one step, as the module returns it."""
    action, request = module.params["action"], module.params["request"]
    if not cli.installed:
        if action in ("survey", "plan", "identities", "agree", "teardown_plan"):
            return {"installed": False, "lines": [ABSENT]}
        raise CliError("The node package is not there: no %s." % cli.command, todo="Run playbooks/provision.yml.")
    here = "_here" if module.params["sources"] else ""
    if action == "wait":
        return wait(cli, "status" + here, request, module.params["seconds"])
    verb, _, rest = action.partition("_") if action in TEARDOWN else ("port", "", action)
    if action == "start":
        rest += here
    answer = cli.call(verb, rest, spec=request)
    return {"installed": True, "answer": answer, "lines": answer.get("lines", [])}


def wait(cli, verb, request, seconds):
    """Look at the sending job until it ends or the seconds are over."""
    deadline = time.time() + seconds
    while True:
        answer = cli.call("port", verb, spec=request)
        if answer["error"]:
            raise CliError(describe(answer["error"]), error=answer["error"], todo="Log: %s" % answer["log"])
        if answer["lost"]:
            raise CliError("The sending job left no result.", todo="Run again: it goes on. Log: %s" % answer["log"])
        if answer["finished"] or time.time() >= deadline:
            told = {"finished": answer["finished"], "progress_text": progress(answer)}
            return {"installed": True, "answer": answer, **told}
        time.sleep(min(1.0, max(0.05, deadline - time.time())))


def progress(answer):
    """'port: 1.2 GB of 3.4 GB, 80.0 MB/s, 28 s left'."""
    found = answer.get("progress")
    if not found:
        return "port: starting"
    text = "port: %s of %s" % (human_bytes(found["done"]), human_bytes(found["total"]))
    if found["rate"] > 0:
        text += ", %s/s" % human_bytes(found["rate"])
    if found["eta_s"]:
        text += ", %s left" % human_seconds(found["eta_s"])
    return text


def main():
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "required": True, "choices": sorted(READING + CHANGING + WORKING)},
            "request": {"type": "dict", "default": {}},
            "root": {"type": "path"},
            "sources": {"type": "path"},
            "seconds": {"type": "float", "default": 5},
        },
        required_one_of=[("root", "sources")],
        mutually_exclusive=[("root", "sources")],
        supports_check_mode=True,
    )
    action = module.params["action"]
    if module.check_mode and action not in READING:
        module.exit_json(changed=True, msg="would %s" % action.replace("_", " "))
    try:
        result = ask(module, client(module))
    except CliError as error:
        module.fail_json(msg=error.msg, action=action, **error.result)
    module.exit_json(changed=action in CHANGING, action=action, **result)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Wipe secrets, data or the environment of a host, unless something would be lost."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_teardown
short_description: Wipe secrets, data or the environment of a host, unless something would be lost
description:
  - Refuses to remove data while results on the host are not saved elsewhere, or while something runs.
  - Secrets alone may always be wiped. Files that are not Eyrie's stay.
options:
  wipe:
    description: What to remove; C(environment) is the Python environment and the supervisor's files.
    type: list
    elements: str
    choices: [secrets, data, environment]
    default: []
  accept_loss:
    description: Holdings that may be lost, by the names that the plan shows.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Says what would be wiped, and refuses what would be refused.
  diff_mode:
    support: none
    description: The lines say what is there.
  idempotent:
    support: full
extends_documentation_fragment: [eyrie, eyrie.cli]
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Wipe the tokens of a rented host
  eyrie_teardown:
    spec: "{{ eyrie_spec }}"
    wipe: [secrets]
"""

RETURN = r"""
lines:
  description: What the host holds, what of it is saved, what a wipe takes.
  type: list
  elements: str
  returned: always
wiped:
  description: Files and folders that were removed.
  type: list
  elements: str
  returned: when something was wiped
left:
  description: What lies below the root and is not Eyrie's.
  type: list
  elements: str
  returned: when something was wiped
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.eyrie.cli import Cli, CliError
from ansible.module_utils.eyrie.stage import default_cli


def run(module, cli):
    spec, wipe, accept = module.params["spec"], module.params["wipe"], module.params["accept_loss"]
    if not cli.installed:
        return {"changed": False, "lines": ["Nothing of Eyrie is installed here: there is nothing to wipe."]}
    plan = cli.call("teardown", "plan", spec={"spec": spec, "accept": accept})
    held = {"secrets": plan["secrets"], "data": plan["holdings"], "environment": [cli.command]}
    wanted = [kind for kind in wipe if held[kind]]
    result = {"changed": bool(wanted), "lines": plan["lines"], "plan": plan}
    refused = [gate["message"] for gate in plan["gates"] if not gate["ok"]]
    if refused and ("data" in wanted or "environment" in wanted):
        raise CliError("The host is not wiped: %s" % " ".join(refused), lines=plan["lines"], plan=plan)
    if wanted and not module.check_mode:
        result.update(cli.call("teardown", "wipe", spec={"spec": spec, "what": wanted, "accept": accept}))
    return result


def main():
    module = AnsibleModule(
        argument_spec={
            "spec": {"type": "dict", "required": True},
            "wipe": {
                "type": "list",
                "elements": "str",
                "choices": ["secrets", "data", "environment"],
                "default": [],
            },
            "accept_loss": {"type": "list", "elements": "str", "default": []},
            "cli": {"type": "path"},
        },
        supports_check_mode=True,
    )
    cli = Cli(module, module.params["cli"] or default_cli(module.params["spec"]))
    try:
        result = run(module, cli)
    except CliError as error:
        module.fail_json(msg=error.msg, **error.result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Put the reports of two or more runs side by side."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_compare
short_description: Put the reports of two or more runs side by side
description:
  - Writes one page, C(<root>/compare/<names>.html), in which the figures of the named runs stand beside each other,
    with the settings, versions and machines that differ.
  - A name is a run of this root, or a host whose report.json was put into C(<root>/compare/<name>/).
options:
  runs:
    description: Two or more names.
    type: list
    elements: str
    required: true
attributes:
  check_mode:
    support: full
    description: Says whether the page would change, and writes nothing.
  diff_mode:
    support: none
    description: The page is made of reports; it has no settings of its own.
  idempotent:
    support: full
extends_documentation_fragment: [eyrie, eyrie.cli]
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Compare two runs of this host
  eyrie_compare:
    spec: "{{ eyrie_spec }}"
    runs: [main, longer]
"""

RETURN = r"""
page:
  description: Path of the page on the node.
  type: str
  returned: always
lines:
  description: The figures side by side, as lines of text.
  type: list
  elements: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.eyrie.cli import Cli, CliError
from ansible.module_utils.eyrie.stage import default_cli


def main():
    module = AnsibleModule(
        argument_spec={
            "spec": {"type": "dict", "required": True},
            "cli": {"type": "path"},
            "runs": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )
    spec = module.params["spec"]
    cli = Cli(module, module.params["cli"] or default_cli(spec))
    if not cli.installed:
        module.fail_json(
            msg="The node package is not installed: %s is missing." % cli.command,
            todo="Run playbooks/provision.yml; reports are made on the node.",
        )
    check = ["--check"] if module.check_mode else []
    try:
        module.exit_json(**cli.call("compare", "--root", spec["root"], *(check + module.params["runs"])))
    except CliError as error:
        module.fail_json(msg=error.msg, **error.result)


if __name__ == "__main__":
    main()

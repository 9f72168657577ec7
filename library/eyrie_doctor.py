#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Name the cause and the cure of what went wrong in a run."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_doctor
short_description: Name the cause and the cure of what went wrong in a run
description:
  - Compares logs, stage records and facts of the host with the catalogue of known failures.
  - Reads only; the host is never changed.
options:
  stage:
    description: Look at one stage only. Without it every stage that is not done is looked at, or all when all are.
    type: str
    choices: [target, dataset, responses, tokens, hidden_states, draft, benchmark, report]
extends_documentation_fragment: [eyrie, eyrie.cli, eyrie.reads]
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Look for known failures
  eyrie_doctor:
    spec: "{{ eyrie_spec }}"
"""

RETURN = r"""
findings:
  description: Known failures that were recognised, best first (id, title, stage, cause, cure, where, line).
  type: list
  elements: dict
  returned: always
last_lines:
  description: The end of the newest log, when nothing was recognised.
  type: list
  elements: str
  returned: always
looked_at:
  description: Logs, records and facts that were read.
  type: list
  elements: str
  returned: always
lines:
  description: The findings as lines of text, for people.
  type: list
  elements: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.eyrie.cli import Cli, CliError
from ansible.module_utils.eyrie.stage import STAGES, default_cli


def lines(answer):
    """Cause and cure of each finding."""
    shown = []
    for found in answer["findings"]:
        stage = f" [{found['stage']}]" if found["stage"] else ""
        shown += [found["title"] + stage, "  cause: " + found["cause"], "  cure:  " + found["cure"]]
        shown += [f"  seen:  {found['where']}: {found['line']}"]
    if not shown and answer["last_lines"]:
        shown = ["No known failure was recognised. The newest log ends:"] + [
            "  " + line for line in answer["last_lines"]
        ]
    return shown or ["Nothing wrong was found."]


def main():
    module = AnsibleModule(
        argument_spec={
            "spec": {"type": "dict", "required": True},
            "cli": {"type": "path"},
            "stage": {"type": "str", "choices": list(STAGES)},
        },
        supports_check_mode=True,
    )
    spec = module.params["spec"]
    cli = Cli(module, module.params["cli"] or default_cli(spec))
    if not cli.installed:
        said = f"The node package is not installed here ({cli.command}): run playbooks/provision.yml."
        module.exit_json(changed=False, findings=[], last_lines=[], looked_at=[], lines=[said])
    stage = [module.params["stage"]] if module.params["stage"] else []
    try:
        answer = cli.call("doctor", *stage, "--root", spec["root"], "--run", str(spec["run"]), "--json")
    except CliError as error:
        module.fail_json(msg=error.msg, **error.result)
    module.exit_json(changed=False, lines=lines(answer), **answer)


if __name__ == "__main__":
    main()

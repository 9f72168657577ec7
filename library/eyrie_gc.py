#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Delete what can be made again."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_gc
short_description: Delete what can be made again
description:
  - Deletes outputs of earlier settings, hidden states that may be given up, unused target models, old canary runs,
    half-made files and old logs, as the retention settings of the spec (C(execution.retention)) allow.
  - What the present settings of any run need, what a stage works on now, and all that a kept draft was made from,
    stays.
attributes:
  check_mode:
    support: full
    description: Lists what would be deleted, why it may be, and what it took to make.
  diff_mode:
    support: full
    description: Shows the paths that go.
  idempotent:
    support: full
extends_documentation_fragment: [eyrie, eyrie.cli]
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Free the disk of what can be made again
  eyrie_gc:
    spec: "{{ eyrie_spec }}"
"""

RETURN = r"""
bytes:
  description: Bytes that were freed (in check mode, that would be).
  type: int
  returned: always
items:
  description: What was deleted (in check mode, would be), with rule, path, bytes and reason.
  type: list
  elements: dict
  returned: always
lines:
  description: The same as lines of text, with what stays and why.
  type: list
  elements: str
  returned: always
skipped:
  description: What was to be deleted and was in use by then.
  type: list
  elements: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.eyrie.cli import Cli, CliError
from ansible.module_utils.eyrie.stage import default_cli


def collect(module, cli, spec):
    """The plan in check mode; else the deletion of exactly what was planned."""
    plan = cli.call("gc", "--json", spec=spec)
    items = plan["items"]
    result = {"changed": bool(items), "items": items, "bytes": plan["bytes"], "lines": plan["lines"], "skipped": []}
    result["diff"] = {"before": "".join(item["path"] + "\n" for item in items), "after": ""}
    if items and not module.check_mode:
        done = cli.call("gc", "--apply", "--expect", plan["id"], "--json", spec=spec)
        changed = bool(done["deleted"])
        result.update(
            changed=changed, items=done["deleted"], bytes=done["bytes"], lines=done["lines"], skipped=done["skipped"]
        )
    return result


def main():
    module = AnsibleModule(
        argument_spec={"spec": {"type": "dict", "required": True}, "cli": {"type": "path"}},
        supports_check_mode=True,
    )
    spec = module.params["spec"]
    cli = Cli(module, module.params["cli"] or default_cli(spec))
    if not cli.installed:
        module.exit_json(
            changed=False, items=[], bytes=0, skipped=[], lines=["Nothing is installed here: nothing to delete."]
        )
    try:
        module.exit_json(**collect(module, cli, spec))
    except CliError as error:
        module.fail_json(msg=error.msg, **error.result)


if __name__ == "__main__":
    main()

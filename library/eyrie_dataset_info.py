#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Say source by source what the dataset stage would fetch and do, and what differs from last time."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_dataset_info
short_description: Say source by source what the dataset stage would fetch and do
description:
  - Reads only and asks no network; sizes come from the lock, from the files that are there, or from the registry.
  - On a host without the node package it goes by the registry alone, and nothing fails.
attributes:
  check_mode:
    support: full
    description: Reads the same in check mode.
  diff_mode:
    support: full
    description: Shows each setting, file and revision that differs from the last run.
  idempotent:
    support: full
extends_documentation_fragment: [eyrie, eyrie.cli]
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Show what each source would do
  eyrie_dataset_info:
    spec: "{{ eyrie_spec }}"
"""

RETURN = r"""
sources:
  description:
    - Per source its name, act (C(keep), C(process), C(fetch and process), or C(try again) for one that the last mix
      went without), fetch and read in bytes, revision, and was (the locked revision where it differs).
  type: list
  elements: dict
  returned: always
up_to_date:
  description: Whether the dataset stage has nothing to do.
  type: bool
  returned: always
lines:
  description: The answer as lines of text, for people.
  type: list
  elements: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.eyrie.cli import Cli, CliError
from ansible.module_utils.eyrie.stage import as_diff, default_cli
from ansible.module_utils.eyrie.text import human_bytes


def from_registry(spec):
    """What a host where nothing is installed yet would do: everything."""
    settings = (spec.get("stages") or {}).get("dataset") or {}
    registry = settings.get("registry") or {}
    names = list(settings.get("sources") or []) + list(settings.get("exclude_sources") or [])
    found = []
    for name in names:
        entry = registry.get(name) or {}
        hub = entry.get("kind") == "hub"
        size = int(entry.get("bytes") or 0)
        found.append(
            {
                "name": name,
                "act": "fetch and process" if hub else "process",
                "fetch": size if hub else 0,
                "read": size,
                "revision": str(entry.get("revision") or ""),
                "was": "",
            }
        )
    return found


def lines(sources, plan):
    """A line a source, then the sum and the differences."""
    width = max([len(source["name"]) for source in sources] or [0])
    shown = []
    for source in sources:
        text = "%-*s  %s" % (width, source["name"], source["act"])
        if source["fetch"]:
            text += ", %s to download" % human_bytes(source["fetch"])
        if source["revision"]:
            text += ", revision %s" % source["revision"][:12]
        if source["was"]:
            text += " (was %s)" % source["was"][:12]
        shown.append(text)
    for item in plan["differences"]:
        if item["name"] == "sources" and item["desired"] == "will be tried again":
            shown.append("%s: %s." % (item["current"], item["desired"]))
    fetch = sum(source["fetch"] for source in sources)
    shown.append("Downloads: %s. Gates: %s" % (human_bytes(fetch), gates(plan)))
    return shown


def gates(plan):
    refused = [gate["message"] for gate in plan["gates"] if not gate["ok"]]
    return " ".join(refused) or "open."


def main():
    module = AnsibleModule(
        argument_spec={"spec": {"type": "dict", "required": True}, "cli": {"type": "path"}}, supports_check_mode=True
    )
    spec = module.params["spec"]
    cli = Cli(module, module.params["cli"] or default_cli(spec))
    missing = [{"name": "node package", "current": "absent", "desired": "installed"}]
    plan = {"up_to_date": False, "differences": missing, "gates": [], "forecast": {}}
    if cli.installed:
        try:
            plan = cli.call("plan", "dataset", spec=spec)
        except CliError as error:
            module.fail_json(msg=error.msg, **error.result)
    if plan["up_to_date"]:
        said = ["The dataset is up to date: nothing is fetched, nothing is processed."]
        module.exit_json(changed=False, up_to_date=True, sources=[], lines=said)
    sources = plan["forecast"].get("sources") or from_registry(spec)
    shown = lines(sources, plan)
    diff = as_diff("dataset", plan)
    module.exit_json(changed=False, up_to_date=False, sources=sources, lines=shown, diff=diff)


if __name__ == "__main__":
    main()

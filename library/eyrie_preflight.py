#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Say whether a host is fit for the run, before anything is started."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_preflight
short_description: Say whether a host is fit for the run
description:
  - Looks at the host, the declared model and servers, and the forecast.
  - Every finding says what, why it matters and what helps.
  - Reads only. Where the profile expects a disk speed, a short file is written and removed, not in check mode.
options:
  expect:
    description:
      - What the profile expects of the host (C(eyrie_preflight) in the inventory); 0 or empty is not checked.
    type: dict
    default: {}
  runtime:
    description: The environment that will be installed, as M(eyrie_venv) is given it.
    type: dict
    default: {}
  plans:
    description: Plans of the stages, from M(eyrie_info).
    type: list
    elements: dict
    default: []
  names:
    description: Variables that nobody reads, as the controller found them.
    type: list
    elements: dict
    default: []
  controller_time:
    description: Seconds since the epoch on the controller.
    type: float
    default: 0
  fatal:
    description: Fail when there is an error among the findings.
    type: bool
    default: true
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    description: It changes nothing.
  idempotent:
    support: full
extends_documentation_fragment: [eyrie]
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Check the host
  eyrie_preflight:
    spec: "{{ eyrie_spec }}"
    expect: "{{ eyrie_preflight }}"
"""

RETURN = r"""
findings:
  description: What was found, errors first (C(check), C(level), C(what), C(why), C(cure)).
  type: list
  elements: dict
  returned: always
lines:
  description: The findings as lines of text.
  type: list
  elements: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.eyrie.estimate import estimate
from ansible.module_utils.eyrie.preflight import examine
from ansible.module_utils.eyrie.preflight.finding import EXPECT, Context
from ansible.module_utils.eyrie.preflight.host import Host
from ansible.module_utils.eyrie.stage import STAGES


def as_lines(findings):
    found = []
    for item in findings:
        found.append("%-7s %s: %s" % (item["level"], item["check"], item["what"]))
        for label, key in (("why", "why"), ("cure", "cure")):
            if item[key] and item["level"] != "info":
                found.append("        %s: %s" % (label, item[key]))
    return found


def main():
    module = AnsibleModule(
        argument_spec={
            "spec": {"type": "dict", "required": True},
            "expect": {"type": "dict", "default": {}},
            "runtime": {"type": "dict", "default": {}},
            "plans": {"type": "list", "elements": "dict", "default": []},
            "names": {"type": "list", "elements": "dict", "default": []},
            "controller_time": {"type": "float", "default": 0},
            "fatal": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    unknown = sorted(set(params["expect"]) - set(EXPECT) - {"json"})
    if unknown:
        module.fail_json(msg="Unknown expectation: %s. Known: %s." % (", ".join(unknown), ", ".join(sorted(EXPECT))))
    spec = params["spec"]
    plans = params["plans"] or [{"stage": s, "up_to_date": False, "forecast": estimate(s, spec)} for s in STAGES]
    context = Context(
        spec,
        expect={key: params["expect"][key] for key in params["expect"] if key in EXPECT},
        runtime=params["runtime"],
        plans=plans,
        names=params["names"],
        controller_time=params["controller_time"],
        check_mode=module.check_mode,
    )
    findings = examine(Host(module), context)
    errors = [item for item in findings if item["level"] == "error"]
    lines = as_lines(findings)
    if errors and params["fatal"]:
        first = "%s: %s %s" % (errors[0]["check"], errors[0]["what"], errors[0]["cure"])
        more = "" if len(errors) == 1 else " (and %d more errors)" % (len(errors) - 1)
        module.fail_json(msg="The host is not fit for the run. %s%s" % (first, more), findings=findings, lines=lines)
    module.exit_json(changed=False, findings=findings, lines=lines, fit=not errors)


if __name__ == "__main__":
    main()

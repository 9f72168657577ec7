#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Prepare and judge the canary of a run."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_canary
short_description: Prepare and judge the canary of a run
description:
  - The canary is the run's whole chain on a few dozen prompts, with the real target, servers, layers and versions, in
    a run folder of its own; a small draft is trained until it knows the prompts by heart, served and measured.
  - With O(state=prepared) the module derives the canary's spec and puts its prompts on the host.
  - With O(state=judged) it looks for faults in what the canary's stages left and fails when there are any, naming each.
options:
  spec:
    description: The run's full spec (C(eyrie_spec) in the inventory); with O(state=judged) the canary's own.
    type: dict
    required: true
  settings:
    description: What differs from the canary's defaults (prompts, answer_tokens, steps, min_acceptance, ...).
    type: dict
    default: {}
  state:
    description: What is to be done.
    type: str
    choices: [prepared, judged]
    required: true
attributes:
  check_mode:
    support: partial
    description: With O(state=prepared) it says what would be written; with O(state=judged) it does nothing.
  diff_mode:
    support: full
    description: Shows the prompts that would be written.
  idempotent:
    support: full
extends_documentation_fragment: [eyrie.cli]
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Derive the canary's spec
  eyrie_canary:
    spec: "{{ eyrie_spec }}"
    state: prepared
  register: eyrie_canary_result

- name: Judge the canary
  eyrie_canary:
    spec: "{{ eyrie_canary_result.spec }}"
    state: judged
"""

RETURN = r"""
spec:
  description: The canary's spec.
  type: dict
  returned: with O(state=prepared)
stages:
  description: The stages to bring up to date with it, in order.
  type: list
  elements: str
  returned: with O(state=prepared)
forecast:
  description: Bytes and seconds that the canary takes.
  type: dict
  returned: with O(state=prepared)
verdict:
  description: Whether it is sound, its faults, and trained, untrained and predicted acceptance length.
  type: dict
  returned: with O(state=judged)
lines:
  description: The same in words.
  type: list
  elements: str
  returned: always
"""

import json
import os
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.eyrie import canary
from ansible.module_utils.eyrie.cli import Cli, CliError
from ansible.module_utils.eyrie.estimate import estimate
from ansible.module_utils.eyrie.stage import default_cli
from ansible.module_utils.eyrie.text import human_bytes, human_seconds


def forecast(spec, values):
    """Bytes and seconds of the whole canary, from the profile's planning figures."""
    parts = [estimate(stage, spec, samples=values["prompts"]) for stage in canary.STAGES if stage != "target"]
    return {"bytes": sum(part["bytes"] for part in parts), "seconds": sum(part["seconds"] for part in parts)}


def prepare(module, spec):
    """Derive, and bring the file of prompts to what it should be."""
    values = canary.settings(module.params["settings"])
    derived = canary.derive(spec, module.params["settings"])
    text = canary.prompts_text(values["prompts"])
    path = os.path.join(canary.folder(spec), canary.PROMPTS)
    before = read(path)
    if before != text and not module.check_mode:
        write(module, path, text)
    cost = forecast(derived, values)
    said = "canary {}: {} prompts, about {} and {}".format(
        derived["run"], values["prompts"], human_bytes(cost["bytes"]), human_seconds(cost["seconds"])
    )
    diff = {"before_header": path, "after_header": path, "before": before, "after": text}
    return {
        "changed": before != text,
        "spec": derived,
        "stages": list(canary.STAGES),
        "forecast": cost,
        "diff": diff,
        "lines": [said],
    }


def read(path):
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except OSError:
        return ""


def write(module, path, text):
    """The file appears whole or not at all."""
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(name, 0o644)
    module.atomic_move(name, path)


def judge(module, spec):
    """Ask the node package; its refusal is the task's failure."""
    if module.check_mode:
        return {"changed": False, "verdict": None, "lines": ["The canary is judged once it has run."]}
    cli = Cli(module, module.params["cli"] or default_cli(spec))
    verdict = cli.call("canary", "judge", "--settings", json.dumps(module.params["settings"]), spec=spec)
    reached = verdict["acceptance"]
    said = "canary sound: acceptance length {:.2f}, untrained {:.2f}, predicted {:.2f}".format(
        reached["trained"], reached["untrained"] or 1.0, reached["predicted"] or 0.0
    )
    return {"changed": False, "verdict": verdict, "lines": [said]}


def main():
    module = AnsibleModule(
        argument_spec={
            "spec": {"type": "dict", "required": True},
            "settings": {"type": "dict", "default": {}},
            "state": {"type": "str", "choices": ["prepared", "judged"], "required": True},
            "cli": {"type": "path"},
        },
        supports_check_mode=True,
    )
    act = {"prepared": prepare, "judged": judge}[module.params["state"]]
    try:
        module.exit_json(**act(module, module.params["spec"]))
    except CliError as error:
        module.fail_json(msg=error.msg, **error.result)
    except ValueError as error:
        module.fail_json(msg=f"canary: {error}")
    except OSError as error:
        module.fail_json(msg=f"the canary's prompts cannot be written: {error}")


if __name__ == "__main__":
    main()

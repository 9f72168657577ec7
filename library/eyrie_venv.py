#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Keep the node's Python environment at exactly its lock."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_venv
short_description: Keep the node's Python environment at exactly its lock
description:
  - An environment lives in C(<venvs>/<hash of what it is made of>); O(path) is a link to the one in force and is
    switched when the new one is complete. A file written last marks it complete, so that an interrupted install is
    never trusted.
  - The environment in force before is kept; older ones are removed.
  - Nothing is replaced while a stage is running.
options:
  path:
    description: The link, for instance C(/srv/eyrie/venv).
    type: path
    required: true
  lock:
    description: Text of the complete list of pinned distributions (C(name==version) lines).
    type: str
    required: true
  python:
    description: Interpreters to try; the first that runs and is 3.11 or later is taken.
    type: list
    elements: str
    default: [python3.11, python3]
  torch_index:
    description: Address of an index that carries PyTorch's wheels for this host. Empty means pip as configured.
    type: str
    default: ""
  find_links:
    description: Folder or page with more wheels. Empty means pip as configured.
    type: str
    default: ""
  pip_cache:
    description: Where pip keeps downloads until the install is complete. Empty means pip's own place.
    type: str
    default: ""
  pip_processes:
    description: pip processes that install side by side.
    type: int
    default: 2
  metadata_only:
    description: Distributions that exist as metadata only, as name and version.
    type: dict
    default: {}
  system_packages:
    description: Debian packages that must be there; installed when root.
    type: list
    elements: str
    default: []
  wheel:
    description: The node package's wheel on the host.
    type: path
  wheel_sha256:
    description: Hash of the sources that the wheel was built from; the wheel is installed again when it differs.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Says what would be installed; finds a missing interpreter as well.
  diff_mode:
    support: full
    description: Shows each distribution whose version differs.
  idempotent:
    support: full
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Install the node's environment
  eyrie_venv:
    path: /srv/eyrie/venv
    lock: "{{ lookup('ansible.builtin.file', 'requirements/node-cpu.txt') }}"
"""

RETURN = r"""
python:
  description: Interpreter and version.
  type: dict
  returned: always
differences:
  description: What differs from the lock.
  type: list
  elements: dict
  returned: always
environment:
  description: Folder of the environment.
  type: str
  returned: always
seconds:
  description: What the install took.
  type: float
  returned: when something was installed
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.eyrie.venv import ARGUMENTS, Environment, VenvError


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = Environment(module).run()
    except VenvError as error:
        module.fail_json(msg=error.msg, **error.result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Build the node package's wheel from the checkout, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_wheel
short_description: Build the node package's wheel from the checkout
description:
  - Runs on the controller. The wheel is kept under the hash of the sources, so that an unchanged tree builds nothing.
  - The checkout itself is not touched; the build happens in a temporary copy.
options:
  project:
    description: The checkout (where pyproject.toml is).
    type: path
    required: true
  dest:
    description: Folder that keeps the wheels.
    type: path
    required: true
attributes:
  check_mode:
    support: full
    description: Hashes the sources and builds nothing.
  diff_mode:
    support: none
  idempotent:
    support: full
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Build the node package
  eyrie_wheel:
    project: "{{ eyrie_project }}"
    dest: "{{ eyrie_project }}/build/wheels"
  delegate_to: localhost
"""

RETURN = r"""
sha256:
  description: Hash of the sources.
  type: str
  returned: always
path:
  description: The wheel; in check mode it may not be there yet.
  type: str
  returned: always
"""

import os
import re
import shutil
import sys
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.eyrie.sources import files, tree_sha256

#: first setuptools that knows pyproject's SPDX license; an older one beside us means an isolated build
SETUPTOOLS = 77
EPOCH = "1577836800"  # a fixed date in the archive: equal sources, equal bytes


def version(project):
    with open(os.path.join(project, "src/eyrie/__init__.py"), encoding="utf-8") as stream:
        return re.search(r'__version__ = "([^"]+)"', stream.read()).group(1)


def has_setuptools():
    try:
        from importlib.metadata import version as installed

        return int(installed("setuptools").split(".")[0]) >= SETUPTOOLS
    except Exception:  # absent or with a version of another kind: build isolated
        return False


def build(module, project, names, wheel):
    """Build into a temporary folder and move the finished wheel into place."""
    scratch = tempfile.mkdtemp(prefix="eyrie-wheel-")
    try:
        for name in names:
            copy = os.path.join(scratch, "tree", name)
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copyfile(os.path.join(project, name), copy)
        argv = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-input",
            "--disable-pip-version-check",
        ]
        if has_setuptools():
            argv += ["--no-build-isolation"]
        argv += ["--wheel-dir", os.path.join(scratch, "out"), os.path.join(scratch, "tree")]
        rc, _out, err = module.run_command(argv, environ_update={"SOURCE_DATE_EPOCH": EPOCH})
        built = os.path.join(scratch, "out", os.path.basename(wheel))
        if rc != 0 or not os.path.isfile(built):
            module.fail_json(
                msg="The node package's wheel could not be built from %s (rc %s)." % (project, rc),
                rc=rc,
                cmd=argv,
                stderr_lines=err.splitlines()[-15:],
                todo="The controller's environment needs pip and setuptools >= %d (requirements/controller.txt)."
                % SETUPTOOLS,
            )
        os.makedirs(os.path.dirname(wheel), exist_ok=True)
        shutil.copyfile(built, wheel + ".new")
        os.replace(wheel + ".new", wheel)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main():
    module = AnsibleModule(
        argument_spec={"project": {"type": "path", "required": True}, "dest": {"type": "path", "required": True}},
        supports_check_mode=True,
    )
    project = module.params["project"]
    names = files(project)
    if "pyproject.toml" not in names or "src/eyrie/__init__.py" not in names:
        module.fail_json(msg="%s is not a checkout of Eyrie: pyproject.toml or src/eyrie is missing." % project)
    digest = tree_sha256(project, names)
    name = "eagle_eyrie-%s-py3-none-any.whl" % version(project)
    wheel = os.path.join(module.params["dest"], digest[:12], name)
    missing = not os.path.isfile(wheel)
    if missing and not module.check_mode:
        build(module, project, names, wheel)
    module.exit_json(changed=missing, sha256=digest, path=wheel)


if __name__ == "__main__":
    main()

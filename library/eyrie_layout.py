#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Make the folders of a run in one go."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_layout
short_description: Make the folders below the root of all runs
description:
  - Makes the root and its folders, parents included, and marks the root as Eyrie's own.
  - Refuses a root that exists, is not empty and carries no such mark.
options:
  root:
    description: Absolute path of the folder that everything is written below.
    type: path
    required: true
  folders:
    description: Folders below it.
    type: list
    elements: str
    required: true
  mode:
    description: Mode of folders that are made; those that exist keep theirs.
    type: str
    default: "0755"
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Lay out the folders
  eyrie_layout:
    root: /srv/eyrie
    folders: [models, runs, state]
"""

RETURN = r"""
made:
  description: Folders that were (in check mode, would be) made.
  type: list
  elements: str
  returned: always
"""

import os

from ansible.module_utils.basic import AnsibleModule

MARK = ".eyrie"
TEXT = "This folder belongs to Eyrie; everything in it can be made again by train.yml, at a price.\n"


def refuse(module, root):
    """A root that is a file, relative, the file system's own, or somebody else's."""
    if not os.path.isabs(root) or os.path.realpath(root) == "/":
        module.fail_json(msg="The root must be an absolute path below /, not %r." % root, todo="Set eyrie_root.")
    if os.path.exists(root) and not os.path.isdir(root):
        module.fail_json(msg="The root %s is there and is not a folder." % root, todo="Set eyrie_root to a folder.")
    marked = os.path.exists(os.path.join(root, MARK))
    try:
        foreign = not marked and os.path.isdir(root) and sorted(set(os.listdir(root)) - {"lost+found"})
    except OSError as error:
        module.fail_json(
            msg="The root %s cannot be read: %s" % (root, error), todo="Check the rights of the remote user."
        )
    if foreign:
        module.fail_json(
            msg="The root %s holds files that are not Eyrie's: %s." % (root, ", ".join(foreign[:5])),
            todo="Choose an empty folder, or make the file %s in it to say that it is meant."
            % os.path.join(root, MARK),
        )
    return marked


def main():
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "folders": {"type": "list", "elements": "str", "required": True},
            "mode": {"type": "str", "default": "0755"},
        },
        supports_check_mode=True,
    )
    root = module.params["root"]
    marked = refuse(module, root)
    wanted = [root] + [os.path.join(root, name) for name in module.params["folders"]]
    made = [path for path in wanted if not os.path.isdir(path)]
    if not module.check_mode:
        try:
            for path in made:
                os.makedirs(path, mode=int(module.params["mode"], 8), exist_ok=True)
            if not marked:
                with open(os.path.join(root, MARK), "w", encoding="utf-8") as stream:
                    stream.write(TEXT)
        except OSError as error:
            module.fail_json(
                msg="A folder could not be made: %s" % error,
                todo="Check that the disk is mounted and that the remote user may write there, or set eyrie_root.",
            )
    module.exit_json(
        changed=bool(made) or not marked,
        made=made,
        diff={"before": "", "after": "".join("%s/\n" % path for path in made)},
    )


if __name__ == "__main__":
    main()

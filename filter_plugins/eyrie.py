# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Which of an inventory's variables nobody reads."""

from __future__ import annotations

import difflib
import glob
import importlib.util
import os
import re

import yaml

#: what plays and roles register; never set by a person
REGISTERED = re.compile(r"^eyrie_[a-z0-9_]+_result$")
#: verbs' own parameters (playbooks/port.yml -e from=...) are not ours to judge: only names near to ours are
NEAR = 0.88


def known_names(project):
    """All variable names that the project knows: defaults in group_vars/all, and the roles' argument specs."""
    found = set()
    for path in glob.glob(os.path.join(project, "inventory", "group_vars", "all", "*.yml")):
        with open(path, encoding="utf-8") as stream:
            found.update(re.findall(r"^([a-z_][a-z0-9_]*):", stream.read(), re.MULTILINE))
    for path in glob.glob(os.path.join(project, "roles", "*", "meta", "argument_specs.yml")):
        with open(path, encoding="utf-8") as stream:
            loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where libyaml is there
            specs = (yaml.load(stream, Loader=loader) or {}).get(  # noqa: S506 - a safe loader
                "argument_specs"
            ) or {}
        for spec in specs.values():
            found.update((spec or {}).get("options") or {})
    return found


def place_of(name, folders):
    """'group_vars/local/draft.yml:3' of a variable's definition, '' when it comes from elsewhere (-e)."""
    for folder in folders:
        for path in sorted(glob.glob(os.path.join(folder, "**", "*.yml"), recursive=True)):
            with open(path, encoding="utf-8", errors="replace") as stream:
                for number, line in enumerate(stream, 1):
                    if re.match(r"^\s*%s\s*:" % re.escape(name), line):
                        return "%s:%d" % (os.path.relpath(path, os.path.dirname(folder)), number)
    return ""


def eyrie_unknown_names(names, project, inventories=()):
    """[{name, nearest, where}] of the variables that are named like ours and known to nobody.

    names: all variable names of a host. project: the checkout. inventories: its sources (files or folders).
    """
    known = known_names(project)
    folders = sorted(
        set(path if os.path.isdir(path) else os.path.dirname(path) for path in inventories if os.path.exists(path))
    )
    found = []
    for name in sorted(set(names)):
        if name in known or REGISTERED.match(name) or name.startswith(("ansible_", "molecule_")):
            continue
        ours = name.startswith("eyrie_")
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6 if ours else NEAR)
        if ours or near:
            found.append({"name": name, "nearest": near[0] if near else "", "where": place_of(name, folders)})
    return found


def eyrie_sources_sha256(project):
    """Hash of the node package's sources: what the host's package is compared with."""
    path = os.path.join(project, "module_utils", "eyrie", "sources.py")
    spec = importlib.util.spec_from_file_location("eyrie_sources", path)
    sources = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sources)
    return sources.tree_sha256(project, sources.files(project))


class FilterModule(object):
    def filters(self):
        return {"eyrie_unknown_names": eyrie_unknown_names, "eyrie_sources_sha256": eyrie_sources_sha256}

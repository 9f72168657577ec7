# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""The node package's sources in a checkout, and their hash. Standard library only: filters load this file too."""

from __future__ import annotations

import hashlib
import os

#: what the wheel is made of, relative to the project
SOURCES = ("pyproject.toml", "LICENSE", "src/eyrie")


def files(project):
    """Relative paths of all source files, sorted; links count as what they point to."""
    found = []
    for name in SOURCES:
        top = os.path.join(project, name)
        if os.path.isfile(top):
            found.append(name)
        for folder, folders, names in os.walk(top, followlinks=True):
            folders[:] = sorted(f for f in folders if f != "__pycache__")
            found += [os.path.relpath(os.path.join(folder, n), project) for n in names if not n.endswith(".pyc")]
    return sorted(found)


def tree_sha256(project, names):
    """SHA-256 over name and content of each file."""
    digest = hashlib.sha256()
    for name in names:
        with open(os.path.join(project, name), "rb") as stream:
            content = hashlib.sha256(stream.read()).hexdigest()
        digest.update(("%s %s\n" % (content, name)).encode("utf-8"))
    return digest.hexdigest()

# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Names, interpreter, environment, package index, the model's package."""

from __future__ import annotations

import os
import shutil
import tempfile

from ansible.module_utils.eyrie.preflight.finding import error, info, warning
from ansible.module_utils.eyrie.venv import VenvError, canonical, find_python, is_installed, pins


def names(host, context):
    """Variables that nobody reads: a misspelt one would silently leave the default in force."""
    found = []
    for item in context.names:
        where = " (%s)" % item["where"] if item.get("where") else ""
        cure = "Write %s." % item["nearest"] if item.get("nearest") else "Remove it; docs/variables.md lists all."
        found += error(
            "variable", "Unknown variable %s%s." % (item["name"], where), "The default would stay in force.", cure
        )
    return found


def python(host, context):
    wanted = context.runtime.get("python")
    if not wanted:
        return []
    try:
        found = find_python(wanted, host.run)
    except VenvError as problem:
        return error("python", problem.msg, "The node's environment needs it.", problem.result.get("todo", ""))
    if not found["venv"] and not host.root():
        minor = ".".join(found["version"].split(".")[:2])
        return error(
            "python",
            "Python %s cannot make environments (no ensurepip)." % found["version"],
            "The node's environment is one.",
            "As root: apt-get install python%s-venv" % minor,
        )
    return []


def environment(host, context):
    """The lock is readable; what stands in the way of installing it is said here, before the first byte."""
    if not context.runtime.get("lock"):
        return []
    try:
        wanted = pins(context.runtime["lock"])
    except VenvError as problem:
        return error(
            "lock", problem.msg, "Versions that move are found hours into a run.", "Correct eyrie_runtime_lock."
        )
    found = []
    if os.path.basename(context.root.rstrip("/")) == "" or not os.path.isabs(context.root):
        found += error("root", "eyrie_root %r is no absolute path." % context.root, "", "Set eyrie_root.")
    elif not host.writable(context.root):
        found += error(
            "root",
            "The remote user may not write to %s." % host.nearest(context.root),
            "Everything is written below eyrie_root (%s)." % context.root,
            "Give the user that folder, or set eyrie_root to one of its own.",
        )
    if "torch" not in wanted:
        found += warning("lock", "The lock names no torch.", "", "Check eyrie_runtime_lock.")
    return found


def index(host, context):
    """pip reaches its index and knows the lock's torch; looked at only when something must be installed."""
    runtime = context.runtime
    if not runtime.get("lock") or not runtime.get("python"):
        return []
    try:
        wanted = pins(runtime["lock"])
        interpreter = find_python(runtime["python"], host.run)
    except VenvError:
        return []  # said above
    if is_installed(context.root, runtime, interpreter) or not interpreter["venv"]:
        return []
    argv = _pip(host, interpreter["executable"])
    if argv is None:
        return []
    command, scratch = argv
    try:
        return _ask_index(host, command, wanted, runtime)
    finally:
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def _pip(host, executable):
    """(argv of a pip, folder to remove): the interpreter's own, else one in a temporary environment."""
    if host.run([executable, "-m", "pip", "--version"])[0] == 0:
        return [executable, "-m", "pip"], None
    scratch = tempfile.mkdtemp(prefix="eyrie-preflight-")
    if host.run([executable, "-m", "venv", scratch], timeout=120)[0] == 0:
        return [os.path.join(scratch, "bin", "python"), "-m", "pip"], scratch
    shutil.rmtree(scratch, ignore_errors=True)
    return None


def _ask_index(host, command, wanted, runtime):
    argv = [
        *command,
        "index",
        "versions",
        "torch",
        "--disable-pip-version-check",
        "--pre",
        "--retries",
        "1",
        "--timeout",
        "15",
    ]
    if runtime.get("torch_index"):
        argv += ["--extra-index-url", runtime["torch_index"]]
    if runtime.get("find_links"):
        argv += ["--find-links", runtime["find_links"]]
    rc, out, err = host.run(argv, timeout=60)
    if rc != 0:
        last = (err.strip().splitlines() or out.strip().splitlines() or ["rc %d" % rc])[-1]
        return error(
            "index",
            "pip does not reach a package index from this host: %s" % last,
            "The node's environment is installed from it.",
            "Check the network, and pip's index and proxy settings on the host (`pip config list`).",
        )
    versions = set(
        word.strip() for line in out.splitlines() if ":" in line for word in line.split(":", 1)[1].split(",")
    )
    torch = wanted.get("torch")
    if torch and versions and torch not in versions:
        return error(
            "index",
            "pip finds no torch %s for this interpreter." % torch,
            "The lock asks for exactly that build.",
            "Set eyrie_runtime_torch_index to PyTorch's index for this host (or eyrie_runtime_find_links to a folder "
            "with the wheel), or put a Python that has it first in eyrie_runtime_python.",
        )
    return []


def model(host, context):
    """A model that comes in a package must be in the lock; one that is a folder must be there."""
    source = context.target.get("source") or {}
    if source.get("kind") == "package" and context.runtime.get("lock"):
        try:
            known = pins(context.runtime["lock"])
        except VenvError:
            return []
        if canonical(str(source.get("package"))) not in known:
            return error(
                "model",
                "The model's package %s is not in the lock." % source.get("package"),
                "The stage target would find nothing to convert.",
                "Add it, pinned, to the file that eyrie_runtime_lock names.",
            )
    if source.get("kind") == "path":
        config = os.path.join(str(source.get("path")), "config.json")
        if not host.exists(config):
            return error(
                "model",
                "There is no %s." % config,
                "eyrie_target_source_kind is path.",
                "Set eyrie_target_source_path.",
            )
    if source.get("kind") == "hub" and source.get("repository"):
        return info("model", "The target comes from %s@%s." % (source["repository"], str(source.get("revision"))[:12]))
    return []

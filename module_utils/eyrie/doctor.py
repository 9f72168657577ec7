# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""The doctor's finding at the end of a failure's message."""

from __future__ import annotations

from ansible.module_utils.eyrie.cli import CliError

SHOWN = 3


def findings(cli, spec, stage=None):
    """The best findings for a stage (or for every one that is not done); [] when the doctor cannot be asked."""
    if not cli.installed:
        return []
    args = ([stage] if stage else []) + ["--root", spec["root"], "--run", str(spec["run"]), "--json"]
    try:
        return cli.call("doctor", *args)["findings"][:SHOWN]
    except (CliError, KeyError):
        return []  # the failure itself is what has to be told


def sentence(found):
    """' Doctor: cause. Cure: cure.' of the first finding, '' without one."""
    return " Doctor: %s Cure: %s" % (found[0]["cause"], found[0]["cure"]) if found else ""

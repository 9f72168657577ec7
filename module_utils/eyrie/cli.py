# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""How modules speak to the node package: one command, JSON in, JSON out."""

from __future__ import annotations

import json
import os

LAST_LINES = 15


class CliError(Exception):
    """The node package answered with an error, or not at all; `result` holds fail_json's arguments."""

    def __init__(self, msg, **result):
        super(CliError, self).__init__(msg)
        self.msg = msg
        self.result = result


class Cli(object):
    """The `eyrie` command in the node's venv.

    command: path of the executable. installed: whether it is there.
    """

    def __init__(self, module, command):
        self.module = module
        self.command = os.path.expanduser(command)

    @property
    def installed(self):
        return os.access(self.command, os.X_OK)

    def replaced_by(self, spec):
        """{name, current, desired} when the controller's checkout has another node package, else None."""
        wanted = str((spec.get("execution") or {}).get("package") or "")
        if not wanted or not self.installed:
            return None
        marker = os.path.join(os.path.dirname(os.path.dirname(self.command)), "eyrie-package.json")
        try:
            with open(marker, encoding="utf-8") as stream:
                there = str(json.load(stream).get("sha256"))
        except (OSError, ValueError, AttributeError):
            there = "unknown"
        return None if there == wanted else {"name": "node package", "current": there[:12], "desired": wanted[:12]}

    def call(self, verb, *args, **kwargs):
        """Run `eyrie VERB ARGS` with the spec (keyword `spec`, a dict) on standard input; returns its answer."""
        spec = kwargs.get("spec")
        data = None if spec is None else json.dumps(spec)
        argv = [self.command, verb, *list(args)]
        rc, out, err = self.module.run_command(argv, data=data, binary_data=data is None)
        return self._answer(argv, rc, out, err)

    def _answer(self, argv, rc, out, err):
        shown = " ".join(argv[1:])
        try:
            answer = json.loads(out)
        except ValueError:
            raise CliError(
                "`eyrie %s` answered with something that is not JSON (rc %s)." % (shown, rc),
                rc=rc,
                cmd=argv,
                stdout_lines=out.splitlines()[-LAST_LINES:],
                stderr_lines=err.splitlines()[-LAST_LINES:],
                todo="Run playbooks/provision.yml: the node package may be damaged.",
            ) from None
        if not isinstance(answer, dict):
            raise CliError("`eyrie %s` answered with JSON that is no object." % shown, rc=rc, cmd=argv)
        error = answer.get("error")
        if rc != 0 or (error and "code" in error and len(answer) == 1):
            error = error or {}
            raise CliError(
                describe(error) or "`eyrie %s` ended with rc %s." % (shown, rc),
                rc=rc,
                cmd=argv,
                error=error,
                stderr_lines=err.splitlines()[-LAST_LINES:],
            )
        return answer


def describe(error):
    """One line: where, what, why, what to do."""
    if not error:
        return ""
    text = error.get("what") or ""
    if error.get("where"):
        text = "%s: %s" % (error["where"], text)
    if error.get("why"):
        text += " Why: %s" % error["why"]
    if error.get("todo"):
        text += " Do: %s" % error["todo"]
    return text

# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""The default output, with progress where a stage is waited for and tables where a module returns lines."""

from __future__ import annotations

DOCUMENTATION = """
name: eyrie
type: stdout
short_description: the default output, with progress lines and tables
description:
  - The default output. A retry that carries C(progress_text) is shown as that one line; a result that carries
    C(lines) is shown as those lines below its task. A failure whose words are those of a known one is followed by
    its cause and cure.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
requirements:
  - set as stdout in configuration
"""

import os
import sys

from ansible import constants as C
from ansible.plugins.callback.default import CallbackModule as Default

SOURCES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src")
TEXTS = ("msg", "module_stderr", "module_stdout", "stderr", "stdout", "exception")
CHARS = 20000
#: parts of a failed result that are shown as lines, or only with -v
BULKY = ("lines", "findings", "plan", "stages", "diff", "invocation", "doctor", "status")


def doctor_lines(result):
    """Cause and cure of a failed task, if its words are those of a known failure.

    A stage's failure brings its own finding (`doctor`), made on the host: it is not made twice.
    """
    if result.get("doctor"):
        return []
    text = "\n".join(str(result[key])[:CHARS] for key in TEXTS if result.get(key))
    if SOURCES not in sys.path:
        sys.path.append(SOURCES)
    try:
        from eyrie.ops.doctor.evidence import Document
        from eyrie.ops.doctor.examine import diagnose
    except ImportError:  # the play also works from a copy without the node package's sources
        return []
    found = diagnose([Document("play", "this task", "", text)])[:1]
    return [f"doctor: {found[0]['cause']}", f"  cure: {found[0]['cure']}"] if found else []


class CallbackModule(Default):
    """Default output plus progress and tables."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "eyrie"

    def _task_start(self, task, prefix=None):
        if not self._is_quiet(task):
            super()._task_start(task, prefix)

    def v2_runner_retry(self, result):
        text = result.result.get("progress_text")
        if not text:
            return super().v2_runner_retry(result)
        self._display.display("  [%s] %s" % (self.host_label(result), text), color=C.COLOR_DEBUG)

    def v2_runner_on_ok(self, result):
        if self._is_quiet(result.task):
            return
        lines = result.result.get("lines") if self._is_ours(result) else None
        super().v2_runner_on_ok(result)
        self._show(lines)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        lines = result.result.get("lines") if self._is_ours(result) else None
        if self._is_ours(result) and self._display.verbosity < 1:
            for key in BULKY:
                result.result.pop(key, None)
        super().v2_runner_on_failed(result, ignore_errors=ignore_errors)
        self._show(lines)
        if not ignore_errors:
            self._show(doctor_lines(result.result))

    def v2_runner_on_unreachable(self, result):
        super().v2_runner_on_unreachable(result)
        self._show(doctor_lines({"msg": f"UNREACHABLE! {result.result.get('msg', '')}"}))

    def _is_quiet(self, task):
        """Checks of a role's arguments speak only when they fail."""
        action = str(getattr(task, "action", "")).rpartition(".")[2]
        return action == "validate_argument_spec" and self._display.verbosity < 1

    @staticmethod
    def _is_ours(result):
        return str(getattr(result.task, "action", "")).rpartition(".")[2].startswith("eyrie_")

    def _show(self, lines):
        if lines:
            self._display.display("")
            for line in lines:
                self._display.display("  %s" % line)

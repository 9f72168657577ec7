# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Documentation that several modules share: `extends_documentation_fragment: [eyrie, eyrie.cli, eyrie.stage]`."""

from __future__ import annotations


class ModuleDocFragment:
    """The fragment `eyrie`; NAME is what a module extends as `eyrie.name`."""

    DOCUMENTATION = r"""
options:
  spec:
    description: The run's full spec (C(eyrie_spec) in the inventory).
    type: dict
    required: true
"""

    CLI = r"""
options:
  cli:
    description: Path of the node package's command. Default is C(<root>/venv/bin/eyrie).
    type: path
"""

    # A module that brings one stage up to date: module_utils/eyrie/stage.py is what all of them do.
    STAGE = r"""
options:
  wait:
    description: Wait until the stage is done. With C(false) the module returns as soon as the work is started.
    type: bool
    default: true
  poll:
    description: Seconds between two looks at the state while waiting.
    type: float
    default: 2.0
  timeout:
    description: Seconds to wait at most; the work goes on after that. 0 waits without limit.
    type: int
    default: 0
attributes:
  check_mode:
    support: full
    description: Plans with the same planner and stops before the act.
  diff_mode:
    support: full
    description: Shows each setting that differs from the last run.
  idempotent:
    support: full
    description: A stage that is up to date is left alone.
notes:
  - The work runs under the host's supervisor and outlives the connection; a second call attaches to it.
"""

    # A module that only reads.
    READS = r"""
attributes:
  check_mode:
    support: full
    description: Reads the same in check mode.
  diff_mode:
    support: none
    description: It changes nothing.
  idempotent:
    support: full
    description: It changes nothing.
"""

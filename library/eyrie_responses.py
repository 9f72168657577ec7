#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Regenerate every prompt's answer through the baseline server."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_responses
short_description: Regenerate every prompt's answer through the baseline server
description:
  - Brings the C(responses) stage up to date; the target model itself answers every prompt of the dataset, turn by turn,
    through the baseline server, and the token ids are kept as they were sampled.
  - The work runs under the host's supervisor and outlives the connection; a second call attaches to it.
extends_documentation_fragment: []
options:
  spec:
    description: The run's full spec (C(eyrie_spec) in the inventory).
    type: dict
    required: true
  cli:
    description: Path of the node package's command. Default is C(<root>/venv/bin/eyrie).
    type: path
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
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Regenerate the responses
  eyrie_responses:
    spec: "{{ eyrie_spec }}"
"""

RETURN = r"""
plan:
  description: The stage's plan (fingerprint, up_to_date, differences, forecast, gates).
  type: dict
  returned: always
record:
  description: Seconds, account (in, kept, dropped, failed) and bytes of the stage once it is done.
  type: dict
  returned: when the stage is done
finished:
  description: Whether the stage is up to date now.
  type: bool
  returned: always
"""

from ansible.module_utils.eyrie.stage import main

if __name__ == "__main__":
    main("responses")

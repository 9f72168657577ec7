#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Measure the draft against the baseline and decide what to serve."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_benchmark
short_description: Measure the draft against the baseline and decide what to serve
description:
  - Brings the C(benchmark) stage up to date; baseline and EAGLE3 take turns on the same host, with C(vllm bench serve)
    as load and differences of the server's counters for the acceptance length (1 + accepted/drafts).
  - A draft that wins beyond noise is kept as a version and becomes the current one; otherwise what served before
    serves again.
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
- name: Measure the draft
  eyrie_benchmark:
    spec: "{{ eyrie_spec }}"
"""

RETURN = r"""
plan:
  description: The stage's plan (fingerprint, up_to_date, differences, forecast, gates).
  type: dict
  returned: always
record:
  description: Seconds, account (requests in, kept, dropped, failed), bytes and figures (verdict, promotion).
  type: dict
  returned: when the stage is done
finished:
  description: Whether the stage is up to date now.
  type: bool
  returned: always
"""

from ansible.module_utils.eyrie.stage import main

if __name__ == "__main__":
    main("benchmark")

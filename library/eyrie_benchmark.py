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
extends_documentation_fragment: [eyrie, eyrie.cli, eyrie.stage]
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

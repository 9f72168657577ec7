#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Capture the target's hidden states."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_hidden_states
short_description: Capture the hidden states that a draft is trained on
description:
  - Brings the C(hidden_states) stage up to date; the target's auxiliary and last hidden states of every prepared row,
    keyed by content. What is captured already is kept.
extends_documentation_fragment: [eyrie, eyrie.cli, eyrie.stage]
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Capture the hidden states
  eyrie_hidden_states:
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
    main("hidden_states")

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
extends_documentation_fragment: [eyrie, eyrie.cli, eyrie.stage]
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

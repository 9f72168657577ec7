#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Turn responses into supervised tokens and a draft vocabulary."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_tokens
short_description: Turn responses into supervised tokens and a draft vocabulary
description:
  - Brings the C(tokens) stage up to date; token ids and loss masks in the form that speculators trains on, token
    frequencies, and the draft vocabulary (offsets and mask).
extends_documentation_fragment: [eyrie, eyrie.cli, eyrie.stage]
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Prepare the tokens
  eyrie_tokens:
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
    main("tokens")

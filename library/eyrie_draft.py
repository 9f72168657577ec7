#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Train the draft model."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_draft
short_description: Train an EAGLE-3 draft model
description:
  - Brings the C(draft) stage up to date; speculators' trainer under watch, resumed from the last whole checkpoint,
    and the draft exported as the server reads it.
extends_documentation_fragment: [eyrie, eyrie.cli, eyrie.stage]
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Train the draft
  eyrie_draft:
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
    main("draft")

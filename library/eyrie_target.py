#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Bring the target model onto the host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_target
short_description: Bring the target model onto the host
description:
  - Brings the C(target) stage up to date; a GGUF file of an installed distribution is converted to a bf16 checkpoint,
    a hub repository is downloaded at its pinned commit, a folder that is there is checked.
extends_documentation_fragment: [eyrie, eyrie.cli, eyrie.stage]
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Bring the target model
  eyrie_target:
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
    main("target")

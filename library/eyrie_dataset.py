#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Prepare the prompts that the draft is trained on."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_dataset
short_description: Prepare the prompts of a draft-model training run
description:
  - Brings the C(dataset) stage up to date; all declared sources become one canonical conversation table (Parquet).
extends_documentation_fragment: [eyrie, eyrie.cli, eyrie.stage]
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Prepare the dataset
  eyrie_dataset:
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
    main("dataset")

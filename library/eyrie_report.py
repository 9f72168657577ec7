#!/usr/bin/python
# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""Write the run's report."""

from __future__ import annotations

DOCUMENTATION = r"""
module: eyrie_report
short_description: Write the run's report
description:
  - Brings the C(report) stage up to date; report.json holds the run's figures for machines, report.html the same with
    plots for people, in one file that needs no network.
extends_documentation_fragment: [eyrie, eyrie.cli, eyrie.stage]
author:
  - Eyrie authors
"""

EXAMPLES = r"""
- name: Write the report
  eyrie_report:
    spec: "{{ eyrie_spec }}"
"""

RETURN = r"""
plan:
  description: The stage's plan (fingerprint, up_to_date, differences, forecast, gates).
  type: dict
  returned: always
record:
  description: Seconds, account (in, kept, dropped, failed) and bytes of the stage.
  type: dict
  returned: when the stage is done
finished:
  description: Whether the stage is up to date now.
  type: bool
  returned: always
"""

from ansible.module_utils.eyrie.stage import main

if __name__ == "__main__":
    main("report")

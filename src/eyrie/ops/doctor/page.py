"""docs/troubleshooting.md from the catalogue: `python -m eyrie.ops.doctor.page [FILE]`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from eyrie.core import atomic
from eyrie.ops.doctor import catalogue

AREAS = {
    "10-host": "The machine",
    "20-runtime": "The Python environment",
    "30-dataset": "Prompts and their sources",
    "40-responses": "Responses",
    "45-tokens": "Tokens and masks",
    "50-capture": "Hidden states",
    "55-vocabulary": "Draft vocabulary and configuration",
    "60-training": "Training",
    "70-serving": "Servers",
    "75-units": "systemd and supervisord",
    "80-ansible": "Ansible, SSH and packages",
}
HEAD = """\
# Troubleshooting by symptom

A failed play ends with the doctor's finding. To look again, or further:

    ansible-playbook playbooks/doctor.yml -l rtx6000bw
    eyrie doctor --root /srv/eyrie --run main            # on the host
    eyrie doctor --root /srv/eyrie --play-log ansible.log

This page is made from the doctor's catalogue (`src/eyrie/ops/doctor/signatures/`), where each entry has a recorded log
as its test. After a change there: `python -m eyrie.ops.doctor.page docs/troubleshooting.md`.

Look for words of the message; patterns are regular expressions, upper and lower case do not matter.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for path in sorted(catalogue.FOLDER.glob("*.yml")):
        parts.append(f"\n## {AREAS[path.stem]}\n")
        for signature in catalogue.load_file(path):
            parts.append(entry(signature))
    return "".join(parts)


def entry(signature: catalogue.Signature) -> str:
    """One symptom: what is seen, the cause, the cure."""
    seen = [f"`{shown(pattern)}`" for pattern in signature.patterns]
    for fact in signature.facts:
        bound = f"below {fact.below:g}" if fact.below is not None else ""
        bound = f"above {fact.above:g}" if fact.above is not None else bound or f"is {str(fact.equals).lower()}"
        seen.append(f"{fact.fact} {bound}")
    where = f" ({', '.join(signature.stages)})" if signature.stages else ""
    return (
        f"\n### {signature.title}\n\n"
        f"- Seen{where}: {'; '.join(seen)}\n"
        f"- Cause: {signature.cause.strip()}\n"
        f"- Cure: {signature.cure.strip()}\n"
    )


def shown(pattern: str) -> str:
    """A pattern as people read it: plain text where nothing else is in it."""
    plain = re.sub(r"\\([.()\[\]{}+*?'])", r"\1", pattern)
    return plain.replace("`", "'")


def main(argv: list[str]) -> int:
    if argv:
        atomic.write_text(Path(argv[0]), page())
    else:
        sys.stdout.write(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

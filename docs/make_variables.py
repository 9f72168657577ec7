"""Write docs/variables.md from the roles' argument specs and the inventory's defaults: python docs/make_variables.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parents[1]
HEAD = """# Variables

Every variable of the inventory, by the role that documents and checks it. The default is what
`inventory/group_vars/all/` says; a hardware profile (`group_vars/local`, `rtx6000bw`, `b200nvl8`) may set another one,
marked with the profile's name. A variable that is not listed here is refused before anything is started.

This file is written by `python docs/make_variables.py`.
"""
PROFILES = ("local", "rtx6000bw", "b200nvl8")


def read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text("utf-8")) or {}


def values(group: str) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for path in sorted((PROJECT / "inventory" / "group_vars" / group).glob("*.yml")):
        merged.update(read(path))
    return merged


def shown(value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return "`" + (text if len(text) <= 70 else text[:67] + "...").replace("|", "\\|") + "`"


def said(option: dict[str, Any]) -> str:
    text = option.get("description", "")
    text = " ".join(text) if isinstance(text, list) else text
    return " ".join(str(text).split()).replace("|", "\\|")


def page() -> str:
    defaults, own = values("all"), {name: values(name) for name in PROFILES}
    parts, seen = [HEAD], set()
    for path in sorted((PROJECT / "roles").glob("*/meta/argument_specs.yml")):
        role = path.parents[1].name
        spec = read(path)["argument_specs"]
        options = {name: option for part in spec.values() for name, option in (part.get("options") or {}).items()}
        rows = []
        for name, option in options.items():
            if name not in defaults or name in seen:
                continue
            seen.add(name)
            others = [f"{profile}: {shown(own[profile][name])}" for profile in PROFILES if name in own[profile]]
            default = "<br>".join([shown(defaults[name]), *others])
            rows.append(f"| `{name}` | {option.get('type', 'str')} | {default} | {said(option)} |")
        if rows:
            title = next(iter(spec.values())).get("short_description", "")
            parts.append(
                f"## {role}\n\n{title}.\n\n| name | type | default | what |\n|---|---|---|---|\n"
                + "\n".join(rows)
                + "\n"
            )
    return "\n".join(parts)


if __name__ == "__main__":
    (PROJECT / "docs" / "variables.md").write_text(page(), "utf-8")

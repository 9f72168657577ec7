"""Engine arguments: from data to a list of words, never a string of flags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from eyrie.core.errors import SpecError


def words(args: Mapping[str, Any]) -> list[str]:
    """{'tensor_parallel_size': 8} -> ['--tensor-parallel-size', '8'].

    True -> '--flag', False -> '--no-flag', None -> nothing, mapping -> JSON, list -> one word each.
    """
    found: list[str] = []
    for key, value in args.items():
        flag = "--" + key.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            found.append(flag if value else "--no-" + flag[2:])
        elif isinstance(value, Mapping):
            found += [flag, as_json(value)]
        elif isinstance(value, (list, tuple)):
            found += [flag, *(_word(key, item) for item in value)]
        else:
            found += [flag, _word(key, value)]
    return found


def as_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _word(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return as_json(value)
    if not isinstance(value, (str, int, float)) or "\0" in str(value):
        raise SpecError(f"{value!r} cannot be an argument's value.", where=key, code="bad-argument")
    return str(value)

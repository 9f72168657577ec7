"""Typed settings: dataclasses filled from JSON, unknown keys refused with the nearest right name."""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from typing import Any, TypeVar

from eyrie.core.errors import SpecError

T = TypeVar("T")
#: what may become part of a path or a unit's name: nothing that leads elsewhere, is hidden, or looks like an option
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: names of variables and settings that hold a secret
SECRET_NAME = re.compile(r"TOKEN$|SECRET|PASSWORD|PASSWD|API_KEY|CREDENTIAL", re.IGNORECASE)
_TRUE, _FALSE = {"true", "yes", "on"}, {"false", "no", "off"}


def setting(default: Any = dataclasses.MISSING, *, identity: bool = True, doc: str = "", **kwargs: Any) -> Any:
    """A dataclass field that knows whether it is part of the fingerprint.

    identity=False: cannot change the output (concurrency, time limits, log levels).
    """
    meta = {"identity": identity, "doc": doc}
    if default is not dataclasses.MISSING and isinstance(default, (list, dict, set)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=meta, **kwargs)
    if callable(default) and not isinstance(default, type(dataclasses.MISSING)):
        return dataclasses.field(default_factory=default, metadata=meta, **kwargs)
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=meta, **kwargs)
    return dataclasses.field(default=default, metadata=meta, **kwargs)


def plain(name: str, what: str) -> None:
    """Raise ValueError unless the name can be part of a path."""
    if not PLAIN_NAME.fullmatch(name):
        raise ValueError(f"{what} {_shown(name)} names a folder: letters, digits, '.', '_' and '-' only, up to 100.")


def nearest(name: str, known: typing.Iterable[str]) -> str:
    """' Did you mean X?' or ''."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {match[0]!r}?" if match else ""


def load(cls: type[T], data: Any, where: str) -> T:
    """Build a dataclass from plain JSON data; `where` prefixes messages ('draft', 'dataset.sources[3]')."""
    if not isinstance(data, dict):
        raise SpecError(f"expected a mapping, got {_shown(data)}.", where=where, code="spec-type")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise SpecError(
                f"unknown setting {key!r}.{nearest(str(key), fields)}",
                where=where,
                code="spec-unknown-key",
                todo=f"Known here: {', '.join(sorted(fields))}.",
            )
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = coerce(hints[name], data[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise SpecError(f"setting {name!r} is missing.", where=where, code="spec-missing")
    try:
        return cls(**values)
    except ValueError as error:  # __post_init__ checks
        raise SpecError(str(error), where=where, code="spec-value") from None


def coerce(hint: Any, value: Any, where: str) -> Any:
    """Check a value against a type hint; text that reads as a number or boolean is taken (`-e key=3` gives text)."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _coerce_union(typing.get_args(hint), value, where)
    if origin is typing.Literal:
        choices = typing.get_args(hint)
        if value in choices:
            return value
        listed = ", ".join(repr(choice) for choice in choices)
        raise SpecError(f"{_shown(value)} is none of {listed}.{nearest(str(value), map(str, choices))}", where=where)
    if origin in (list, tuple):
        if not isinstance(value, (list, tuple)):
            raise SpecError(f"expected a list, got {_shown(value)}.", where=where, code="spec-type")
        inner = typing.get_args(hint)[0]
        items = [coerce(inner, item, f"{where}[{i}]") for i, item in enumerate(value)]
        return tuple(items) if origin is tuple else items
    if origin is dict:
        if not isinstance(value, dict):
            raise SpecError(f"expected a mapping, got {_shown(value)}.", where=where, code="spec-type")
        inner = typing.get_args(hint)[1]
        return {str(key): coerce(inner, item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else load(hint, value, where)  # type: ignore[arg-type]
    return _scalar(hint, value, where)


def _coerce_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in options:
        return None
    last: SpecError | None = None
    for option in options:
        if option is type(None):
            continue
        try:
            return coerce(option, value, where)
        except SpecError as error:
            last = error
    assert last is not None
    raise last


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in _TRUE | _FALSE:
            return value.strip().lower() in _TRUE
    elif hint is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lstrip("+-").isdecimal():
            return int(value)
        if isinstance(value, float) and value.is_integer():
            return int(value)
    elif hint is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, str):
            try:
                return float(value)
            except ValueError:
                pass
    elif hint is str:
        if isinstance(value, str):
            return value
    elif isinstance(value, hint):
        return value
    raise SpecError(f"expected {hint.__name__}, got {_shown(value)}.", where=where, code="spec-type")


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def identity(value: Any) -> Any:
    """Plain data of the fields that are part of the fingerprint."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: identity(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.metadata.get("identity", True)
        }
    if isinstance(value, dict):
        return {key: identity(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [identity(item) for item in value]
    return value

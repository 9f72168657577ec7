"""Values as data sets hold them: nulls, lists of parts, text with broken characters."""

from __future__ import annotations

import json
from typing import Any

#: parts of list-typed content that are text, and those that another sense is needed for
TEXT_PARTS = {"text", "input_text", "output_text"}
MEDIA = ("image", "audio", "video")


class Reject(Exception):
    """A row that no conversation can be made of; `reason` is what the books say."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


def is_null(value: Any) -> bool:
    """None, and NaN as tables write it."""
    return value is None or value != value


def text_of(value: Any) -> str:
    """Content as one string: text itself, a list of text parts joined without a separator, bytes as UTF-8.

    Raises Reject('multimodal') for images, sound and films, Reject('bad_content') for anything else.
    """
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list):
        return "".join(_part(part) for part in value)
    if isinstance(value, dict):
        return _part(value)
    raise Reject("bad_content")


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if part is None:
        return ""
    if isinstance(part, dict):
        kind = part.get("type")
        if kind is not None and not isinstance(kind, str):
            raise Reject("bad_content")
        named = [kind or "", *(key for key, value in part.items() if not is_null(value))]
        if any(word in name for name in named for word in MEDIA):
            raise Reject("multimodal")
        text = part.get("text")
        if (kind is None or kind in TEXT_PARTS) and isinstance(text, str):
            return text
    raise Reject("bad_content")


def parsed(value: Any, reason: str) -> Any:
    """A value that may be JSON text; Reject(reason) where it is text but not JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise Reject(reason) from None


def without_nulls(value: Any) -> Any:
    """Plain data without null members: a table's struct type gives every row the keys of all the others."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def mended(value: Any, notes: list[str]) -> Any:
    """The same data with each lone surrogate (half of a character, which no file can hold) made U+FFFD."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            notes.append("lone_surrogate")
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value
    if isinstance(value, dict):
        return {mended(key, notes): mended(item, notes) for key, item in value.items()}
    if isinstance(value, list):
        return [mended(item, notes) for item in value]
    return value

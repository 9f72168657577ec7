"""Words as systemd reads them: quoting for units, and the reading itself for the lint."""

from __future__ import annotations

import re

#: characters that need no quotes in a unit's values
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_SIMPLE = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "s": " ",
    '"': '"',
    "'": "'",
    "\\": "\\",
}


class Unbalanced(ValueError):
    """A quote that is opened and not closed."""


def quote(value: str, command: bool = True) -> str:
    """One word of ExecStart= (command) or one NAME=value of Environment=, so that systemd reads back `value`.

    '%' starts a specifier everywhere, '$' a variable in commands only; JSON keeps its double quotes.
    Raises ValueError for what no unit can hold.
    """
    if "\0" in value:
        raise ValueError("a NUL byte cannot stand in a unit")
    text = value.replace("\\", "\\\\").replace("%", "%%")
    text = re.sub(r"[\x01-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", text)
    if command:
        text = text.replace("$", "$$")
    if value and _PLAIN.fullmatch(text):
        return text
    if "'" not in value:
        return f"'{text}'"
    return "'" + text.replace("'", "\\x27") + "'"


def split(value: str) -> list[str]:
    """Words of a value as systemd splits them: quotes removed, C escapes resolved, specifiers untouched.

    Raises Unbalanced.
    """
    words: list[str] = []
    current: list[str] = []
    quote_mark, inside, position = "", False, 0
    while position < len(value):
        char = value[position]
        if char == "\\" and position + 1 < len(value):
            text, position = _escape(value, position)
            current.append(text)
            inside = True
            continue
        if quote_mark:
            if char == quote_mark:
                quote_mark = ""
            else:
                current.append(char)
        elif char in "\"'":
            quote_mark, inside = char, True
        elif char in " \t":
            if inside or current:
                words.append("".join(current))
            current, inside = [], False
        else:
            current.append(char)
        position += 1
    if quote_mark:
        raise Unbalanced(f"quote {quote_mark} is not closed")
    if inside or current:
        words.append("".join(current))
    return words


def _escape(value: str, position: int) -> tuple[str, int]:
    """The character behind a backslash, and where reading goes on; an unknown escape stays as it is."""
    char = value[position + 1]
    if char in _SIMPLE:
        return _SIMPLE[char], position + 2
    for mark, pattern in (("x", r"[0-9a-fA-F]{2}"), ("u", r"[0-9a-fA-F]{4}"), ("U", r"[0-9a-fA-F]{8}")):
        if char == mark and (found := re.compile(pattern).match(value, position + 2)):
            return chr(int(found[0], 16)), found.end()
    if found := re.compile(r"[0-7]{3}").match(value, position + 1):
        return chr(int(found[0], 8)), found.end()
    return "\\" + char, position + 2


def resolve(value: str) -> list[str]:
    """Words of a command whose only specifier is '%%' and only variable '$$': what the program receives."""
    return [word.replace("%%", "%").replace("$$", "$") for word in split(value)]

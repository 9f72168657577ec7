"""How figures are shown to people: bytes, durations, and text with its secrets taken out."""

from __future__ import annotations

import re
import sys

#: forms in which a secret shows up in logs, most specific first; group 1 (where there is one) is kept
_SECRETS = (
    re.compile(r"\b(?:hf|sk|ghp|gho|glpat|xox[abpr])[_-][A-Za-z0-9_\-]{8,}"),
    re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=\-]{6,}"),
    re.compile(r"([a-z][a-z0-9+.\-]*://)[^\s/@:\"']+:[^\s/@\"']+@"),
    re.compile(
        r"(?i)((?:api[_-]?key|access[_-]?key|token|secret|passw(?:or)?d|authorization)[\"']?\s*[=:]\s*[\"']?)"
        r"(?!\s*(?:none|null|true|false|\d{1,6}\b))[^\s\"',;}]{4,}"
    ),
)
HIDDEN = "***"


def redact(text: str) -> str:
    """The text with tokens, passwords and credentials in URLs replaced by ***."""
    for pattern in _SECRETS:
        text = pattern.sub(lambda match: (match.group(1) if match.lastindex else "") + HIDDEN, text)
    return text


def size(count: float | None) -> str:
    """12.3 GB (powers of 1000, as disks are sold)."""
    if count is None:
        return "-"
    count = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def span(seconds: float | None) -> str:
    """45 s, 12 min, 3 h 05 min, 2 d 4 h."""
    if seconds is None:
        return "-"
    seconds = round(seconds)
    if seconds < 100:
        return f"{seconds} s"
    minutes = (seconds + 30) // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def wants_text(as_json: bool) -> bool:
    """People at a terminal get text; pipes, modules and `--json` get JSON."""
    return not as_json and sys.stdout.isatty()

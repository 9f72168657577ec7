"""The writing system of a text: languages that share one share most of their tokens, too."""

from __future__ import annotations

import re

SAMPLE = 400  # characters that are looked at
#: ranges of code points, as a regular expression's character class
_SCRIPTS = {
    "latin": "\u0041-\u005a\u0061-\u007a\u00c0-\u024f\u1e00-\u1eff",
    "greek": "\u0370-\u03ff",
    "cyrillic": "\u0400-\u052f",
    "armenian": "\u0530-\u058f",
    "hebrew": "\u0590-\u05ff",
    "arabic": "\u0600-\u06ff\u0750-\u077f",
    "devanagari": "\u0900-\u097f",
    "bengali": "\u0980-\u09ff",
    "tamil": "\u0b80-\u0bff",
    "telugu": "\u0c00-\u0c7f",
    "thai": "\u0e00-\u0e7f",
    "georgian": "\u10a0-\u10ff",
    "hangul": "\u1100-\u11ff\uac00-\ud7af",
    "kana": "\u3040-\u30ff",
    "han": "\u3400-\u4dbf\u4e00-\u9fff",
}
_RUNS = {name: re.compile(f"[{characters}]") for name, characters in _SCRIPTS.items()}


def script(text: str) -> str:
    """The commonest writing system of the text's beginning; 'other' where there is none (digits, code points of no
    script here). Japanese counts as kana even where most of its characters are Chinese ones."""
    start = text[:SAMPLE]
    if start.isascii():
        return "latin" if any(character.isalpha() for character in start) else "other"
    counts = {name: len(run.findall(start)) for name, run in _RUNS.items()}
    if counts["kana"] and counts["kana"] * 4 >= counts["han"]:
        counts["kana"] += counts.pop("han")
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else "other"

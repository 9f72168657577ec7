"""Keys of a conversation: what it is (id), and what makes it equal to another one (dedup key)."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import xxhash

KEY_BYTES = 16
BACKSLASH = 0x5C
#: the key of a folded text; it only ever compares rows of one run
digest: Callable[[bytes], bytes] = xxhash.xxh3_128_digest


def folded(text: str) -> str:
    """NFKC, casefold, runs of white space as one blank: two spellings of the same prompt are the same text."""
    if text.isascii():
        return " ".join(text.lower().split())
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).split())


def prompt_key(text: str) -> bytes:
    """Key of a first user turn."""
    return digest(folded(text).encode("utf-8", "surrogatepass"))


def text_key(text: bytes) -> bytes:
    """The same of a text as it stands in JSON, its only escapes those that verbatim.CANONICAL names."""
    plain = text
    if BACKSLASH in plain:
        plain = plain.replace(b"\\n", b" ")
        if BACKSLASH in plain:
            plain = plain.replace(b"\\t", b" ").replace(b'\\"', b'"')
    if BACKSLASH in plain or not plain.isascii():  # a backslash of the text itself, or letters that fold otherwise
        import orjson

        return prompt_key(orjson.loads(text))
    plain = plain[1:-1].strip().lower()
    return digest(b" ".join(plain.split()) if b"  " in plain else plain)


def turns_key(messages: list[dict[str, Any]], turns: int) -> bytes:
    """Key of the first `turns` user turns."""
    texts = [message["content"] for message in messages if message["role"] == "user"][:turns]
    return digest("\x1f".join(map(folded, texts)).encode("utf-8", "surrogatepass"))


def content_id(conversation: bytes, tools: bytes = b"") -> bytes:
    """Key of the whole content, the canonical JSON and the tools.

    It names rows and shuffles them. Nothing is trusted to be equal because its id is: answers are stored under SHA-256
    of what was asked.
    """
    return digest(conversation + b"\x00" + tools if tools else conversation)

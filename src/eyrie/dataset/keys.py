"""Keys of a conversation: what it is (id), and what makes it equal to another one (dedup key)."""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Any

KEY_BYTES = 16


def folded(text: str) -> str:
    """NFKC, casefold, runs of white space as one blank: two spellings of the same prompt are the same text."""
    if text.isascii():
        return " ".join(text.lower().split())
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).split())


def digest(data: bytes) -> bytes:
    """The first 16 bytes of SHA-256."""
    return hashlib.sha256(data).digest()[:KEY_BYTES]


def prompt_key(text: str) -> bytes:
    """Key of a first user turn."""
    return digest(folded(text).encode("utf-8", "surrogatepass"))


def turns_key(messages: list[dict[str, Any]], turns: int) -> bytes:
    """Key of the first `turns` user turns."""
    texts = [message["content"] for message in messages if message["role"] == "user"][:turns]
    return digest("\x1f".join(map(folded, texts)).encode("utf-8", "surrogatepass"))


def content_id(conversation: bytes, tools: str | None) -> bytes:
    """Key of the whole content: the canonical JSON and the tools."""
    return digest(conversation + b"\x00" + tools.encode() if tools else conversation)

"""Keys of a conversation: what it is (id), and what makes it equal to another one (dedup key)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any

import xxhash

from eyrie.dataset.block import BACKSLASH

KEY_BYTES = 16
TWO_BLANKS = re.compile(b"  ")
#: what str.split() takes for a blank, NFKC leaves as it is, and JSON need not escape
OTHER_BLANKS = "\x85\u1680\u2028\u2029"
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


def text_keys(texts: list[bytes]) -> bytes:
    """Keys of texts as they stand in JSON, their only escapes those that block.CANONICAL names: 16 bytes each.

    They are folded together, one on a line: no text holds the end of a line, and that takes part in no folding.
    """
    if not texts:
        return b""
    joined = _unescaped(b"\n".join(texts))
    if joined.isascii():
        joined = joined.lower()
        while TWO_BLANKS.search(joined):  # twice as fast as `in` where there are none
            joined = joined.replace(b"  ", b" ")
        return b"".join([digest(text.strip()) for text in joined[1:-1].split(b'"\n"')])
    folds = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", joined.decode()).casefold())
    spaced = folds[1:-1].split('"\n"')
    if "  " in folds or any(blank in folds for blank in OTHER_BLANKS):
        spaced = [" ".join(text.split()) for text in spaced]
    return b"".join([digest(text.strip().encode()) for text in spaced])


def _unescaped(joined: bytes) -> bytes:
    """Texts without their escapes; ends of lines and tabulators are blanks."""
    plain = joined.replace(b"\\n", b" ")
    if BACKSLASH not in plain:
        return plain
    plain = joined.replace(b"\\\\", b"\0")  # no text holds this byte
    return plain.replace(b"\\n", b" ").replace(b"\\t", b" ").replace(b'\\"', b'"').replace(b"\0", b"\\")


def turns_key(messages: list[dict[str, Any]], turns: int) -> bytes:
    """Key of the first `turns` user turns."""
    texts = [message["content"] for message in messages if message["role"] == "user"][:turns]
    return digest("\x1f".join(map(folded, texts)).encode("utf-8", "surrogatepass"))


def content_ids(conversations: list[bytes]) -> bytes:
    """content_id of conversations without tools, 16 bytes each."""
    return b"".join(map(digest, conversations))


def content_id(conversation: bytes, tools: bytes = b"") -> bytes:
    """Key of the whole content, the canonical JSON and the tools.

    It names rows and shuffles them. Nothing is trusted to be equal because its id is: answers are stored under SHA-256
    of what was asked.
    """
    return digest(conversation + b"\x00" + tools if tools else conversation)

"""The shortest way: from a line of JSON to a conversation's canonical bytes, its texts passed through undecoded.

Only for rows that are plain in every respect; None for all others, which then go through quick.py or the adapters.
That the ways agree is a property that the tests check. A text may be passed through because a line is only `clean`
when each escape in it is spelled as the canonical form spells it, and because msgspec has checked its syntax. Rows of
turns have a file of their own, verbatim_turns.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from eyrie.dataset.adapters import Adapter

#: a line's (canonical conversation, first user text as JSON), or None
Way = Callable[[bytes], "tuple[bytes, bytes] | None"]

QUOTE, BACKSLASH = 0x22, 0x5C
#: bytes that only a text which is not blank begins with: visible ASCII, and the first bytes of other characters
#: except those that some Unicode blank has too
SOLID = (frozenset(range(0x21, 0x7F)) | frozenset(range(0xC3, 0xF5))) - {QUOTE, BACKSLASH, 0xE1, 0xE2, 0xE3}
#: what may follow a backslash; the canonical form spells these escapes so, other characters as they are
CANONICAL = b'n"\\t'


def way(adapter: Adapter) -> Way | None:
    """The way of an adapter; None where its rows are never that plain."""
    if adapter.style.max_turns or adapter.table:
        return None
    if adapter.kind in ("messages", "sharegpt"):
        from eyrie.dataset import verbatim_turns

        return verbatim_turns.way(adapter)
    makers = {"pair": _pair, "prompt": _prompt}
    maker = makers.get(adapter.kind)
    return maker(adapter) if maker else None


def unclean(data: bytes, lines: list[bytes]) -> set[int] | None:
    """Indices of the lines of a block that may hold an escape in another spelling; None: no line can be trusted.

    An escaped backslash before other than what CANONICAL holds is taken for such an escape too: that costs time only.
    """
    import numpy as np

    if not data.isascii() and not _is_utf8(data):
        return None
    array = np.frombuffer(data, dtype=np.uint8)
    escapes = array[:-1] == BACKSLASH
    if not escapes.any():
        return set()
    behind = array[1:]
    for byte in CANONICAL:
        escapes &= behind != byte
        if not escapes.any():
            return set()
    ends = np.cumsum(np.fromiter(map(len, lines), dtype=np.int64, count=len(lines)) + 1)
    return set(np.searchsorted(ends, np.flatnonzero(escapes), side="right").tolist())


def _is_utf8(data: bytes) -> bool:
    import numpy as np
    import pyarrow as pa

    ends = np.array([0, len(data)], dtype=np.int64)
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def blank(text: bytes) -> bool:
    """Whether a text says nothing; it begins in an unusual way."""
    import orjson

    said: str = orjson.loads(text)
    return not said or said.isspace()


def _never() -> Any:
    """The type of a member that sends its row the longer way: nothing can be decoded as it."""
    from typing import Annotated

    import msgspec

    return Annotated[int, msgspec.Meta(gt=0, lt=0)]


def decoder(name: str, fields: dict[str, tuple[Any, ...]], strict: bool = False) -> tuple[Any, Any]:
    """(struct type, decode) of members {key: (type,) or (type, default)}; their attributes are f0, f1, ..."""
    import msgspec

    names = {f"f{number}": key for number, key in enumerate(fields)}
    defined = [(short, *fields[key]) for short, key in names.items()]
    kind = msgspec.defstruct(name, defined, rename=names, gc=False, forbid_unknown_fields=strict)
    return kind, msgspec.json.Decoder(kind).decode


def special(names: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Members that send a row the longer way, unless they are absent or null."""
    kind = _never() | None
    return {name: (kind, None) for name in names}


def tags_of(adapter: Adapter) -> list[tuple[int, bytes]]:
    """(first byte, tag) of the tags that make an assistant's text more than an answer, as they stand in JSON."""
    import orjson

    tags = [orjson.dumps(tag)[1:-1] for tag in (*adapter.style.think[1:], *adapter.style.answer[:1])]
    return [(tag[0], tag) for tag in tags]


def _pair(adapter: Adapter) -> Way:
    import msgspec

    prompt, response = adapter.prompt[0], adapter.response[0]
    longer = special([*adapter.system, *adapter.tools, *adapter.reasoning, *adapter.input, "metadata"])
    decode = decoder("Row", {prompt: (msgspec.Raw,), response: (msgspec.Raw,), **longer})[1]
    tags = tags_of(adapter)
    solid, wrong = SOLID, msgspec.MsgspecError

    def plain(line: bytes) -> tuple[bytes, bytes] | None:
        try:
            row = decode(line)
        except wrong:
            return None
        asked, answer = bytes(row.f0), bytes(row.f1)
        for text in (asked, answer):
            if text[0] != QUOTE or (text[1] not in solid and blank(text)):
                return None
        for byte, tag in tags:
            if byte in answer and tag in answer:
                return None
        return b'[{"role":"user","content":%b},{"role":"assistant","content":%b}]' % (asked, answer), asked

    return plain


def _prompt(adapter: Adapter) -> Way:
    import msgspec

    longer = special([*adapter.system, *adapter.tools, *adapter.reasoning, "metadata"])
    decode = decoder("Row", {adapter.prompt[0]: (msgspec.Raw,), **longer})[1]
    solid, wrong = SOLID, msgspec.MsgspecError

    def plain(line: bytes) -> tuple[bytes, bytes] | None:
        try:
            text = bytes(decode(line).f0)
        except wrong:
            return None
        if text[0] != QUOTE or (text[1] not in solid and blank(text)):
            return None
        return b'[{"role":"user","content":%b}]' % text, text

    return plain

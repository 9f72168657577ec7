"""The shortest way: from a line of JSON to a conversation's canonical bytes, its texts passed through undecoded.

Only for rows that are plain in every respect; None for all others, which then go through quick.py or the adapters.
That the ways agree is a property that the tests check. A text may be passed through because a line is only `clean`
when each escape in it is spelled as the canonical form spells it, and because msgspec has checked its syntax. Rows of
turns have a file of their own, verbatim_turns.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from eyrie.dataset.adapters import Adapter
from eyrie.dataset.block import BACKSLASH, Block

#: a row's canonical conversation and its first user text, as they stand in JSON
Hit = tuple[bytes, bytes]

QUOTE, BRACKET = 0x22, 0x5B
#: bytes that only a text which is not blank begins with: visible ASCII, and the first bytes of other characters
#: except those that some Unicode blank has too
SOLID = (frozenset(range(0x21, 0x7F)) | frozenset(range(0xC3, 0xF5))) - {QUOTE, BACKSLASH, 0xE1, 0xE2, 0xE3}


class Form(NamedTuple):
    """One of the forms that an adapter's rows may have: its decoder, and what makes a hit of a decoded row, or None.

    listed: contents are lists of one text part; looks: tells of a row without such contents whether they are lists.
    """

    decoder: Any
    say: Callable[[Any], Hit | None]
    listed: bool = False
    looks: Callable[[Any], bool] | None = None


class Way:
    """The way of an adapter. The form that fitted last is tried first: the rows of a file are mostly alike."""

    def __init__(self, forms: list[Form]):
        import msgspec

        self.forms = forms
        self.form = forms[0]
        self._wrong = msgspec.MsgspecError

    def block(self, block: Block) -> tuple[list[Hit], list[int]]:
        """The hits among a block's lines, in their order, and the indices of all other lines."""
        unclean = block.unclean()
        if unclean is None:
            return [], list(range(block.count))
        rows = self._rows(block)
        if rows:
            found: list[Hit | None] = list(map(self.form.say, rows))
            for index in unclean:
                found[index] = None
            looks = self.form.looks
            missed = [index for index, hit in enumerate(found) if hit is None and index not in unclean]
            again = [index for index in missed if looks and looks(rows[index])]
        else:
            found = [None] * block.count
            again = [index for index in range(block.count) if index not in unclean]
        for index, line in zip(again, block.lines(again), strict=True):
            found[index] = self.line(line)
        return [hit for hit in found if hit], [index for index, hit in enumerate(found) if hit is None]

    def _rows(self, block: Block) -> list[Any]:
        """All lines as rows in the present form; empty where one of them does not fit."""
        try:
            rows: list[Any] = self.form.decoder.decode_lines(block.data)
        except self._wrong:
            return []
        return rows if len(rows) == block.count else []  # else a row spans lines, or a line is blank

    def line(self, line: bytes) -> Hit | None:
        """What a clean line gives, in whichever form it fits."""
        row = self._read(line, listed=False)
        if row is None:
            return None
        found = self.form.say(row)
        looks = self.form.looks
        if found is None and looks and looks(row) and (row := self._read(line, listed=True)) is not None:
            found = self.form.say(row)
        return found

    def _read(self, line: bytes, listed: bool) -> Any:
        """The row in the present form, or in the first form that fits; None where none does."""
        for form in (*(() if listed else (self.form,)), *self.forms):
            if form.listed or not listed:
                try:
                    row = form.decoder.decode(line)
                except self._wrong:
                    continue
                self.form = form
                return row
        return None


def way(adapter: Adapter) -> Way | None:
    """The way of an adapter; None where its rows are never that plain."""
    if adapter.style.max_turns or adapter.table:
        return None
    if adapter.kind in ("messages", "sharegpt"):
        from eyrie.dataset import verbatim_turns

        return Way(verbatim_turns.forms(adapter))
    makers = {"pair": _pair, "prompt": _prompt}
    maker = makers.get(adapter.kind)
    return Way([maker(adapter)]) if maker else None


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
    """(struct type, decoder) of members {key: (type,) or (type, default)}; their attributes are f0, f1, ..."""
    import msgspec

    names = {f"f{number}": key for number, key in enumerate(fields)}
    defined = [(short, *fields[key]) for short, key in names.items()]
    kind = msgspec.defstruct(name, defined, rename=names, gc=False, forbid_unknown_fields=strict)
    return kind, msgspec.json.Decoder(kind)


def special(names: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Members that send a row the longer way, unless they are absent or null."""
    kind = _never() | None
    return {name: (kind, None) for name in names}


def tags_of(adapter: Adapter) -> list[tuple[int, bytes]]:
    """(first byte, tag) of the tags that make an assistant's text more than an answer, as they stand in JSON."""
    import orjson

    tags = [orjson.dumps(tag)[1:-1] for tag in (*adapter.style.think[1:], *adapter.style.answer[:1])]
    return [(tag[0], tag) for tag in tags]


def _pair(adapter: Adapter) -> Form:
    import msgspec

    prompt, response = adapter.prompt[0], adapter.response[0]
    longer = special([*adapter.system, *adapter.tools, *adapter.reasoning, *adapter.input, "metadata"])
    decode = decoder("Row", {prompt: (msgspec.Raw,), response: (msgspec.Raw,), **longer})[1]
    tags = tags_of(adapter)
    solid = SOLID

    def say(row: Any) -> Hit | None:
        asked, answer = bytes(row.f0), bytes(row.f1)
        for text in (asked, answer):
            if text[0] != QUOTE or (text[1] not in solid and blank(text)):
                return None
        for byte, tag in tags:
            if byte in answer and tag in answer:
                return None
        return b'[{"role":"user","content":%b},{"role":"assistant","content":%b}]' % (asked, answer), asked

    return Form(decode, say)


def _prompt(adapter: Adapter) -> Form:
    import msgspec

    longer = special([*adapter.system, *adapter.tools, *adapter.reasoning, "metadata"])
    decode = decoder("Row", {adapter.prompt[0]: (msgspec.Raw,), **longer})[1]
    solid = SOLID

    def say(row: Any) -> Hit | None:
        text = bytes(row.f0)
        if text[0] != QUOTE or (text[1] not in solid and blank(text)):
            return None
        return b'[{"role":"user","content":%b}]' % text, text

    return Form(decode, say)

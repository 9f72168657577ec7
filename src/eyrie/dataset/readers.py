"""Readers: the records of a file, or of a stretch of it, one by one with their line numbers.

A reader yields (line, value, fault, notes): `value` is the row as plain data, or fault names why it cannot be read.
Lines are counted from the reader's own start, from 1; tables count rows. `position` is how many bytes of the file
have been consumed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from eyrie.core.errors import EyrieError
from eyrie.dataset.formats import Shape, text_stream, torn
from eyrie.dataset.values import mended

Record = tuple[int, Any, str, list[str]]
BLOCK = 1 << 18  # a block and what is made of it stay in the core's own cache
LONGEST_ROW = 1 << 28  # characters; a row of an array that is longer is taken for a damaged one
NO_NOTES: list[str] = []


class Reader:
    """Base: iterate over it for records; `position` and `lines` say how far it is."""

    def __init__(self, path: Path, shape: Shape):
        self.path, self.shape = path, shape
        self.position = 0
        self.lines = 0

    def __iter__(self) -> Iterator[Record]:
        raise NotImplementedError


def parse(line: bytes) -> tuple[Any, str, list[str]]:
    """(value, fault, notes) of one JSON text. Broken characters are mended and noted; NaN is taken as Python does."""
    import orjson

    try:
        return orjson.loads(line), "", NO_NOTES
    except orjson.JSONDecodeError:
        pass
    notes: list[str] = []
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        text = line.decode("utf-8", "replace")
        notes.append("bad_utf8")
    try:
        return mended(json.loads(text), notes), "", notes
    except (ValueError, RecursionError):
        return None, "bad_json", notes


class Lines(Reader):
    """JSON lines, or lines of text, of a stretch [start, end) of bytes: those lines that begin in it."""

    def __init__(self, path: Path, shape: Shape, start: int = 0, end: int = 0):
        super().__init__(path, shape)
        self.start, self.end = start, end

    def blocks(self) -> Iterator[bytes]:
        """Blocks of whole lines, without the last line's end."""
        try:
            with text_stream(self.path, self.shape) as stream:
                if self.shape.splittable:
                    yield from self._stretch(stream)
                else:
                    yield from self._all(stream)
        except (OSError, EOFError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise torn(self.path, error) from error
        except Exception as error:
            if type(error).__name__ in ("ZstdError", "LZMAError", "error"):
                raise torn(self.path, error) from error
            raise

    def _stretch(self, stream: IO[bytes]) -> Iterator[bytes]:
        mark = 3 if self.shape.encoding == "utf-8-sig" else 0
        position = self.start
        if self.start > mark:
            stream.seek(self.start - 1)
            position += len(stream.readline()) - 1
        else:
            stream.seek(mark)
            position = mark
        while position < self.end:
            data = stream.read(min(BLOCK, self.end - position))
            if not data:
                return
            if not data.endswith(b"\n"):
                data += stream.readline()
            position += len(data)
            self.position = position - self.start
            yield data.removesuffix(b"\n")

    def _all(self, stream: IO[bytes]) -> Iterator[bytes]:
        rest = b""
        while data := stream.read(BLOCK):
            self.position += len(data)
            head, newline, tail = data.rpartition(b"\n")
            if newline:
                yield rest + head
                rest = tail
            else:
                rest += data
        if rest:
            yield rest

    def __iter__(self) -> Iterator[Record]:
        text = self.shape.kind == "text"
        for block in self.blocks():
            for line in block.split(b"\n"):
                self.lines += 1
                if not line or line.isspace():
                    continue
                if text:
                    yield self.lines, line.decode("utf-8", "replace").strip(), "", NO_NOTES
                else:
                    yield (self.lines, *parse(line))


class Document(Reader):
    """One JSON document: an array of rows, an object that holds them under `field`, or values one after another.

    Read in pieces, so that an array of any size needs the memory of one row. A damaged array cannot be picked up
    again behind the damage: it is an error of the file.
    """

    def __init__(self, path: Path, shape: Shape, field: str = ""):
        super().__init__(path, shape)
        self.field = field

    def __iter__(self) -> Iterator[Record]:
        if self.field:
            with text_stream(self.path, self.shape) as stream:
                yield from self._under(stream)
            return
        number = 0
        try:
            with text_stream(self.path, self.shape) as stream:
                for value in elements(stream, self):
                    number += 1
                    self.lines = number
                    notes: list[str] = []
                    yield number, mended(value, notes), "", notes
        except (EOFError, ValueError, RecursionError) as error:
            raise torn(self.path, ValueError(f"{error} (behind row {number})")) from error

    def _under(self, stream: IO[bytes]) -> Iterator[Record]:
        value, fault, notes = parse(stream.read())
        if fault:
            raise torn(self.path, ValueError("it is not one JSON document"))
        rows = value.get(self.field) if isinstance(value, dict) else None
        if not isinstance(rows, list):
            raise EyrieError(
                f"the document has no list under {self.field!r}.", where=str(self.path), code="field-missing"
            )
        self.position = self.path.stat().st_size
        for number, row in enumerate(rows, 1):
            self.lines = number
            yield number, row, "", notes if number == 1 else NO_NOTES


def elements(stream: IO[bytes], reader: Reader) -> Iterator[Any]:
    """Values of a JSON array, or values one after another, decoded as they are read."""
    import codecs

    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    scan = json.JSONDecoder().raw_decode
    text, place, ended, started, array = "", 0, False, False, False

    def more() -> None:
        nonlocal text, place, ended
        data = stream.read(max(BLOCK, len(text) - place))  # doubles for a row larger than a block
        reader.position += len(data)
        ended = not data
        text, place = text[place:] + decode(data, ended), 0

    more()
    while True:
        place = _past(text, place, " \t\r\n" + (",\ufeff" if started else "\ufeff"))
        if place >= len(text):
            if ended:
                if array:
                    raise EOFError("the array is not closed")
                return
            more()
            continue
        if not started and text[place] == "[":
            started = array = True
            place += 1
            continue
        started = True
        if array and text[place] == "]":
            return
        try:
            value, end = scan(text, place)
        except ValueError:
            if ended or len(text) - place > LONGEST_ROW:
                raise
            more()
            continue
        if end == len(text) and not ended and not isinstance(value, (dict, list, str)):
            more()  # a number may go on in the next block
            continue
        yield value
        place = end


def _past(text: str, place: int, blanks: str) -> int:
    while place < len(text) and text[place] in blanks:
        place += 1
    return place


class Yaml(Reader):
    """A YAML file: a list of rows, or a mapping that holds it under `field`."""

    def __init__(self, path: Path, shape: Shape, field: str = ""):
        super().__init__(path, shape)
        self.field = field

    def __iter__(self) -> Iterator[Record]:
        import yaml

        with text_stream(self.path, self.shape) as stream:
            data = stream.read()
        try:
            value = yaml.load(data.decode("utf-8", "replace"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
        except yaml.YAMLError as error:
            raise torn(self.path, error) from error
        rows = value.get(self.field) if self.field and isinstance(value, dict) else value
        if not isinstance(rows, list):
            raise EyrieError(
                f"the document has no list{f' under {self.field!r}' if self.field else ''}.",
                where=str(self.path),
                code="field-missing",
            )
        self.position = len(data)
        for number, row in enumerate(rows, 1):
            self.lines = number
            yield number, row, "", NO_NOTES

"""What a file really is: by its first bytes, not by its name.

`shape` answers (compression, kind, encoding). Kinds: parquet, arrow, jsonl, json (one document: an array, an object
that holds the rows, or objects one after another), csv, yaml, text.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from eyrie.core.errors import EyrieError

HEAD = 1 << 20
MAGIC = ((b"\x1f\x8b", "gz"), (b"\x28\xb5\x2f\xfd", "zst"), (b"BZh", "bz2"), (b"\xfd7zXZ\x00", "xz"))
BOMS = (
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
PACKED = {".gz", ".zst", ".bz2", ".xz"}
DATA = {".json", ".jsonl", ".ndjson", ".parquet", ".arrow", ".feather", ".csv", ".tsv", ".txt", ".yml", ".yaml"}
#: files that describe a data set and hold none of its rows
ABOUT = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "package.json"}


@dataclass(frozen=True)
class Shape:
    packed: str
    kind: str
    encoding: str
    delimiter: str = ","

    @property
    def splittable(self) -> bool:
        """Whether byte ranges of the file can be read on their own."""
        return self.kind in ("jsonl", "text") and not self.packed and self.encoding in ("utf-8", "utf-8-sig")


def suffix(path: Path) -> str:
    """The extension without that of the compression: 'a.jsonl.gz' -> '.jsonl'."""
    parts = [part.lower() for part in path.suffixes]
    while parts and parts[-1] in PACKED:
        parts.pop()
    return parts[-1] if parts else ""


def is_data(path: Path) -> bool:
    return suffix(path) in DATA and path.name not in ABOUT and not path.name.startswith(".")


def unpacked(path: Path, packed: str) -> IO[bytes]:
    """The file's content as a binary stream; errors of a torn archive come while reading."""
    if packed == "gz":
        import gzip

        return cast(IO[bytes], gzip.open(path, "rb"))
    if packed == "bz2":
        import bz2

        return bz2.open(path, "rb")
    if packed == "xz":
        import lzma

        return lzma.open(path, "rb")
    if packed == "zst":
        return cast(IO[bytes], io.BufferedReader(_Zstd(path)))
    return open(path, "rb")


def text_stream(path: Path, shape: Shape) -> IO[bytes]:
    """The file's content as UTF-8 bytes without a byte order mark, whatever it was written in."""
    stream = unpacked(path, shape.packed)
    if shape.encoding == "utf-8":
        return stream
    if shape.encoding == "utf-8-sig":
        mark = stream.read(3)
        assert mark == b"\xef\xbb\xbf"
        return stream
    return cast(IO[bytes], _Transcoded(io.TextIOWrapper(stream, shape.encoding, errors="replace", newline="")))


class _Zstd(io.RawIOBase):
    """Zstandard frames of a file; unlike the library's own reader it notices a file that ends early."""

    def __init__(self, path: Path):
        self._file = open(path, "rb")  # noqa: SIM115 - closed by close
        self._frame: Any = None
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        import zstandard

        while not self._rest:
            data = self._file.read(1 << 17)
            if not data:
                if self._frame is not None:
                    raise EOFError("the last frame is not complete")
                return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._rest = self._frame.decompress(data)
            if self._frame.eof:
                self._file.seek(-len(self._frame.unused_data), io.SEEK_CUR)
                self._frame = None
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class _Transcoded(io.RawIOBase):
    """UTF-8 bytes of a text stream, without its byte order mark."""

    def __init__(self, text: io.TextIOWrapper):
        self._text = text
        self._rest = b""
        self._first = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            piece = self._text.read(1 << 16)
            if self._first:
                piece, self._first = piece.removeprefix("\ufeff"), False
            self._rest = piece.encode("utf-8", "replace")
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        self._text.close()
        super().close()


def torn(path: Path, error: BaseException) -> EyrieError:
    """The error of a file that ends early or is damaged."""
    return EyrieError(
        "the file is damaged or ends early.",
        where=str(path),
        why=f"{type(error).__name__}: {error}",
        todo="Fetch or copy it again; rows read before the damage are not used.",
        code="file-torn",
    )


def shape(path: Path, wanted: str = "auto", delimiter: str = "", field: str = "") -> Shape:
    """Look into a file. A kind that is stated (`wanted`) is believed of text; 'auto' goes by the content."""
    with open(path, "rb") as raw:
        first = raw.read(8)
    if not first:
        return Shape("", "jsonl", "utf-8")
    packed = next((name for magic, name in MAGIC if first.startswith(magic)), "")
    try:
        with unpacked(path, packed) as stream:
            head = stream.read(HEAD)
    except (OSError, EOFError, ValueError) as error:
        raise torn(path, error) from error
    except Exception as error:
        if type(error).__name__ in ("ZstdError", "LZMAError"):
            raise torn(path, error) from error
        raise
    if head.startswith(b"PAR1"):
        return Shape(packed, "parquet", "")
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return Shape(packed, "arrow", "")
    if head.startswith(b"version https://git-lfs"):
        raise EyrieError(
            "this is a Git LFS pointer, not the data.",
            where=str(path),
            todo="Run `git lfs pull` there.",
            code="lfs-pointer",
        )
    encoding = _encoding(head)
    text = head.decode(encoding, "replace").removeprefix("\ufeff").lstrip()
    extension = suffix(path)
    if extension in (".parquet", ".arrow", ".feather") and not text.startswith(("{", "[")):
        raise torn(path, ValueError(f"no {extension[1:]} file: it begins with {head[:4]!r}"))
    kind = _text_kind(text, extension, wanted, field, len(head) < HEAD)
    return Shape(packed, kind, encoding, delimiter or ("\t" if extension == ".tsv" else ","))


def _encoding(head: bytes) -> str:
    for mark, name in BOMS:
        if head.startswith(mark):
            return name
    if len(head) >= 4 and head[1::2][:64].count(0) > len(head[1::2][:64]) // 2:
        return "utf-16-le"
    if len(head) >= 4 and head[::2][:64].count(0) > len(head[::2][:64]) // 2:
        return "utf-16-be"
    return "utf-8"


def _text_kind(text: str, extension: str, wanted: str, field: str, whole: bool) -> str:
    looks_json = text.startswith(("{", "["))
    if wanted in ("csv", "yaml", "text", "jsonl", "json"):
        return wanted
    if wanted == "auto" and not looks_json:
        if extension in (".csv", ".tsv"):
            return "csv"
        if extension in (".yml", ".yaml"):
            return "yaml"
        if extension in (".txt", ""):
            return "text"
    if field:
        return "json"
    return "jsonl" if _by_lines(text, whole) else "json"


def _by_lines(text: str, whole: bool) -> bool:
    """Whether each line is a JSON value of its own (some may be damaged), as against one document."""
    lines = [line for line in text.split("\n")[: 200 if whole else -1][:200] if line.strip()]
    complete = [_complete(line) for line in lines]
    if text.startswith("["):
        return sum(complete) >= 2
    if text.startswith("{") and not any(complete):
        return len(lines) <= 1 and not (whole and _complete(text))
    return True


def _complete(line: str) -> bool:
    if not line.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True

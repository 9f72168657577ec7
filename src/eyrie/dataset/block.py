"""A block of lines: how many there are, each of them, and which may hold an escape that is spelled in another way."""

from __future__ import annotations

from functools import cached_property
from typing import Any

NEWLINE, BACKSLASH = 0x0A, 0x5C
#: what may follow a backslash; the canonical form spells these escapes so, other characters as they are
CANONICAL = b'n"\\t'
FEW = 8  # a block is cut into all its lines where more than one in so many is asked for


class Block:
    """Whole lines, without the last one's end; they are only cut apart where one of them is looked at."""

    def __init__(self, data: bytes):
        import numpy as np

        self.data = data
        self._array = np.frombuffer(data, dtype=np.uint8)
        self.count = int(np.count_nonzero(self._array == NEWLINE)) + 1

    @cached_property
    def _lines(self) -> list[bytes]:
        return self.data.split(b"\n")

    def lines(self, indices: list[int]) -> list[bytes]:
        """Some of the lines, by their indices in rising order."""
        if len(indices) * FEW > self.count or "_lines" in self.__dict__:
            lines = self._lines
            return [lines[index] for index in indices]
        found, line, start = [], 0, 0
        for index in indices:
            while line < index:
                line, start = line + 1, self.data.index(b"\n", start) + 1
            end = self.data.find(b"\n", start)
            found.append(self.data[start : end if end >= 0 else None])
        return found

    def unclean(self) -> set[int] | None:
        """Indices of the lines that hold an escape in another spelling; None: no line can be trusted."""
        import numpy as np

        if not self.data.isascii() and not _is_utf8(self.data):
            return None
        slashes = self._array[:-1] == BACKSLASH
        if not slashes.any() or not self._others(slashes).any():
            return set()
        text = slashes[1:] & slashes[:-1]  # the second of two backslashes is text
        if (text[1:] & text[:-1]).any():
            runs = np.flatnonzero(slashes)
            starts = runs[np.diff(runs, prepend=-2) != 1]  # of longer runs, of which every second is text
            odd = (runs - starts[np.searchsorted(starts, runs, side="right") - 1]) % 2 == 1
            slashes[runs[odd]] = False
        else:
            slashes[1:] &= ~text
        places = np.flatnonzero(self._others(slashes))
        if not len(places):
            return set()
        ends = np.cumsum(np.fromiter(map(len, self._lines), dtype=np.int64, count=self.count) + 1)
        return set(np.searchsorted(ends, places, side="right").tolist())

    def _others(self, slashes: Any) -> Any:
        """Those backslashes that something else follows than in the canonical form."""
        behind, others = self._array[1:], slashes.copy()
        for byte in CANONICAL:
            others &= behind != byte
            if not others.any():
                break
        return others


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True

"""Arrow columns straight from memory. `pyarrow.array` over lists is slower, and its first call imports pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def keys(values: Sequence[bytes], width: int = 16) -> Any:
    """Binary values of one width."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.binary(width), len(values), [None, pa.py_buffer(b"".join(values))])


def integers(values: Any) -> Any:
    """int64 of a list or a numpy array."""
    import numpy as np
    import pyarrow as pa

    data = np.ascontiguousarray(values, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(data), [None, pa.py_buffer(data)])


def numbers(column: Any) -> Any:
    """A column of int64 without nulls as a numpy array."""
    import numpy as np

    array = column.combine_chunks() if hasattr(column, "chunks") else column
    return np.frombuffer(array.buffers()[1], dtype=np.int64)[array.offset : array.offset + len(array)]


def texts(values: Sequence[bytes]) -> Any:
    """Strings of values that are known to be UTF-8."""
    import numpy as np
    import pyarrow as pa

    ends = np.cumsum(np.fromiter(map(len, values), dtype=np.int64, count=len(values)))
    if len(ends) and ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError("the texts of one part are larger than 2 GiB")
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    offsets[1:] = ends
    return pa.Array.from_buffers(
        pa.string(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    )


def optional_texts(values: Sequence[str | None]) -> Any:
    """Strings of which some, or usually all, are missing."""
    import numpy as np
    import pyarrow as pa

    if not any(values):
        return pa.nulls(len(values), pa.string())
    column = texts([value.encode() if value is not None else b"" for value in values])
    valid = np.packbits([value is not None for value in values], bitorder="little")
    return pa.Array.from_buffers(pa.string(), len(values), [pa.py_buffer(valid), *column.buffers()[1:]])


def hexadecimal(column: Any) -> Any:
    """A column of 16-byte keys as hexadecimal text."""
    import numpy as np
    import pyarrow as pa

    count = len(column)
    data = bytes(column.buffers()[1])[column.offset * 16 : (column.offset + count) * 16].hex().encode()
    offsets = np.arange(count + 1, dtype=np.int32) * 32
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def repeated(value: str, count: int) -> Any:
    """The same text in every row."""
    return texts([value.encode()] * count)

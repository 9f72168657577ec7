"""Arrow columns straight from memory. `pyarrow.array` over lists is slower, and its first call imports pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

IN_VIEW = 12  # bytes of a string that a view holds itself


def integers(values: Any) -> Any:
    """int64 of a list or a numpy array."""
    import numpy as np
    import pyarrow as pa

    data = np.ascontiguousarray(values, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(data), [None, pa.py_buffer(data)])


def text(data: Any, sizes: Any, valid: Any = None) -> Any:
    """Strings that stand one behind another in `data`, known to be UTF-8. valid: which of them are not null."""
    import numpy as np
    import pyarrow as pa

    ends = np.cumsum(sizes, dtype=np.int64)
    if len(ends) and ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError("the texts of one column are larger than 2 GiB")
    offsets = np.zeros(len(ends) + 1, dtype=np.int32)
    offsets[1:] = ends
    mask = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), len(ends), [mask, pa.py_buffer(offsets), pa.py_buffer(data)])


def texts(values: Sequence[bytes]) -> Any:
    """Strings of values that are known to be UTF-8."""
    import numpy as np

    return text(b"".join(values), np.fromiter(map(len, values), dtype=np.int64, count=len(values)))


def views(table: Any, column: int, rows: Any) -> tuple[Any, Any]:
    """(field, array) of some strings of a column in a given order, as views where all are long: no text is copied.

    A view is 16 bytes: size, first four bytes, number of the buffer, place in it. Short strings would lie in the view.
    Source: "Variable-size Binary View Layout" in the Arrow columnar format.
    """
    import numpy as np
    import pyarrow as pa

    field, strings = table.schema.field(column), table.column(column).combine_chunks()
    _, offsets, data = strings.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[strings.offset : strings.offset + len(strings) + 1]
    starts, sizes = ends[:-1][rows], np.diff(ends)[rows]
    if strings.null_count or not len(rows) or sizes.min() <= IN_VIEW:
        return field, strings.take(integers(rows))
    view = np.zeros((len(rows), 4), dtype="<i4")
    view[:, 0], view[:, 3] = sizes, starts
    view[:, 1] = np.frombuffer(data, dtype=np.uint8)[starts[:, None] + np.arange(4)].view("<i4")[:, 0]
    array = pa.Array.from_buffers(pa.string_view(), len(rows), [None, pa.py_buffer(view), data])
    return pa.field(field.name, pa.string_view(), nullable=field.nullable), array


def no_text(count: int) -> Any:
    """Strings that are all missing."""
    import pyarrow as pa

    return pa.nulls(count, pa.string())


def chosen(names: Sequence[str], numbers: Any) -> Any:
    """names[number] for each number, as strings."""

    known = texts([name.encode() for name in names])
    return known.take(integers(numbers))


def hexadecimal(data: bytes) -> Any:
    """Keys of 16 bytes, one behind another, as hexadecimal text."""
    import numpy as np

    return text(data.hex().encode(), np.full(len(data) // 16, 32, dtype=np.int64))


def repeated(value: str, count: int) -> Any:
    """The same text in every row."""
    return texts([value.encode()] * count)

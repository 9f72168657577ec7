"""Thrift's compact protocol, as far as the metadata of a Parquet file uses it.

A struct is {field: (kind, value)} in the order of its fields; a list is (kind, values). What is read and written again
is the same, byte for byte: fields that nobody here knows pass through.

Source: thrift/doc/specs/thrift-compact-protocol.md in the Apache Thrift repository.
"""

from __future__ import annotations

from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
INTEGERS = (I16, I32, I64)

Struct = dict[int, tuple[int, Any]]


def read(data: bytes, position: int = 0) -> tuple[Struct, int]:
    """The struct at a position, and where it ends. Raises ValueError for what Parquet's metadata never holds."""
    fields: Struct = {}
    field = 0
    while head := data[position]:
        position += 1
        kind = head & 15
        if head >> 4:
            field += head >> 4
        else:
            field, position = _integer(data, position)
        fields[field], position = _value(data, position, kind)
    return fields, position + 1


def write(fields: Struct) -> bytes:
    """The struct as bytes."""
    out = bytearray()
    before = 0
    for field, (kind, value) in fields.items():
        if 0 < field - before < 16:
            out.append((field - before) << 4 | kind)
        else:
            out.append(kind)
            out += _varint(_zigzag(field))
        if kind not in (TRUE, FALSE):
            out += _bytes(kind, value)
        before = field
    out.append(0)
    return bytes(out)


def _value(data: bytes, position: int, kind: int) -> tuple[tuple[int, Any], int]:
    value: Any
    if kind in (TRUE, FALSE):
        return (kind, kind == TRUE), position
    if kind == BYTE:
        return (kind, data[position]), position + 1
    if kind in INTEGERS:
        value, position = _integer(data, position)
    elif kind == DOUBLE:
        value, position = data[position : position + 8], position + 8
    elif kind == BINARY:
        size, position = _unsigned(data, position)
        value, position = data[position : position + size], position + size
    elif kind in (LIST, SET):
        size, each = data[position] >> 4, data[position] & 15
        position += 1
        if size == 15:
            size, position = _unsigned(data, position)
        values = []
        for _ in range(size):
            # a truth value in a list is a byte of its own
            (_, item), position = _value(data, position, BYTE if each in (TRUE, FALSE) else each)
            values.append(item)
        value = (each, values)
    elif kind == STRUCT:
        value, position = read(data, position)
    else:
        raise ValueError(f"a Thrift value of kind {kind}, which Parquet's metadata does not have")
    return (kind, value), position


def _bytes(kind: int, value: Any) -> bytes:
    if kind == BYTE:
        return bytes([value])
    if kind in INTEGERS:
        return _varint(_zigzag(value))
    if kind == DOUBLE:
        return bytes(value)
    if kind == BINARY:
        return _varint(len(value)) + bytes(value)
    if kind == STRUCT:
        return write(value)
    each, values = value
    head = bytes([len(values) << 4 | each]) if len(values) < 15 else bytes([0xF0 | each]) + _varint(len(values))
    return head + b"".join(_bytes(BYTE if each in (TRUE, FALSE) else each, item) for item in values)


def _unsigned(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _integer(data: bytes, position: int) -> tuple[int, int]:
    value, position = _unsigned(data, position)
    return value >> 1 ^ -(value & 1), position


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)

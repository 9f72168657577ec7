"""One states file: what it must hold, and by name all that can be wrong with it.

A safetensors file with `hidden_states` [seq, layers, hidden] and `token_ids` [seq] (int64); under fp8 also
`hidden_states_scales` [seq, layers, 1] (fp32), the format that speculators' fp8 backend reads.

Headers are parsed here, before anything is allocated: a header that lies about its length must not cost memory.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyrie.hidden_states.keys import Shape

HEADER_LIMIT = 1 << 20
DTYPES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I64": 8, "I32": 4}
STORED = {"bf16": "BF16", "fp8": "F8_E4M3"}
SCALES = "hidden_states_scales"


class BadFile(Exception):
    """A states file is not what it must be. code: kebab-case kind; str(): what, with both numbers."""

    def __init__(self, code: str, what: str):
        super().__init__(what)
        self.code = code


@dataclass(frozen=True)
class Tensor:
    """One tensor's place in a file: dtype as safetensors names it, shape, absolute byte offsets."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, checked against its size. Raises BadFile, FileNotFoundError."""
    size = path.stat().st_size
    if size == 0:
        raise BadFile("empty", "the file is empty (0 bytes)")
    if size < 8:
        raise BadFile("truncated", f"the file has {size} bytes: not even a header length")
    with open(path, "rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > HEADER_LIMIT or 8 + length > size:
            raise BadFile("header", f"the header claims {length} bytes, the file has {size}")
        raw = stream.read(length)
    try:
        header = json.loads(raw)
        tensors = {name: _tensor(entry, 8 + length) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadFile("header", "the header is not what safetensors writes") from None
    end = max((tensor.end for tensor in tensors.values()), default=8 + length)
    if end != size:
        raise BadFile("truncated", f"the tensors end at byte {end}, the file at {size}")
    return tensors


def _tensor(entry: dict[str, Any], base: int) -> Tensor:
    shape = tuple(int(item) for item in entry["shape"])
    start, end = (int(item) for item in entry["data_offsets"])
    count = 1
    for item in shape:
        count *= item
    if entry["dtype"] in DTYPES and end - start != count * DTYPES[entry["dtype"]]:
        raise ValueError("offsets contradict the shape")
    if not 0 <= start <= end:
        raise ValueError("offsets out of order")
    return Tensor(str(entry["dtype"]), shape, base + start, base + end)


def check_layout(tensors: dict[str, Tensor], shape: Shape, tokens: int, dtype: str = "") -> None:
    """Names, ranks, widths and dtype, from the header alone; `dtype` defaults to the shape's. Raises BadFile."""
    missing = {"hidden_states", "token_ids"} - tensors.keys()
    if missing:
        raise BadFile("layout", f"tensors missing: {', '.join(sorted(missing))}")
    states, ids = tensors["hidden_states"], tensors["token_ids"]
    layers = len(shape.layers)
    if len(states.shape) == 2 and states.shape[1] == shape.hidden_size:
        raise BadFile(
            "layers",
            f"one layer of {shape.hidden_size} instead of {layers} x {shape.hidden_size} "
            f"({layers - 1} auxiliary + last): the server does not extract for EAGLE3",
        )
    if len(states.shape) != 3:
        raise BadFile("layout", f"hidden_states has shape {list(states.shape)}, expected [seq, layers, hidden]")
    if states.shape[1] != layers:
        raise BadFile(
            "layers",
            f"{states.shape[1]} layers, expected {layers} = {layers - 1} aux + last (ids {list(shape.layers)})",
        )
    if states.shape[2] != shape.hidden_size:
        raise BadFile("width", f"hidden width {states.shape[2]}, expected {shape.hidden_size}")
    if ids.shape != (tokens,):
        raise BadFile("length", f"{list(ids.shape)} token ids, expected {tokens}")
    if states.shape[0] != tokens:
        raise BadFile("length", f"states {states.shape[0]} != tokens {tokens} (prefix caching or chunked prefill on?)")
    wanted = STORED[dtype or shape.dtype]
    if states.dtype != wanted:
        raise BadFile("dtype", f"states are {states.dtype}, expected {wanted}")
    if wanted == "F8_E4M3":
        scales = tensors.get(SCALES)
        if scales is None or scales.dtype != "F32" or scales.shape != (tokens, layers, 1):
            raise BadFile("layout", f"fp8 states need {SCALES} F32 [{tokens}, {layers}, 1]")


def read_array(path: Path, tensor: Tensor) -> Any:
    """A tensor's raw bits as a numpy array; bf16 comes as uint16, fp8 as uint8 (read-only, memory-mapped)."""
    import numpy as np

    kinds = {
        "BF16": np.uint16,
        "F16": np.float16,
        "F32": np.float32,
        "F8_E4M3": np.uint8,
        "I64": np.int64,
        "I32": np.int32,
    }
    if tensor.end == tensor.start:
        return np.empty(tensor.shape, dtype=kinds[tensor.dtype])
    return np.memmap(path, dtype=kinds[tensor.dtype], mode="r", offset=tensor.start, shape=tensor.shape)


def check_values(path: Path, tensors: dict[str, Tensor], ids: Sequence[int] | None, shape: Shape) -> list[str]:
    """Token ids equal, all values finite, layers distinct. Raises BadFile; returns warnings."""
    import numpy as np

    found = read_array(path, tensors["token_ids"])
    if ids is not None:
        wanted = np.asarray(ids, dtype=np.int64)
        if found.shape != wanted.shape or not np.array_equal(found, wanted):
            raise BadFile("tokens", _token_difference(found.tolist(), list(ids)))
    bits = read_array(path, tensors["hidden_states"])
    bad = _not_finite(bits, tensors["hidden_states"].dtype)
    if bad is not None:
        token, slot = int(bad[0]), int(bad[1])
        raise BadFile(
            "not-finite", f"a value is not finite at token {token}, layer slot {slot} (id {shape.layers[slot]})"
        )
    if not bits.any():
        return ["all-zero states"]
    same = _equal_layers(bits)
    if same:
        a, b = same
        raise BadFile(
            "layers-equal", f"layer slots {a} and {b} (ids {shape.layers[a]}, {shape.layers[b]}) hold equal states"
        )
    return []


def _token_difference(found: list[int], wanted: list[int]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), min(len(found), len(wanted)))
    return (
        f"token ids differ from the data's at position {at} "
        f"({found[at : at + 1]} instead of {wanted[at : at + 1]}): these states belong to other data"
    )


def _not_finite(bits: Any, dtype: str) -> Any:
    """(token, slot, ...) of the first NaN or infinity, or None."""
    import numpy as np

    if dtype == "BF16":
        mask = (bits & 0x7F80) == 0x7F80  # all exponent bits set
    elif dtype == "F8_E4M3":
        mask = (bits & 0x7F) == 0x7F  # e4m3fn has no infinities, only this NaN
    else:
        mask = ~np.isfinite(bits)
    if not mask.any():
        return None
    return np.argwhere(mask)[0]


def _equal_layers(bits: Any) -> tuple[int, int] | None:
    """The first pair of layer slots that are equal at every token, or None."""
    import numpy as np

    count = bits.shape[1]
    ends = bits[[0, -1]]
    for a in range(count):
        for b in range(a + 1, count):
            if np.array_equal(ends[:, a], ends[:, b]) and np.array_equal(bits[:, a], bits[:, b]):
                return a, b
    return None


def check_file(path: Path, shape: Shape, ids: Sequence[int], dtype: str = "") -> list[str]:
    """The whole check of one file against the tokens it must belong to. Raises BadFile; returns warnings."""
    tensors = read_header(path)
    check_layout(tensors, shape, len(ids), dtype)
    return check_values(path, tensors, ids, shape)


def checksum(path: Path) -> str:
    """XXH3-128 (hex) of a file's bytes: detects rot at disk speed; it is no signature."""
    import xxhash

    digest = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as stream:
        while block := stream.read(1 << 22):
            digest.update(block)
    return str(digest.hexdigest())


def file_bytes(tokens: int, layers: int, hidden: int, dtype: str) -> int:
    """Exact size of a states file as safetensors writes it: 8 + padded header + token ids + states (+ scales)."""
    size = DTYPES[STORED[dtype]]
    states = tokens * layers * hidden * size
    entries: list[tuple[str, str, list[int], int]] = [("token_ids", "I64", [tokens], tokens * 8)]
    if dtype == "fp8":
        entries.append((SCALES, "F32", [tokens, layers, 1], tokens * layers * 4))
    entries.append(("hidden_states", STORED[dtype], [tokens, layers, hidden], states))
    header: dict[str, Any] = {}
    offset = 0
    for name, kind, shape, length in entries:
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + length]}
        offset += length
    text = len(json.dumps(header, separators=(",", ":")))
    return 8 + (text + 7) // 8 * 8 + offset

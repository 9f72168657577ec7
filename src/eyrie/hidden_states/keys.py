"""Content keys: a sample's states are named by what they are, never by a row number."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eyrie.core.fingerprint import canonical, fingerprint


@dataclass(frozen=True)
class Shape:
    """What every states file of one run must look like.

    layers: ids of the captured states in file order (auxiliary, then the last); id L is Hugging Face's
    hidden_states[L], id num_hidden_layers the last one before the final norm.
    dtype: 'bf16' or 'fp8' (float8_e4m3fn with an fp32 scale per token and layer).
    model: fingerprint of the target's weights. engine: version of the server that computes the states.
    """

    layers: tuple[int, ...]
    hidden_size: int
    dtype: str
    model: str
    engine: str

    @property
    def digest(self) -> str:
        """Identity of all that the states depend on besides the tokens."""
        return fingerprint(
            {
                "layers": list(self.layers),
                "hidden_size": self.hidden_size,
                "dtype": self.dtype,
                "model": self.model,
                "engine": self.engine,
            }
        )

    def with_dtype(self, dtype: str) -> Shape:
        return Shape(self.layers, self.hidden_size, dtype, self.model, self.engine)


def token_digest(ids: Sequence[int]) -> bytes:
    """SHA-256 of token ids as little-endian int64."""
    packed = array("q", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return hashlib.sha256(packed.tobytes()).digest()


def array_digest(ids: Any) -> bytes:
    """`token_digest` of a one-dimensional numpy array of integers, without a Python number for each of them."""
    return hashlib.sha256(ids.astype("<i8").tobytes()).digest()


def sample_key(ids: Sequence[int], shape: Shape) -> str:
    """The key (64 hex digits) of one sample's states."""
    return key_of(token_digest(ids), shape.digest)


def key_of(tokens: bytes, shape_digest: str) -> str:
    """The key from a token digest and a Shape.digest (computed once for a whole corpus)."""
    return hashlib.sha256(tokens + bytes.fromhex(shape_digest)).hexdigest()


def endpoint_of(key: str, count: int) -> int:
    """Which of `count` servers captures this key: stable, and even over servers."""
    return int(key[:8], 16) % count


def weights_fingerprint(files: dict[str, str]) -> str:
    """Fingerprint of a checkpoint from {file name: sha256} of its weights and config."""
    kept: dict[str, Any] = {
        name: digest for name, digest in files.items() if name.endswith(".safetensors") or name == "config.json"
    }
    return hashlib.sha256(canonical(kept).encode()).hexdigest()

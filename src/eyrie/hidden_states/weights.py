"""The few target weights that the checks need, read from the checkpoint without loading the model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.hidden_states.files import Tensor, read_array

HEADER_LIMIT = 1 << 28  # a sharded 1T checkpoint's headers are some MB
NORMS = ("model.norm.weight", "norm.weight", "norm_f.weight")
HEADS = ("lm_head.weight", "output.weight")
EMBEDDINGS = ("embed_tokens.weight", "tok_embeddings.weight")


@dataclass(frozen=True)
class Dimensions:
    """The sizes of a decoder, from its own config (text_config where a multimodal one nests it)."""

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    rms_norm_eps: float


def dimensions(config: dict[str, Any]) -> Dimensions:
    """Read the decoder's sizes from a Hugging Face config."""
    text = config.get("text_config") or config
    return Dimensions(
        int(text["hidden_size"]),
        int(text["num_hidden_layers"]),
        int(text["vocab_size"]),
        float(text.get("rms_norm_eps") or text.get("layer_norm_epsilon") or 1e-6),
    )


def default_aux_layers(layers: int) -> list[int]:
    """EAGLE-3's usual three auxiliary ids; below 8 layers they collide."""
    ids = [2, layers // 2, layers - 3]
    if ids != sorted(set(ids)):
        raise EyrieError(
            f"the usual auxiliary layers {ids} collide in a model of {layers} layers.",
            code="layers-collide",
            todo="Name three distinct ids in target.aux_layers.",
        )
    return ids


class Checkpoint:
    """A Hugging Face checkpoint folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def config(self) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads((self.folder / "config.json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise EyrieError(
                f"the target's config.json cannot be read: {error}", where=str(self.folder), code="target-unreadable"
            ) from None
        return value

    def _names(self) -> dict[str, str]:
        """{tensor name: file name} over all shards."""
        index = self.folder / "model.safetensors.index.json"
        if index.exists():
            return dict(json.loads(index.read_text("utf-8"))["weight_map"])
        names = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            names.update(dict.fromkeys(_tensors(path), path.name))
        return names

    def find(self, suffixes: tuple[str, ...]) -> tuple[Path, Tensor] | None:
        """The tensor whose name ends in one of the suffixes (the shortest such name), or None."""
        names = self._names()
        for suffix in suffixes:
            matches = [name for name in names if name == suffix or name.endswith("." + suffix)]
            matches = [name for name in matches if ".layers." not in name]
            if matches:
                name = min(matches, key=len)
                path = self.folder / names[name]
                return path, _tensors(path)[name]
        return None

    def head(self) -> tuple[Any, Any]:
        """(final norm [hidden], output head [vocab, hidden]) as raw arrays (see `to_float`)."""
        norm = self.find(NORMS)
        head = self.find(HEADS) or self.find(EMBEDDINGS)  # tied embeddings have no head of their own
        if norm is None or head is None:
            raise EyrieError(
                "the target's final norm or output head was not found in its checkpoint.",
                where=str(self.folder),
                code="head-missing",
                todo="Without them the captured layers cannot be proven.",
            )
        return (norm[1].dtype, read_array(*norm)), (head[1].dtype, read_array(*head))


def _tensors(path: Path) -> dict[str, Tensor]:
    """Like files.read_header, for headers of any sane size."""
    import struct

    size = path.stat().st_size
    with open(path, "rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > min(HEADER_LIMIT, size):
            raise EyrieError("the header is longer than the file.", where=str(path), code="target-unreadable")
        header = json.loads(stream.read(length))
    base = 8 + length
    return {
        name: Tensor(
            entry["dtype"], tuple(entry["shape"]), base + entry["data_offsets"][0], base + entry["data_offsets"][1]
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


def to_float(dtype: str, bits: Any) -> Any:
    """Raw bits as fp32: bf16 is the upper half of an fp32."""
    import numpy as np

    if dtype == "BF16":
        wide = np.ascontiguousarray(bits).astype(np.uint32) << 16
        return wide.view(np.float32)
    return np.asarray(bits, dtype=np.float32)


def logits(states: Any, norm: tuple[str, Any], head: tuple[str, Any], eps: float, rows: int = 16384) -> Any:
    """lm_head(rms_norm(states)) in fp32, [n, hidden] -> [n, vocab]; the head is read in slices."""
    import numpy as np

    scale = np.sqrt(np.mean(np.square(states), axis=-1, keepdims=True) + eps)
    normed = states / scale * to_float(*norm)
    kind, bits = head
    parts = [normed @ to_float(kind, bits[at : at + rows]).T for at in range(0, bits.shape[0], rows)]
    return np.concatenate(parts, axis=-1)

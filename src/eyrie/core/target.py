"""The target (verifier) model as the inventory declares it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from eyrie.core.spec import plain, setting


@dataclass
class Source:
    """Where the target's files come from.

    kind 'package': a GGUF file inside an installed distribution; converted to a bf16 checkpoint.
    kind 'hub': a repository at a pinned revision (40 hex digits).
    kind 'path': a folder that is there already.
    """

    kind: Literal["package", "hub", "path"]
    package: str = ""
    file: str = ""
    repository: str = ""
    revision: str = ""
    path: str = setting("", identity=False)
    sha256: str = ""

    def __post_init__(self) -> None:
        need = {"package": ("package", "file"), "hub": ("repository", "revision"), "path": ("path",)}[self.kind]
        for name in need:
            if not getattr(self, name):
                raise ValueError(f"source kind {self.kind!r} needs {name!r}.")
        if self.kind == "hub" and not (len(self.revision) == 40 and set(self.revision) <= set("0123456789abcdef")):
            raise ValueError(f"revision {self.revision!r} is not a commit (40 hex digits): branch names move.")


@dataclass
class Target:
    """The model whose tokens the draft learns to predict.

    aux_layers: ids of the three auxiliary hidden states; id L is Hugging Face's hidden_states[L] (input of
    layer L). The last captured state is id num_hidden_layers, before the final norm.
    hidden_size, num_hidden_layers, vocab_size: declared, so that a bare host can forecast; checked against
    the model's own config as soon as it is there.
    """

    name: str
    source: Source
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    aux_layers: list[int]
    max_model_len: int = setting(4096)
    dtype: str = "bfloat16"
    chat_template: str = ""  # text of a Jinja template that replaces the model's own; '' keeps it
    trust_remote_code: bool = False
    extra: dict[str, Any] = setting({}, doc="engine-specific facts that the profile records", identity=False)

    def __post_init__(self) -> None:
        plain(self.name, "name")
        ids = self.aux_layers
        if ids != sorted(set(ids)) or not ids:
            raise ValueError(f"aux_layers {ids} must be distinct and ascending.")
        if ids[0] < 0 or ids[-1] >= self.num_hidden_layers:
            raise ValueError(
                f"aux_layers {ids} must lie in 0..{self.num_hidden_layers - 1} (the last layer comes by itself)."
            )
        if self.trust_remote_code and self.source.kind == "hub" and not self.source.revision:
            raise ValueError("trust_remote_code needs a pinned revision.")

    @property
    def captured_layers(self) -> list[int]:
        """Auxiliary ids and the last: what one states file holds along its second dimension."""
        return [*self.aux_layers, self.num_hidden_layers]

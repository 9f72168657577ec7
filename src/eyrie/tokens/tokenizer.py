"""The target's tokenizer, loaded from its own files, without running a model's code unless that was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.tokens.special import added_tokens


class Tokenizer:
    """encode / decode with the added tokens as single ids.

    Uses the tokenizer's own `tokenizer.json` (the `tokenizers` library) where there is one, else `AutoTokenizer`.
    """

    def __init__(self, fast: Any = None, slow: Any = None):
        self._fast, self._slow = fast, slow

    @classmethod
    def load(cls, model: Path, trust_remote_code: bool = False) -> Tokenizer:
        """Raises EyrieError when it needs code of the model that may not be run, or splits its own special tokens."""
        if (model / "tokenizer.json").is_file():
            import tokenizers

            fast = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
            fast.no_truncation()
            fast.no_padding()
            loaded = cls(fast=fast)
        else:
            config = atomic.read_json(model / "tokenizer_config.json", {}) or {}
            if "auto_map" in config and not trust_remote_code:
                raise EyrieError(
                    "the tokenizer is Python code of the model's repository, which is not run unasked.",
                    where=str(model),
                    todo="It needs trust_remote_code: true (eyrie_target_trust_remote_code), with a pinned revision.",
                    code="needs-trust-remote-code",
                )
            if not config and not any(model.glob("*.model")):
                raise EyrieError("there is no tokenizer.", where=str(model), code="tokenizer-missing")
            from transformers import AutoTokenizer

            slow = AutoTokenizer.from_pretrained(str(model), trust_remote_code=trust_remote_code, local_files_only=True)
            loaded = cls(slow=slow)
        loaded.check(added_tokens(model))
        return loaded

    def check(self, added: dict[int, str]) -> None:
        """Every added token is one id and decodes back; a wrong tokenizer class splits them. Raises EyrieError."""
        for token, text in added.items():
            if not text or text != text.strip():
                continue  # blanks may be stripped by design
            if self.encode(text) != [token] or self.decode([token]) != text:
                raise EyrieError(
                    f"the tokenizer gives {self.encode(text)[:6]} for {text!r}, its files say {token}.",
                    why="The tokenizer's class does not fit its files.",
                    todo="Check tokenizer_config.json and eyrie_target_trust_remote_code.",
                    code="tokenizer-unfaithful",
                )

    def encode(self, text: str) -> list[int]:
        """Ids of a rendered text: nothing is added at its ends."""
        if self._fast is not None:
            return list(self._fast.encode(text, add_special_tokens=False).ids)
        return [int(token) for token in self._slow.encode(text, add_special_tokens=False)]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """The same for many texts, on all cores where the library can."""
        if self._fast is not None:
            encoded = self._fast.encode_batch_fast(texts, add_special_tokens=False)
            return [list(item.ids) for item in encoded]
        return [self.encode(text) for text in texts]

    @property
    def joins(self) -> bool:
        """Whether two texts may be encoded apart: False where every text is given a blank in front."""
        return self.decode([*self.encode("x"), *self.encode("y")]) == "xy"

    def encode_parts(self, parts: list[tuple[str, str]]) -> list[tuple[list[int], int]]:
        """(ids of prompt + answer, number of prompt ids) of each (prompt, answer).

        The prompt is encoded alone, as it is when the target answers. Tokenizers that put a blank before every text
        encode the whole instead; a token across the border then belongs to the prompt.
        """
        if self._fast is None or self.joins:
            flat = self.encode_batch([text for pair in parts for text in pair])
            return [(flat[at] + flat[at + 1], len(flat[at])) for at in range(0, len(flat), 2)]
        encoded = self._fast.encode_batch([first + second for first, second in parts], add_special_tokens=False)
        return [
            (list(item.ids), sum(start < len(first) for start, _ in item.offsets))
            for item, (first, _) in zip(encoded, parts, strict=True)
        ]

    def decode(self, ids: list[int]) -> str:
        if self._fast is not None:
            return str(self._fast.decode(ids, skip_special_tokens=False))
        return str(self._slow.decode(ids, skip_special_tokens=False))

"""The tokens that must be in every draft vocabulary: ends, roles, thinking and tool tags, what templates write."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError

_UNUSED = re.compile(r"reserved|unused|placeholder|extra_id|fim_pad|\[PAD\d*\]|image|audio|video|vision", re.IGNORECASE)
_TAGS = re.compile(
    r"think|tool|function|call|eot|eos|end|im_|turn|channel|message|assistant|user|system", re.IGNORECASE
)


def added_tokens(model: Path) -> dict[int, str]:
    """id -> text of the tokenizer's added tokens, from its own files (no code of the model is run)."""
    stamps = [
        (path, info.st_size, info.st_mtime_ns) if path.is_file() and (info := path.stat()) else (path, 0, 0)
        for path in (model / "tokenizer.json", model / "tokenizer_config.json")
    ]
    return dict(_added_tokens(model, tuple(stamps)))


@lru_cache(maxsize=4)
def _added_tokens(model: Path, stamps: tuple[Any, ...]) -> dict[int, str]:
    """Read once for each state of the files: a tokenizer.json has megabytes."""
    found: dict[int, str] = {}
    tokenizer = atomic.read_json(model / "tokenizer.json", {}) or {}
    for entry in tokenizer.get("added_tokens") or []:
        found[int(entry["id"])] = str(entry["content"])
    config = atomic.read_json(model / "tokenizer_config.json", {}) or {}
    for key, entry in (config.get("added_tokens_decoder") or {}).items():
        found[int(key)] = str(entry["content"] if isinstance(entry, dict) else entry)
    return found


def end_tokens(model: Path) -> set[int]:
    """Ids that end a generation, from generation_config.json and config.json (nested text_config too)."""
    found: set[int] = set()
    config = atomic.read_json(model / "config.json", {}) or {}
    generation = atomic.read_json(model / "generation_config.json", {}) or {}
    for value in (generation.get("eos_token_id"), config.get("eos_token_id"), text_config(config).get("eos_token_id")):
        if isinstance(value, int):
            found.add(value)
        elif isinstance(value, list):
            found.update(int(item) for item in value)
    return found


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a config.json: multimodal ones nest it."""
    nested = config.get("text_config") or config.get("llm_config")
    return nested if isinstance(nested, dict) else config


def vocab_size(model: Path, declared: int) -> int:
    """The target's vocabulary; config.json and the inventory must agree. Raises EyrieError."""
    found = text_config(atomic.read_json(model / "config.json", {}) or {}).get("vocab_size")
    if found != declared:
        raise EyrieError(
            f"the model's vocabulary has {found} ids, eyrie_target_vocab_size says {declared}.",
            where=str(model / "config.json"),
            todo="Correct eyrie_target_vocab_size.",
            code="vocab-size-differs",
        )
    return declared


def template_text(model: Path, declared: str = "") -> str:
    """The chat template in force: the declared one, else the model's own; '' when there is none."""
    if declared:
        return declared
    path = model / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    value = (atomic.read_json(model / "tokenizer_config.json", {}) or {}).get("chat_template")
    if isinstance(value, list):  # named templates
        value = next((item.get("template") for item in value if item.get("name") == "default"), None)
    return str(value or "")


def required(model: Path, template: str, size: int, more: list[str], seen: Any = None) -> dict[int, str]:
    """id -> text of the tokens that must be in the draft vocabulary.

    seen: int64 [V] supervised counts; an added token that was ever answered with is in. Reserved slots and tokens of
    other modalities are not, unless seen or written by the template. Raises EyrieError for an unknown `more`.
    """
    added = added_tokens(model)
    ends = end_tokens(model)
    chosen: dict[int, str] = {token: added.get(token, f"id {token}") for token in ends if 0 <= token < size}
    for token, text in added.items():
        if not 0 <= token < size:
            continue
        in_use = text in template or (seen is not None and bool(seen[token]))
        if in_use or (_TAGS.search(text) and not _UNUSED.search(text)):
            chosen[token] = text
    texts = {text: token for token, text in added.items()}
    for text in more:
        if text not in texts:
            raise EyrieError(
                f"{text!r} is none of the tokenizer's added tokens.",
                where="tokens.keep_tokens",
                todo="Name tokens as the tokenizer's files do, e.g. '</think>'.",
                code="keep-token-unknown",
            )
        chosen[texts[text]] = text
    return dict(sorted(chosen.items()))

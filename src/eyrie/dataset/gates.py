"""Cheap checks before the dataset's work: what the plan can know without a network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.dataset import files
from eyrie.dataset.identity import MISSING

if TYPE_CHECKING:
    from eyrie.core.pipeline import Context


def gates(ctx: Context) -> list[dict[str, Any]]:
    """[{name, ok, message}]: local files are there, gated sources have a token."""
    out = []
    settings = ctx.settings
    for name in dict.fromkeys([*settings.sources, *settings.exclude_sources]):
        source = settings.source(name)
        if source.kind == "local":
            out.append(_local(name, source))
        if source.gated and not has_token(ctx):
            out.append(
                {
                    "name": f"token for {name}",
                    "ok": False,
                    "message": f"{name} ({source.repository}) is gated and there is no token: accept its terms on the "
                    f"hub, then set HF_TOKEN or put the token into {token_file(ctx)} (mode 0600).",
                }
            )
    for key in ("open", "exclude", "tokenizer"):
        found = ctx.identity["files"].get(key)
        values = found.items() if isinstance(found, dict) else [(key, found)]
        out += [
            {"name": key, "ok": False, "message": f"dataset.{key}: the file {name} is not there."}
            for name, digest in values
            if digest == MISSING
        ]
    if settings.max_prompt_tokens or settings.max_conversation_tokens:
        out += _tokenizer(ctx)
    return out


def _tokenizer(ctx: Context) -> list[dict[str, Any]]:
    """Refuse before ten sources do: limits that need code of the model which may not be run."""
    if ctx.settings.tokenizer or ctx.target.trust_remote_code:
        return []
    folder = ctx.input("target").out
    if (folder / "tokenizer.json").is_file():
        return []
    config = atomic.read_json(folder / "tokenizer_config.json", {}) or {}
    if "auto_map" not in config:
        return []
    return [
        {
            "name": "tokenizer",
            "ok": False,
            "message": "dataset: the token limits need the target's tokenizer, which is Python code of the model's "
            "repository and is not run unasked. Set eyrie_target_trust_remote_code: true (its revision is pinned), "
            "or eyrie_dataset_tokenizer to a tokenizer.json that counts the same.",
        }
    ]


def _local(name: str, source: Any) -> dict[str, Any]:
    try:
        found = files.local(source, name)
    except EyrieError as error:
        return {"name": f"files of {name}", "ok": False, "message": str(error)}
    return {"name": f"files of {name}", "ok": True, "message": f"{len(found)} files"}


def token_file(ctx: Context) -> Path:
    """Where the hub token is looked for after the environment."""
    return Path(ctx.settings.token_file or ctx.pipeline.root / "secrets" / "hf_token")


def hub_cache(ctx: Context) -> Path:
    """The hub client's cache, on the big disk: where a job under the supervisor has it (supervise/jobs.py)."""
    declared = (ctx.pipeline.execution.get("environment") or {}).get("HF_HOME")
    return Path(declared or os.environ.get("HF_HOME") or ctx.pipeline.root / "cache" / "hf") / "hub"


def has_token(ctx: Context) -> bool:
    """Whether a token is at hand; its value is not looked at."""
    if os.environ.get("HF_TOKEN") or os.environ.get("HF_TOKEN_PATH"):
        return True
    try:
        return token_file(ctx).stat().st_size > 0
    except OSError:
        return False

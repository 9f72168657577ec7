"""What can change the dataset, as plain data for the fingerprint. Read-only, no heavy imports."""

from __future__ import annotations

import os
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyrie.core import spec
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import tool_versions
from eyrie.dataset import files, without
from eyrie.dataset.prompts import data_file
from eyrie.dataset.settings import Settings, Source

if TYPE_CHECKING:
    from eyrie.core.pipeline import Context

FORMAT = 2  # of the outputs
MISSING = "missing"
#: distributions whose version decides bytes, whatever the sources are
TOOLS = ("orjson", "pyarrow")
#: those that a tokenizer which is code of the model stands on
CODE_TOOLS = ("tiktoken", "transformers")


def identity(ctx: Context) -> dict[str, Any]:
    """Settings of the chosen sources, contents of local files, versions of tools."""
    settings: Settings = ctx.settings
    own = spec.identity(settings)
    if settings.dedup != "minhash":
        del own["minhash_threshold"], own["minhash_permutations"]
    own["source"] = {name: entry(source) for name, source in settings.selected.items()}
    own["excluded"] = {name: entry(settings.source(name)) for name in settings.exclude_sources}
    tools = list(TOOLS)
    if settings.max_prompt_tokens or settings.max_conversation_tokens:
        tools += ["tokenizers", *(CODE_TOOLS if ctx.target.trust_remote_code and not settings.tokenizer else ())]
    if settings.dedup == "minhash":
        tools.append("datasketch")
    named = [*settings.selected.values(), *(settings.source(name) for name in settings.exclude_sources)]
    tools += [source.package for source in named if source.kind == "package"]
    found = {
        "format": FORMAT,
        "settings": own,
        "files": contents(ctx),
        "tools": {**tool_versions(tools), "unicode": unicodedata.unidata_version},
    }
    came_in = without.of(ctx, found).came_in
    return {**found, without.KEY: came_in} if came_in else found


def entry(source: Source) -> dict[str, Any]:
    """An entry's identity in the mix: how it is read, and its share."""
    return {**spec.identity(source), "quota": source.quota, "weight": source.weight}


def contents(ctx: Context) -> dict[str, Any]:
    """SHA-256 by name of every local file that enters; 'missing' where there is none (the gates refuse that)."""
    settings: Settings = ctx.settings
    hashes = ctx.pipeline.hashes
    out: dict[str, Any] = {}
    names = dict.fromkeys([*settings.sources, *settings.exclude_sources])
    local = {name: source for name in names if (source := settings.source(name)).kind == "local"}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:  # hashing leaves the interpreter to the others
        found = dict(zip(local, threads.map(lambda name: _local(ctx, name), local), strict=True))
    for name in names:
        source = settings.source(name)
        if source.kind == "local":
            out[name] = found[name]
        elif source.kind == "generated":
            out[name] = {"prompts.json": hashes.sha256(data_file("prompts.json"))}
    out["open"] = _digest(ctx, Path(settings.open_prompts) if settings.open_prompts else data_file("open.txt"))
    if settings.exclude:
        out["exclude"] = {path.name: _digest(ctx, path) for path in files.expanded(settings.exclude)}
    if settings.tokenizer:
        out["tokenizer"] = _digest(ctx, Path(settings.tokenizer))
    return out


def _local(ctx: Context, name: str) -> Any:
    """Digests of a local source's files, or MISSING."""
    try:
        return {key: ctx.pipeline.hashes.sha256(path) for key, path in files.local(ctx.settings.source(name), name)}
    except (EyrieError, OSError):
        return MISSING


def _digest(ctx: Context, path: Path) -> str:
    try:
        return ctx.pipeline.hashes.sha256(path)
    except OSError:
        return MISSING

"""A checkpoint folder: what must be in it, its declared dimensions, its manifest."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import file_sha256
from eyrie.core.target import Target

MANIFEST = "manifest.json"
DIMENSIONS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
#: files up to this size are hashed for a plan; larger ones count by size (hashing a 1T model takes an hour)
SMALL = 64 << 20
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json")


def names(folder: Path) -> list[str]:
    """Relative names of the files below a folder, hidden ones and the manifest left out, sorted."""
    found = []
    for item in folder.rglob("*"):
        name = item.relative_to(folder)
        if item.is_file() and name.name != MANIFEST and not any(part.startswith(".") for part in name.parts):
            found.append(name.as_posix())
    return sorted(found)


def survey(folder: Path, sha256: Callable[[Path], str]) -> dict[str, str]:
    """{name: digest or size} of a folder that is there already: its identity. Empty where there is none."""
    if not folder.is_dir():
        return {}
    found = {}
    for name in names(folder):
        size = (folder / name).stat().st_size
        found[name] = sha256(folder / name) if size <= SMALL else f"{size} bytes"
    return found


def link_tree(source: Path, out: Path) -> None:
    """Mirror a folder by links: nothing is written into somebody else's."""
    for name in names(source):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        os.symlink((source / name).resolve(), out / name)


def check(folder: Path, target: Target) -> dict[str, Any]:
    """The model's own dimensions; raises EyrieError when they are not those declared, or a needed file is missing."""
    path = folder / "config.json"
    config = atomic.read_json(path)
    if not isinstance(config, dict):
        raise EyrieError("The model has no readable config.json.", where=str(path), code="target-no-config")
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    own = {name: config.get(name, (text or {}).get(name)) for name in DIMENSIONS}
    wrong = [
        f"{name} is {own[name]}, declared {getattr(target, name)}"
        for name in DIMENSIONS
        if own[name] is not None and own[name] != getattr(target, name)
    ]
    if wrong:
        raise EyrieError(
            f"The model is not the one that is declared: {'; '.join(wrong)}.",
            where=str(path),
            code="target-dimensions",
            todo="Correct eyrie_target_* in the profile's target.yml: forecasts and layer ids rest on them.",
        )
    _check_files(folder, target)
    return {name: own[name] for name in DIMENSIONS}


def _check_files(folder: Path, target: Target) -> None:
    present = names(folder)
    index = atomic.read_json(folder / "model.safetensors.index.json")
    shards = set(index["weight_map"].values()) if isinstance(index, dict) and "weight_map" in index else set()
    lost = sorted(shards - set(present))
    if lost or not any(name.endswith(".safetensors") for name in present):
        listed = ", ".join(lost[:3]) or "*.safetensors"
        raise EyrieError(f"Weights are missing: {listed}.", where=str(folder), code="target-no-weights")
    if not any(name in present for name in TOKENIZERS):
        raise EyrieError("The model has no tokenizer.", where=str(folder), code="target-no-tokenizer")
    settings = atomic.read_json(folder / "tokenizer_config.json", {})
    templated = (
        "chat_template.jinja" in present or "chat_template.json" in present or bool(settings.get("chat_template"))
    )
    if not templated and not target.chat_template:
        raise EyrieError(
            "The model has no chat template: its server would be healthy and refuse every chat.",
            where=str(folder),
            code="target-no-template",
            todo="Set eyrie_target_chat_template.",
        )


def write_manifest(folder: Path, config: dict[str, Any], links: bool = False) -> None:
    """Make files readable, flush them, and write sizes and SHA-256 of each; large linked files count by size."""
    files: dict[str, dict[str, Any]] = {}
    for name in names(folder):
        path = folder / name
        size = path.stat().st_size
        if not links:
            path.chmod(0o644)
            with open(path, "rb") as stream:
                os.fsync(stream.fileno())
        files[name] = {"bytes": size, "sha256": None if links and size > SMALL else file_sha256(path)}
    folder.chmod(0o755)
    atomic.write_json(folder / MANIFEST, {"files": files, "config": config})


def read_manifest(folder: Path) -> dict[str, Any]:
    value = atomic.read_json(folder / MANIFEST)
    if not isinstance(value, dict) or not value.get("files"):
        raise EyrieError("The model's manifest is missing.", where=str(folder), code="target-no-manifest")
    return value


def faults(folder: Path) -> list[tuple[str, str]]:
    """[(file, what is wrong)]: [] when every file of the manifest is there with its size and digest."""
    try:
        files = read_manifest(folder)["files"]
    except EyrieError as error:
        return [(MANIFEST, error.what)]
    found = []
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            found.append((name, "is missing"))
        elif path.stat().st_size != entry["bytes"]:
            found.append((name, f"has {path.stat().st_size} bytes, not {entry['bytes']}"))
        elif entry["sha256"] and file_sha256(path) != entry["sha256"]:
            found.append((name, f"is not what it was ({json.dumps(entry['sha256'][:12])})"))
    return found

"""Hub sources: resolve a revision, fetch its files into the cache on the big disk, with the hub's own client.

The token comes from the environment or a file and goes into request headers only: never into arguments, logs,
state or messages. Files at a commit that are in the cache are used without a request.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import file_sha256
from eyrie.dataset.files import script_only
from eyrie.dataset.formats import is_data
from eyrie.dataset.polite import Polite
from eyrie.dataset.settings import Source


@dataclass
class Access:
    """How the hub is reached; plain data that may be sent to a worker (the token itself is not in it)."""

    cache: str
    token_file: str = ""
    endpoint: str = ""
    offline: bool = False
    retries: int = 3

    def token(self) -> str | bool:
        """The token, or False for none (a login in somebody's home is not used)."""
        for path in (os.environ.get("HF_TOKEN_PATH", ""), self.token_file):
            try:
                if path and (text := Path(path).read_text("utf-8").strip()):
                    return text
            except OSError:
                continue
        return os.environ.get("HF_TOKEN", "").strip() or False


@dataclass
class Fetched:
    """What a source resolved to: the commit, and its files with size and SHA-256 in order of name."""

    revision: str
    files: list[tuple[str, str]] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    size: int = 0


def is_commit(revision: str) -> bool:
    return len(revision) == 40 and set(revision) <= set("0123456789abcdef")


def fetch(
    name: str, source: Source, access: Access, locked: dict[str, Any], say: Callable[[str, int, int], None]
) -> Fetched:
    """Bring a hub source's files; `locked` is its entry in the lock file ({} before the first run).

    say(what, bytes done, bytes in all) reports progress. Raises EyrieError that names the source and the way out.
    """
    client = Client(name, source, access)
    revision = source.revision if is_commit(source.revision) else str(locked.get("revision", ""))
    known = locked if locked.get("revision") == revision else {}
    moving = source.revision and not is_commit(source.revision)
    if revision and known.get("files") and (access.offline or not moving):
        cached = client.cached(revision, known["files"])
        if cached is not None:
            return cached
    if access.offline:
        raise client.offline_error(revision)
    info = client.info(revision if not moving else source.revision)
    if moving and revision and info.sha != revision:
        raise EyrieError(
            f"source {name}: {source.repository}@{source.revision} has moved from {revision[:12]} to {info.sha[:12]}.",
            where="lock.json",
            why="The lock file holds the commit that earlier runs used.",
            todo=f"Pin revision {revision} to stay, or raise eyrie_dataset_refresh to take the new commit.",
            code="revision-moved",
        )
    chosen = client.choose(info)
    return client.download(str(info.sha), chosen, known.get("files") or {}, say)


class Client(Polite):
    """One source's conversation with the hub."""

    def __init__(self, name: str, source: Source, access: Access):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        super().__init__(name, source, access)
        self.endpoint = access.endpoint or None
        self.common: dict[str, Any] = {
            "repo_id": self.repository,
            "repo_type": "dataset",
            "cache_dir": access.cache,
            "endpoint": self.endpoint,
        }

    def info(self, revision: str) -> Any:
        """The repository at a revision, with its files' sizes and checksums."""
        from huggingface_hub import HfApi

        api = HfApi(endpoint=self.endpoint, token=self.access.token())
        return self.politely(
            lambda: api.dataset_info(self.repository, revision=revision or None, files_metadata=True, timeout=30)
        )

    def choose(self, info: Any) -> list[Any]:
        """The data files of the source among those of the repository."""
        names = {item.rfilename: item for item in info.siblings or []}
        patterns = self.source.files or self._split_patterns(info)
        chosen = [names[key] for key in sorted(names) if any(fnmatch(key, pattern) for pattern in patterns)]
        if chosen:
            return chosen
        script = f"{self.repository.rsplit('/', 1)[-1]}.py"
        if script in names and not any(is_data(Path(key)) for key in names):
            raise script_only(self.name, script)
        listed = ", ".join([key for key in sorted(names) if is_data(Path(key))][:5]) or "none"
        raise EyrieError(
            f"source {self.name}: no file of {self.repository}@{info.sha[:12]} matches {', '.join(patterns)}.",
            where=f"dataset.registry.{self.name}.files",
            why=f"Data files there: {listed}.",
            code="source-empty",
        )

    def _split_patterns(self, info: Any) -> list[str]:
        """Patterns of a configuration's split: what the card says, else the usual places."""
        config, split = self.source.config, self.source.split
        card = info.card_data.to_dict() if getattr(info, "card_data", None) else {}
        for entry in card.get("configs") or []:
            if config and entry.get("config_name") != config:
                continue
            if (
                not config
                and len(card["configs"]) > 1
                and not entry.get("default")
                and entry["config_name"] != "default"
            ):
                continue
            files = entry.get("data_files")
            if isinstance(files, str):
                return [files]
            for item in files or []:
                if isinstance(item, dict) and item.get("split") == split:
                    paths = item["path"]
                    return [paths] if isinstance(paths, str) else list(paths)
        places = [f"{config}/"] if config else ["", "data/"]
        return [f"{place}{split}{mark}*" for place in places for mark in ("-", ".", "/")]

    def cached(self, revision: str, files: dict[str, str]) -> Fetched | None:
        """All files from the cache without a request, compared with the lock; None if one is missing."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        found = Fetched(revision)
        for key in sorted(files):
            try:
                path = hf_hub_download(filename=key, revision=revision, local_files_only=True, **self.common)
            except LocalEntryNotFoundError:
                return None
            self._keep(found, key, Path(path), files[key])
        return found

    def download(
        self, revision: str, chosen: list[Any], locked: dict[str, str], say: Callable[[str, int, int], None]
    ) -> Fetched:
        """Fetch the chosen files one after another; each is whole and checked, or not there."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

        total = sum(int(item.size or 0) for item in chosen)
        self._clean()
        found = Fetched(revision)
        for item in chosen:
            say(item.rfilename, found.size, total)
            key = item.rfilename

            def get(key: str = key) -> str:
                # the download asks for the same once more, but would not wait between its first two attempts
                url = hf_hub_url(self.repository, key, repo_type="dataset", revision=revision, endpoint=self.endpoint)
                get_hf_file_metadata(url, token=self.access.token(), endpoint=self.endpoint)
                return str(hf_hub_download(filename=key, revision=revision, token=self.access.token(), **self.common))

            path = self.politely(get)
            known = item.lfs.sha256 if item.lfs else locked.get(key, "")
            self._keep(found, key, Path(path), known)
            say(item.rfilename, found.size, total)
        return found

    def _keep(self, found: Fetched, key: str, path: Path, known: str) -> None:
        """Add a file after comparing its checksum; a damaged one is removed from the cache."""
        digest = file_sha256(path)
        if known and digest != known:
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise EyrieError(
                f"source {self.name}: {key} has checksum {digest[:12]}, not {known[:12]}.",
                where=str(path),
                todo="The damaged file was removed: run again to fetch it.",
                code="checksum",
            )
        found.files.append((key, str(path)))
        found.digests[key] = digest
        found.size += path.stat().st_size

    def _clean(self) -> None:
        """Remove what killed downloads left: the client never resumes another process's partial file."""
        folder = Path(self.access.cache) / f"datasets--{self.repository.replace('/', '--')}" / "blobs"
        for item in folder.glob("*.incomplete"):
            if time.time() - item.stat().st_mtime > 600:
                item.unlink(missing_ok=True)

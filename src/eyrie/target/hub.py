"""A model repository of a Hugging Face hub at a pinned commit, downloaded file by file into a folder."""

from __future__ import annotations

import fnmatch
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import file_sha256
from eyrie.core.stage import Work
from eyrie.core.target import Source

if TYPE_CHECKING:
    from eyrie.target.stage import TargetSettings

#: other formats of the same weights
IGNORED = ("*.pth", "*.pt", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "original/*", ".gitattributes")
#: on top of the library's own (five quick ones): an outage of some minutes is waited for
TRIES = 6
FIRST_PAUSE_S = 2.0
#: packages whose exceptions mean: the connection failed
TRANSPORTS = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")


@dataclass(frozen=True)
class RemoteFile:
    """One file as the hub lists it; sha256 is None for small files, which are not stored by content."""

    name: str
    size: int
    sha256: str | None


def token(settings: TargetSettings) -> str | None:
    """The hub token of the declared file, else of the environment; it is never logged."""
    if settings.token_file:
        try:
            return Path(settings.token_file).read_text("utf-8").strip() or None
        except OSError as error:
            raise EyrieError(
                f"The hub token's file cannot be read: {error.strerror}.",
                where=settings.token_file,
                code="hub-token-file",
                todo="Correct eyrie_target_fetch_token_file, or remove it.",
            ) from None
    return os.environ.get("HF_TOKEN") or None


def download(source: Source, part: Path, settings: TargetSettings, work: Work) -> None:
    """Bring every file of the pinned commit into `part`, resuming what is there.

    Raises EyrieError: no such repository or commit, no access, out of reach after some tries, a file that is not
    what the hub lists. What has arrived stays for the next try.
    """
    os.environ["HF_HUB_OFFLINE"] = "0"  # this stage is the one that is meant to reach the hub
    from huggingface_hub import HfApi

    api = HfApi(endpoint=settings.endpoint or None, token=token(settings) or False)
    files = _listing(api, source)
    part.mkdir(parents=True, exist_ok=True)
    total = sum(item.size for item in files)
    _check_disk(part, files, total)
    missing = [item for item in files if not _whole(part, item)]
    have = total - sum(item.size for item in missing)
    work.progress.start("download", total=len(files), unit="files", done=len(files) - len(missing))
    work.progress.update(len(files) - len(missing), have)
    pool, stopped = ThreadPoolExecutor(settings.workers), Event()
    try:
        waiting: dict[Future[None], RemoteFile] = {
            pool.submit(_fetch, api, source, item, part, stopped): item
            for item in sorted(missing, key=lambda item: item.size)
        }
        while waiting:
            done, _ = wait(waiting, timeout=1.0, return_when=FIRST_COMPLETED)
            work.check_stop()
            for future in done:
                item = waiting.pop(future)
                future.result()
                work.progress.advance(1, item.size)
    finally:
        stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)
    shutil.rmtree(part / ".cache", ignore_errors=True)


def _listing(api: Any, source: Source) -> list[RemoteFile]:
    info = _tried(lambda: api.model_info(source.repository, revision=source.revision, files_metadata=True), source, "")
    if info.sha != source.revision:
        raise EyrieError(
            f"The hub answered with commit {info.sha}, not {source.revision}.",
            where=source.repository,
            code="hub-other-commit",
        )
    found = []
    for item in info.siblings or []:
        if not inside(item.rfilename):
            raise EyrieError(
                f"The hub lists a file that would lie elsewhere: {item.rfilename!r}.",
                where=source.repository,
                code="hub-hostile-name",
                todo="Do not use this repository or mirror.",
            )
        if not any(fnmatch.fnmatch(item.rfilename, pattern) for pattern in IGNORED):
            digest = item.lfs.sha256 if item.lfs else None
            found.append(RemoteFile(item.rfilename, int(item.size or 0), digest))
    if not found:
        raise EyrieError("The repository lists no files at that commit.", where=source.repository, code="hub-empty")
    return found


def inside(name: str) -> bool:
    """Whether a relative name stays below the folder that it is put into."""
    return not (name.startswith("/") or "\\" in name or ".." in name.split("/"))


def _check_disk(part: Path, files: list[RemoteFile], total: int) -> None:
    have = sum((part / item.name).stat().st_size for item in files if (part / item.name).is_file())
    free = shutil.disk_usage(part).free
    if total - have > free:
        raise EyrieError(
            f"The model needs {total - have:,} bytes more and {free:,} are free.",
            where=str(part),
            code="target-disk",
            todo="Free space, or set eyrie_root to a larger disk.",
        )


def _whole(part: Path, item: RemoteFile) -> bool:
    path = part / item.name
    if not path.is_file() or path.stat().st_size != item.size:
        return False
    return item.sha256 is None or file_sha256(path) == item.sha256


def _fetch(api: Any, source: Source, item: RemoteFile, part: Path, stopped: Event) -> None:
    """One file, and the proof that it is the one that the hub lists."""

    def fetch() -> Any:
        return api.hf_hub_download(source.repository, item.name, revision=source.revision, local_dir=part)

    _tried(fetch, source, item.name, stopped)
    if not _whole(part, item):
        (part / item.name).unlink(missing_ok=True)
        raise EyrieError(
            f"{item.name} is not what the hub lists ({item.size} bytes, SHA-256 {item.sha256}).",
            where=source.repository,
            code="hub-file-damaged",
            todo="Run again; the file was removed.",
        )


def _tried(call: Callable[[], Any], source: Source, name: str, stopped: Event | None = None) -> Any:
    """Call the hub, again after a pause where that can help."""
    from huggingface_hub import errors

    where = f"{source.repository}/{name}" if name else source.repository
    pause, problem = FIRST_PAUSE_S, Exception("not tried")
    for left in range(TRIES - 1, -1, -1):
        try:
            return call()
        except (errors.GatedRepoError, errors.RepositoryNotFoundError):
            raise EyrieError(
                "The hub does not show this repository: it is gated or private, or there is no such name.",
                where=where,
                code="hub-no-access",
                todo="Accept its terms on the hub and set eyrie_target_fetch_token_file (or HF_TOKEN).",
            ) from None
        except (errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
            if not isinstance(error, errors.LocalEntryNotFoundError):  # that one means: no connection, and not cached
                raise EyrieError(
                    f"The hub has no such commit or file: {type(error).__name__}.",
                    where=f"{where}@{source.revision}",
                    code="hub-no-revision",
                    todo="Set eyrie_target_source_revision to a commit of the repository.",
                ) from None
            problem = error
        except Exception as error:
            if not isinstance(error, (OSError, errors.HfHubHTTPError)) and _package(error) not in TRANSPORTS:
                raise
            problem = error
        if not left or (stopped and stopped.wait(pause)):
            break
        if not stopped:
            time.sleep(pause)
        pause = min(pause * 2, 60.0)
    raise EyrieError(
        f"The hub could not be reached: {type(problem).__name__}: {problem}",
        where=where,
        code="hub-unreachable",
        todo="Check the network, HF_ENDPOINT and proxies; then run again: what has arrived is kept.",
    )


def _package(error: Exception) -> str:
    return type(error).__module__.partition(".")[0]

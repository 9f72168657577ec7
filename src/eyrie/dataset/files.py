"""Where a source's files are: local folders and installed packages (the hub's: hub.py). Standard library only."""

from __future__ import annotations

import glob
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

from eyrie.core.errors import EyrieError
from eyrie.dataset.formats import is_data
from eyrie.dataset.settings import Source

Found = list[tuple[str, Path]]


def local(source: Source, name: str) -> Found:
    """[(name without its folder, path)] of a local source, in order of name."""
    base = Path(source.path).expanduser()
    if base.is_file():
        return [(base.name, base)]
    if not base.is_dir():
        raise EyrieError(
            f"source {name}: there is no file or folder {base}.",
            where=f"dataset.registry.{name}.path",
            todo="Put the data there on the node, or correct the path.",
            code="source-missing",
        )
    return below(base, source.files, name)


def below(base: Path, patterns: list[str], name: str) -> Found:
    """Data files below a folder, by pattern, or all with a known extension."""
    if patterns:
        found = {path for pattern in patterns for path in base.glob(pattern) if path.is_file()}
    else:
        found = {path for path in base.rglob("*") if path.is_file() and is_data(path)}
    files = sorted((path.relative_to(base).as_posix(), path) for path in found)
    if files:
        return files
    script = next(iter(sorted(base.glob("*.py"))), None)
    if script and not patterns:
        raise script_only(name, script.name)
    raise EyrieError(
        f"source {name}: no data files{' match ' + ', '.join(patterns) if patterns else ''}.",
        where=str(base),
        todo="Correct `files`, or put JSON, JSONL, Parquet, Arrow, CSV or text there.",
        code="source-empty",
    )


def script_only(name: str, script: str) -> EyrieError:
    """The error of a data set that consists of a loading script: code that nobody should run."""
    return EyrieError(
        f"source {name} is a loading script ({script}), not data: datasets 4 and later refuse those.",
        where=f"dataset.registry.{name}",
        todo="Take its Parquet files: set `revision` to the commit of its refs/convert/parquet branch and `files` to "
        "the split's Parquet pattern; or name data files. Nothing of it is executed.",
        code="loading-script",
    )


def package(source: Source, name: str) -> Found:
    """Data files inside an installed distribution, by pattern; the distribution is not imported."""
    try:
        entries = metadata.files(source.package) or []
    except metadata.PackageNotFoundError:
        raise EyrieError(
            f"source {name}: the Python package {source.package} is not installed on the node.",
            where=f"dataset.registry.{name}.package",
            todo="Run playbooks/provision.yml, with the package in the profile's requirements.",
            code="package-missing",
        ) from None
    found = [
        (entry.as_posix(), Path(str(entry.locate())))
        for entry in entries
        if any(fnmatch(entry.as_posix(), pattern) for pattern in source.files)
    ]
    if not found:
        raise EyrieError(
            f"source {name}: no file of {source.package} matches {', '.join(source.files)}.",
            where=f"dataset.registry.{name}.files",
            code="source-empty",
        )
    return sorted(found)


def expanded(paths: list[str]) -> list[Path]:
    """Files of a list that may hold patterns."""
    out: list[Path] = []
    for item in paths:
        path = str(Path(item).expanduser())
        out += [Path(found) for found in sorted(glob.glob(path))] if glob.has_magic(path) else [Path(path)]
    return out

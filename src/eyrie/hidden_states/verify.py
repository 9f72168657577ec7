"""Verify: re-read the states, name what is wrong, put it in quarantine so that the next run captures only that."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from eyrie.core.pipeline import Context
from eyrie.core.stage import Fault
from eyrie.hidden_states import files, manifest
from eyrie.hidden_states.store import Store


def faults(ctx: Context, sample: int = 0, repair: bool = True) -> list[Fault]:
    """Faults of this fingerprint's outputs.

    sample: how many rows to re-read (0 = all), spread evenly. repair: move bad files to quarantine and take the
    stage's record back to unfinished, so that running it again captures exactly these.
    """
    listing = ctx.out / manifest.NAME
    if not listing.exists():
        return [Fault(str(listing), "the manifest is missing", "Run the stage again.", "output-missing")]
    lines = list(manifest.read(listing))
    if ctx.settings.storage == "window":
        return []  # states come and go with the training; the manifest says which
    found = _links(ctx.out, lines)
    unique = list({line["key"]: line for line in lines}.values())
    if sample and sample < len(unique):
        unique = [unique[i * len(unique) // sample] for i in range(sample)]
    with Store(ctx.base / "store") as store:
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as threads:
            checked = list(threads.map(lambda line: (line, _check(store.file(line["key"]), line)), unique))
        for line, problem in checked:
            if problem is None:
                continue
            code, what = problem
            where = f"row {line['row']} ({line['key'][:12]})"
            if repair:
                store.quarantine(line["key"], code)
            found.append(Fault(where, what, "Run the stage again: it captures only this anew.", code))
    if repair and found:
        listing.unlink()  # an output is missing now: the stage is no longer up to date
    return found


def _links(out: Path, lines: list[dict[str, Any]]) -> list[Fault]:
    present = {entry.name for entry in os.scandir(out / manifest.LINKS)} if (out / manifest.LINKS).is_dir() else set()
    lost = [line["row"] for line in lines if f"hs_{line['row']}.safetensors" not in present]
    if not lost:
        return []
    return [
        Fault(
            str(out / manifest.LINKS), f"{len(lost)} links are missing (rows {lost[:5]})", "Run again.", "link-missing"
        )
    ]


def _check(path: Path, line: dict[str, Any]) -> tuple[str, str] | None:
    """(code, what) of what is wrong with one file, or None."""
    try:
        size = path.stat().st_size
        if size == line["bytes"] and files.checksum(path) == line["checksum"]:
            return None
        files.read_header(path)
    except FileNotFoundError:
        return "missing", "the file is gone"
    except files.BadFile as error:
        return error.code, str(error)
    except OSError as error:
        return "unreadable", str(error)
    if size != line["bytes"]:
        return "size", f"{size} bytes, the manifest says {line['bytes']}"
    return "checksum", "the bytes are not those that were captured (checksum differs)"

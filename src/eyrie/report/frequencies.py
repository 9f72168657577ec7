"""How much of the supervised text a draft vocabulary of a given size covers, from token_freq.pt."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any


class _PlainOnly(pickle.Unpickler):
    """Numbers, text and containers; nothing that would run code or need torch (importing it takes seconds)."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a frequency file")


def read(path: Path) -> dict[int, int] | None:
    """{token id: count} as torch.save wrote it; None where the file is not of that kind."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            value = _PlainOnly(io.BytesIO(archive.read(name))).load()
        return {int(token): int(count) for token, count in value.items()}
    except (OSError, zipfile.BadZipFile, StopIteration, pickle.UnpicklingError, AttributeError, ValueError, TypeError):
        return None


def coverage(counts: dict[int, int], points: int = 60) -> list[tuple[int, float]]:
    """(size, share of supervised tokens covered by the `size` commonest), sizes spread evenly on a log scale."""
    ordered = sorted((count for count in counts.values() if count > 0), reverse=True)
    total = sum(ordered)
    if not total:
        return []
    sizes = sorted({max(1, round(len(ordered) ** (step / points))) for step in range(points + 1)})
    sums, running = [0], 0
    for count in ordered:
        running += count
        sums.append(running)
    return [(size, sums[size] / total) for size in sizes]

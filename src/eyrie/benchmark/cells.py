"""Which cells are measured on which server, in which order. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from eyrie.benchmark.settings import BASELINE, EAGLE3, NGRAM, SWEEP, UNTRAINED, Grid, Settings

PREDECESSOR = "predecessor"
#: baseline and EAGLE3 in fp32: there, and only there, greedy text must be the same to the letter
EXACT_BASELINE, EXACT_EAGLE3 = "baseline fp32", "eagle3 fp32"
EXACT_DTYPE = "float32"


@dataclass(frozen=True)
class Cell:
    """One load on one server: a prompt set at one concurrency, temperature and way to end."""

    set: str
    concurrency: int
    temperature: float
    end: str
    output_tokens: int
    prompts: int

    @property
    def name(self) -> str:
        return f"{self.set} c={self.concurrency} T={self.temperature:g} {self.end}"


@dataclass
class Session:
    """One server start and the cells measured on it.

    variant: what serves; k: draft tokens per step (0 without a draft); round: which turn of A/B.
    """

    variant: str
    k: int
    round: int
    cells: list[Cell] = field(default_factory=list)

    @property
    def key(self) -> str:
        return f"{self.variant} k={self.k} round={self.round}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def cells_of(settings: Settings, variant: str) -> list[Cell]:
    """The cells that a variant is measured in, without doubles, in the grid's order."""
    cells: dict[tuple[Any, ...], Cell] = {}
    for entry in settings.grid:
        wanted = EAGLE3 if variant == PREDECESSOR else variant
        if wanted not in entry.variants:
            continue
        for concurrency in entry.concurrency:
            cell = _cell(settings, entry, concurrency)
            cells.setdefault((cell.set, cell.concurrency, cell.temperature, cell.end, cell.output_tokens), cell)
    return list(cells.values())


def _cell(settings: Settings, entry: Grid, concurrency: int) -> Cell:
    prompts = max(entry.prompts, settings.streams * concurrency)
    return Cell(entry.set, concurrency, entry.temperature, entry.end, entry.output_tokens, prompts)


def exact_cell(settings: Settings) -> Cell:
    """One request at a time: nothing but the draft differs."""
    return Cell(settings.grid[0].set, 1, 0.0, "natural", settings.lossless_tokens, settings.lossless_prompts)


def sessions(settings: Settings, k: int, predecessor: bool = False) -> list[Session]:
    """All server starts in order: the controls, then baseline and EAGLE3 in turns (A/B/A/B).

    EAGLE3 comes last of each turn, so that a winner is left serving without another start.
    """
    found = [
        Session(UNTRAINED, k, 0, cells_of(settings, UNTRAINED)),
        Session(NGRAM, settings.ngram_tokens or k, 0, cells_of(settings, NGRAM)),
    ]
    found += [Session(SWEEP, other, 0, cells_of(settings, SWEEP)) for other in settings.k_sweep if other != k]
    if settings.lossless_prompts:
        cell = [exact_cell(settings)]
        found += [Session(EXACT_BASELINE, 0, 0, cell), Session(EXACT_EAGLE3, k, 0, cell)]
    for turn in range(1, settings.rounds + 1):
        found.append(Session(BASELINE, 0, turn, cells_of(settings, BASELINE)))
        if predecessor:
            found.append(Session(PREDECESSOR, k, turn, cells_of(settings, PREDECESSOR)))
        found.append(Session(EAGLE3, k, turn, cells_of(settings, EAGLE3)))
    return [session for session in found if session.cells]


def prompt_counts(planned: list[Session]) -> dict[str, int]:
    """Prompts needed per set: the most that any cell asks for."""
    counts: dict[str, int] = {}
    for session in planned:
        for cell in session.cells:
            counts[cell.set] = max(counts.get(cell.set, 0), cell.prompts)
    return counts

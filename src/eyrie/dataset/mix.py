"""The mix: which rows of which sources enter training, in which order. A function of the rows' keys, the settings
and the seed; never of the number of workers or of who finished first."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from eyrie.core.accounting import FIRST_FAULTS
from eyrie.dataset import part as parts
from eyrie.dataset.near import NEAR, NEAR_EVAL
from eyrie.dataset.settings import Settings
from eyrie.dataset.unit import Unit

TRAIN, HELDOUT = 0, 1


class Begin(NamedTuple):
    """Where a part's rows begin among all, of which unit it is, and how many lines of its file come before it."""

    row: int
    part: parts.Part
    unit: int
    lines: int


@dataclass
class Keys:
    """Columns of all rows of all units, in order of unit, part and place in the part.

    id, first, key: 16 bytes as two uint64 each, [rows, 2]; rank: order of precedence, which is the place in all the
    sources one behind another; source: unit's index; size, tool_size: bytes of the texts, tool_size is None where no
    row has tools; bases: places before each unit.
    """

    id: Any
    first: Any
    key: Any
    rank: Any
    source: Any
    size: Any
    tool_size: Any
    bases: list[int]
    starts: list[Begin]

    def places(self, rows: Any) -> Any:
        """Rows' places in their own sources."""
        import numpy as np

        return self.rank[rows] - np.array(self.bases, dtype=np.int64)[self.source[rows]]


@dataclass
class Chosen:
    """The result: per row its set (-1 = none) and its place in that set; books of what was left out per source."""

    where: Any
    dropped: list[Counter[str]]
    examples: list[dict[str, list[str]]]
    counts: list[dict[str, int]]
    available: list[int] = field(default_factory=list)


def load(units: list[Unit]) -> Keys:
    """Read the keys of all parts (46 bytes a row)."""
    import numpy as np

    every = [part for unit in units for part, _, _ in unit.bases()]
    rows = sum(part.rows for part in every)
    own = any("key" in part.columns for part in every)  # else the first turn alone makes two rows equal
    tools = any("tool_size" in part.columns for part in every)
    pairs = {name: np.empty((rows, 2), dtype=np.uint64) for name in ("id", "first", *(("key",) if own else ()))}
    sizes = {name: np.empty(rows, dtype=np.uint32) for name in ("size", *(("tool_size",) if tools else ()))}
    rank, source = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int16)
    starts: list[Begin] = []
    bases: list[int] = []
    count = base = 0
    for number, unit in enumerate(units):
        bases.append(base)
        total = 0
        for part, records, lines in unit.bases():
            starts.append(Begin(count, part, number, lines))
            total = records + part.records
            here = slice(count, count + part.rows)
            for name, pair in pairs.items():
                pair[here] = parts.column(unit.folder, part, name).view(">u8").reshape(-1, 2)
            rank[here] = parts.column(unit.folder, part, "row") + (base + records)
            for name, size in sizes.items():
                size[here] = parts.column(unit.folder, part, name)
            source[here] = number
            count += part.rows
        base += total
    pairs.setdefault("key", pairs["first"])
    sizes.setdefault("tool_size", None)
    return Keys(**pairs, rank=rank, source=source, **sizes, bases=bases, starts=starts)


def signatures(units: list[Unit], keys: Keys, rows: Any) -> Any:
    """MinHash signatures of the given rows, uint32 [rows, permutations], read part by part."""
    import numpy as np

    wanted = np.sort(rows)
    pieces = []
    for start, part, number, _ in keys.starts:
        low, high = np.searchsorted(wanted, [start, start + part.rows])
        if low == high:
            continue
        values = parts.signatures(units[number].folder, part)
        pieces.append(values[wanted[low:high] - start])
    return np.concatenate(pieces)[np.searchsorted(wanted, rows)]


def splitmix(values: Any, seed: int) -> Any:
    """A fixed, seeded scramble of uint64 values (SplitMix64)."""
    import numpy as np

    with np.errstate(over="ignore"):
        z = values.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & (2**64 - 1))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def ordered(first: Any, *then: Any) -> Any:
    """Indices in order of `first`, of `then` where that is equal: np.lexsort, faster where few are equal."""
    import numpy as np

    order = np.argsort(first)
    values = first[order]
    equal = np.flatnonzero(values[1:] == values[:-1])
    if len(equal):
        places = np.unique(np.concatenate([equal, equal + 1]))
        rows = order[places]
        order[places] = rows[np.lexsort((*(column[rows] for column in reversed(then)), first[rows]))]
    return order


def firsts(key: Any, rank: Any) -> Any:
    """For each row the row of lowest rank that has the same key (itself when it is the first)."""
    import numpy as np

    high, low = np.ascontiguousarray(key[:, 0]), np.ascontiguousarray(key[:, 1])
    order = ordered(high, low, rank)
    new = np.ones(len(order), dtype=bool)
    new[1:] = (high[order[1:]] != high[order[:-1]]) | (low[order[1:]] != low[order[:-1]])
    group = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    out = np.empty(len(order), dtype=np.int64)
    out[order] = order[group]
    return out


def member(values: Any, among: Any) -> Any:
    """Which of the [rows, 2] values are among others."""
    import numpy as np

    if not len(among) or not len(values):
        return np.zeros(len(values), dtype=bool)
    hit = np.isin(values[:, 0], among[:, 0])
    known = {(int(hi), int(lo)) for hi, lo in among}
    for index in np.flatnonzero(hit):
        hit[index] = (int(values[index, 0]), int(values[index, 1])) in known
    return hit


def choose(keys: Keys, units: list[Unit], settings: Settings, excluded: Any, near: Any = None) -> Chosen:
    """Decide for every row. excluded: [n, 2] keys of prompts that must not be in training.

    near: a function (candidate rows in order of rank) -> verdicts of near.find about them, or None.
    """
    with ThreadPoolExecutor(1) as beside:
        order = beside.submit(shuffled, keys, settings.seed)
        return _choose(keys, units, settings, excluded, near, order)


def _choose(keys: Keys, units: list[Unit], settings: Settings, excluded: Any, near: Any, order: Future[Any]) -> Chosen:
    import numpy as np

    rows = len(keys.rank)
    result = Chosen(np.full(rows, -1, dtype=np.int64), [Counter() for _ in units], [{} for _ in units], [])
    alive = np.ones(rows, dtype=bool)

    def leave(mask: Any, reason: str) -> None:
        """Take rows out, with the first places per source."""
        places = np.flatnonzero(mask & alive)
        alive[places] = False
        for number, unit in enumerate(units):
            mine = places[keys.source[places] == number]
            if len(mine):
                result.dropped[number][reason] += len(mine)
                first = mine[np.argsort(keys.rank[mine], kind="stable")[:FIRST_FAULTS]]
                result.examples[number][reason] = [_place(unit, keys, index) for index in first]

    leave(member(keys.first, excluded), "eval_overlap")
    if settings.dedup != "none":
        pool = np.flatnonzero(alive)
        mine = slice(None) if len(pool) == rows else pool  # which copies nothing
        first = pool[firsts(keys.key[mine], keys.rank[mine])]
        again = np.zeros(rows, dtype=bool)
        across = np.zeros(rows, dtype=bool)
        later = pool[first != pool]
        same = keys.source[first[first != pool]] == keys.source[later]
        again[later[same]] = True
        across[later[~same]] = True
        leave(again, "duplicate")
        leave(across, "duplicate_across")
    if near is not None:
        pool = np.flatnonzero(alive)
        pool = pool[np.argsort(keys.rank[pool], kind="stable")]
        verdict = near(pool)
        for code, reason in ((NEAR_EVAL, "near_eval"), (NEAR, "near_duplicate")):
            mask = np.zeros(rows, dtype=bool)
            mask[pool[verdict == code]] = True
            leave(mask, reason)
    train, held = _allot(keys, units, settings, alive, leave, result)
    place(order.result(), held, result.where, HELDOUT)
    place(order.result(), train, result.where, TRAIN)
    return result


def _allot(
    keys: Keys, units: list[Unit], settings: Settings, alive: Any, leave: Any, result: Chosen
) -> tuple[Any, Any]:
    """(training rows, held-out rows), by weight and quota; those held out are taken first."""
    import numpy as np

    pools = [np.flatnonzero(alive & (keys.source == number)) for number in range(len(units))]
    result.available = [len(pool) for pool in pools]
    weights = [unit.source.weight for unit in units]
    rows = len(keys.rank)
    held, train, quota = (np.zeros(rows, dtype=bool) for _ in range(3))
    shares = allocate(settings.heldout, result.available, weights)
    for number, pool in enumerate(pools):
        if shares[number]:
            order = pool[ordered(splitmix(keys.id[pool, 0], settings.seed ^ 0x48), pool)]
            held[order[: shares[number]]] = True
            pools[number] = order[shares[number] :]
    limits = [min(len(pool), unit.source.quota or len(pool)) for pool, unit in zip(pools, units, strict=True)]
    wanted = settings.samples or sum(limits)
    counts = allocate(wanted, limits, weights)
    for number, pool in enumerate(pools):
        order = pool
        if counts[number] < len(pool):
            order = pool[ordered(splitmix(keys.id[pool, 0], settings.seed ^ 0x54), np.arange(len(pool)))]
        train[order[: counts[number]]] = True
        quota[order[limits[number] :]] = True
        result.counts.append({"train": counts[number], "heldout": shares[number]})
    leave(held, "held_out")
    leave(quota & ~train, "over_quota")
    leave(~train, "not_sampled")
    return train, held


def shuffled(keys: Keys, seed: int) -> Any:
    """All rows in the order in which they are placed: buckets in seeded order, rows in seeded order within them.

    The ids are hashes, so a bucket is a random draw of all sources, and the whole is a shuffle that can be written
    one bucket at a time.
    """
    import numpy as np

    ids = keys.id[:, 0]
    turn = np.argsort(np.argsort(splitmix(np.arange(parts.BUCKETS, dtype=np.uint64), seed))).astype(np.uint8)
    order = ordered(splitmix(ids, seed), keys.rank)
    return order[np.argsort(turn[ids[order] >> np.uint64(58)], kind="stable")]


def place(order: Any, mask: Any, where: Any, kind: int) -> None:
    """Give the masked rows their places, in the order of all rows."""
    import numpy as np

    rows = order[mask[order]]
    where[rows] = np.arange(len(rows)) * 2 + kind


def allocate(total: int, limits: list[int], weights: list[float]) -> list[int]:
    """Share `total` by weight among sources that can give at most `limits`; what one cannot give goes to the others.

    Whole numbers by largest remainder, ties to the earlier source.
    """
    given = [0] * len(limits)
    total = min(total, sum(limits))
    while (left := total - sum(given)) > 0:
        able = [index for index in range(len(limits)) if given[index] < limits[index]]
        weight = sum(weights[index] for index in able)
        exact = {index: left * weights[index] / weight for index in able}
        share = {index: min(int(exact[index]), limits[index] - given[index]) for index in able}
        if not any(share.values()):  # less than one each is left: one by one, by largest remainder
            for index in sorted(able, key=lambda index: (-exact[index], index))[:left]:
                given[index] += 1
            continue
        for index in able:
            given[index] += share[index]
    return given


def _place(unit: Unit, keys: Keys, index: int) -> str:
    """File and line of a row, for reports."""
    start = keys.starts[bisect_right(keys.starts, index, key=lambda begin: begin.row) - 1]
    line = int(parts.column(unit.folder, start.part, "line")[index - start.row]) + start.lines
    return f"{unit.files[start.part.file][0] if unit.files else 'generated'}:{line}"

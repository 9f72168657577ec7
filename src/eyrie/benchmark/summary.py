"""From samples to cells to the benchmark's result. Pure."""

from __future__ import annotations

from typing import Any

from eyrie.benchmark import decide, stats
from eyrie.benchmark.cells import EXACT_BASELINE, EXACT_DTYPE, EXACT_EAGLE3, PREDECESSOR
from eyrie.benchmark.settings import BASELINE, EAGLE3, NGRAM, SWEEP, UNTRAINED, Settings

KEY = ("variant", "k", "set", "concurrency", "temperature", "end", "output_tokens")


def cells(sessions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Repeats of the same cell joined: means, pooled acceptance, intervals from the noise of all repeats."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for session in sessions:
        for sample in session["samples"]:
            value = {"variant": session["variant"], "k": session["k"], **sample}
            groups.setdefault(tuple(value[key] for key in KEY), []).append(value)
    noise = noises(groups)
    return [_cell(key, samples, *noise[key[3]]) for key, samples in groups.items()]


def noises(groups: dict[tuple[Any, ...], list[dict[str, Any]]]) -> dict[int, tuple[float, int]]:
    """Relative noise of one measurement per concurrency, from all cells' repeats there; where those are few, of all."""
    speeds: dict[int, list[list[float]]] = {}
    for key, samples in groups.items():
        speeds.setdefault(key[3], []).append([sample["tok_s"] for sample in samples])
    every = stats.pooled_noise([values for found in speeds.values() for values in found])
    own = {concurrency: stats.pooled_noise(found) for concurrency, found in speeds.items()}
    return {concurrency: value if value[1] >= 3 else every for concurrency, value in own.items()}


def _cell(key: tuple[Any, ...], samples: list[dict[str, Any]], noise: float, df: int) -> dict[str, Any]:
    speeds = [sample["tok_s"] for sample in samples]
    drafts, accepted = (sum(sample[name] for sample in samples) for name in ("drafts", "accepted"))
    generated = sum(sample["generated"] for sample in samples)
    positions = max(len(sample["per_position"]) for sample in samples)
    per_position = [
        sum(sample["per_position"][place] * sample["drafts"] for sample in samples) / drafts
        for place in range(positions if drafts else 0)
    ]
    return {
        **dict(zip(KEY, key, strict=True)),
        "n": len(samples),
        "tok_s": stats.geometric_mean(speeds),
        "tok_s_ci": stats.interval(speeds, noise, df),
        "tok_s_each": speeds,
        "noise": noise if df else None,
        "noise_df": df,
        "requests": sum(sample["completed"] for sample in samples),
        "generated": generated,
        "acceptance": 1 + accepted / drafts if drafts else None,
        "acceptance_ci": samples[0]["tokens_per_message_ci"] if drafts else None,
        "per_position": per_position,
        "drafts": drafts,
        "accepted": accepted,
        "tokens_per_step": decide.tokens_per_step(generated, accepted),
        **{name: _mean_of(samples, name) for name in ("ttft_ms", "tpot_ms", "latency_ms")},
        "in_flight": stats.mean([sample["in_flight"] for sample in samples]),
        "queue_share": stats.mean([sample["queue_share"] for sample in samples]),
        "foreign_cpu_share": max(sample["foreign_cpu_share"] or 0.0 for sample in samples),
        "past_end_share": stats.mean([sample["past_end_share"] for sample in samples]),
        "flags": sorted({flag for sample in samples for flag in sample["flags"]}),
    }


def _mean_of(samples: list[dict[str, Any]], name: str) -> dict[str, float]:
    return {part: stats.mean([sample[name][part] for sample in samples]) for part in samples[0][name]}


def pick(found: list[dict[str, Any]], variant: str, head: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """Cells of a variant with the head's set, temperature, end and length."""
    wanted = {"variant": variant, **head, **more}
    return [cell for cell in found if all(cell[key] == value for key, value in wanted.items())]


def headline(settings: Settings, name: str = "") -> dict[str, Any]:
    """What the cells that decide have in common (or of another set: the first grid entry of that name)."""
    entry = next((item for item in settings.grid if item.set == name), settings.grid[0]) if name else settings.grid[0]
    return {
        "set": entry.set,
        "temperature": entry.temperature,
        "end": entry.end,
        "output_tokens": entry.output_tokens,
    }


def lines(found: list[dict[str, Any]], head: dict[str, Any], min_gain: float) -> list[decide.Line]:
    """EAGLE3 against the baseline, a line per concurrency."""
    base = {cell["concurrency"]: cell for cell in pick(found, BASELINE, head)}
    out = []
    for cell in pick(found, EAGLE3, head):
        other = base.get(cell["concurrency"])
        if other is None or cell["acceptance"] is None:
            continue
        value, interval = ratio(cell, other)
        out.append(
            decide.Line(
                cell["concurrency"],
                other["tok_s"],
                cell["tok_s"],
                value,
                interval,
                cell["acceptance"],
                cell["k"],
                min_gain,
            )
        )
    return sorted(out, key=lambda line: line.concurrency)


def ratio(upper: dict[str, Any], lower: dict[str, Any]) -> tuple[float, list[float] | None]:
    """Speed of one cell over another's, with its interval."""
    df = min(upper["noise_df"], lower["noise_df"])
    return stats.ratio(upper["tok_s_each"], lower["tok_s_each"], upper["noise"] or 0.0, df)


def acceptance(found: list[dict[str, Any]], variant: str, head: dict[str, Any]) -> dict[str, Any] | None:
    """{length, per_position, drafts, accepted, interval} pooled over concurrencies; None where nothing drafted."""
    chosen = [cell for cell in pick(found, variant, head) if cell["drafts"]]
    drafts = sum(cell["drafts"] for cell in chosen)
    if not drafts:
        return None
    accepted = sum(cell["accepted"] for cell in chosen)
    count = max(len(cell["per_position"]) for cell in chosen)
    widest = max(chosen, key=lambda cell: cell["requests"])
    return {
        "length": 1 + accepted / drafts,
        "interval": widest["acceptance_ci"],
        "per_position": [
            sum(cell["per_position"][place] * cell["drafts"] for cell in chosen) / drafts for place in range(count)
        ],
        "drafts": drafts,
        "accepted": accepted,
        "tokens_per_step": decide.tokens_per_step(sum(cell["generated"] for cell in chosen), accepted),
    }


def decision(settings: Settings, found: list[dict[str, Any]], exact: dict[str, Any] | None = None) -> dict[str, Any]:
    """Lines per set, best k, controls, verdict and what it is limited by."""
    head = headline(settings)
    judged = lines(found, head, settings.min_gain)
    marked = sorted({flag for cell in found if _matches(cell, head) for flag in cell["flags"]})
    limits = [f"Doubtful cells: {', '.join(marked)}."] if marked else []
    lossy = exact is not None and exact["same"] < exact["of"]
    if exact is not None and lossy:
        limits.append(
            f"Greedy text differs in {exact['dtype']}: {exact['same']} of {exact['of']} answers are the same."
        )
    speeds: dict[int, dict[int, float]] = {}
    for variant in (EAGLE3, SWEEP):
        for cell in pick(found, variant, head):
            speeds.setdefault(cell["concurrency"], {})[cell["k"]] = cell["tok_s"]
    against = None
    before = {cell["concurrency"]: cell for cell in pick(found, PREDECESSOR, head)}
    if before:
        mine = {cell["concurrency"]: cell for cell in pick(found, EAGLE3, head)}
        against = [(c, *ratio(mine[c], before[c])) for c in sorted(mine.keys() & before.keys())]
    verdict = decide.verdict(judged, limits)
    promote, reason = decide.promotion(verdict, against, lossy)
    sets = sorted({entry.set for entry in settings.grid}, key=[e.set for e in settings.grid].index)
    return {
        "headline": head,
        "lines": [line.as_dict() for line in judged],
        "best_k": decide.best_k(speeds) if speeds else {},
        "verdict": verdict,
        "predecessor": against,
        "promote": promote,
        "promote_reason": reason,
        "sets": {name: _of_set(settings, found, name) for name in sets},
    }


def same_text(sessions: list[dict[str, Any]]) -> dict[str, int] | None:
    """{same, of}: greedy answers that are equal, to the letter, with and without the draft, in the first turn.

    In bf16 this is information, not a check: batches of another shape round differently.
    """
    texts: dict[str, dict[tuple[Any, ...], list[str]]] = {BASELINE: {}, EAGLE3: {}}
    for session in sessions:
        if session["variant"] in texts and session["round"] == 1:
            for sample in session["samples"]:
                if sample["temperature"] == 0 and sample["repeat"] == 0:
                    texts[session["variant"]][tuple(sample[key] for key in KEY[2:])] = sample["digests"]
    pairs = [
        (mine, other)
        for key in texts[BASELINE].keys() & texts[EAGLE3].keys()
        for mine, other in zip(texts[BASELINE][key], texts[EAGLE3][key], strict=True)
    ]
    return {"same": sum(mine == other for mine, other in pairs), "of": len(pairs)} if pairs else None


def lossless(sessions: list[dict[str, Any]]) -> dict[str, Any] | None:
    """{dtype, same, of, different: [places]} of the fp32 check; None when it was not asked for."""
    texts = {session["variant"]: session["samples"][0]["digests"] for session in sessions}
    if EXACT_BASELINE not in texts or EXACT_EAGLE3 not in texts:
        return None
    pairs = list(zip(texts[EXACT_BASELINE], texts[EXACT_EAGLE3], strict=True))
    different = [place for place, (one, other) in enumerate(pairs) if one != other]
    return {"dtype": EXACT_DTYPE, "same": len(pairs) - len(different), "of": len(pairs), "different": different}


def _of_set(settings: Settings, found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    head = headline(settings, name)
    return {
        "acceptance": acceptance(found, EAGLE3, head),
        "untrained": acceptance(found, UNTRAINED, head),
        "ngram": acceptance(found, NGRAM, head),
        "lines": [line.as_dict() for line in lines(found, head, settings.min_gain)],
    }


def _matches(cell: dict[str, Any], head: dict[str, Any]) -> bool:
    return cell["variant"] in (BASELINE, EAGLE3) and all(cell[key] == value for key, value in head.items())

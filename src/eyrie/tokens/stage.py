"""Stage `tokens`: supervised tokens in the form speculators trains on, their frequencies, the draft vocabulary.

Every run writes into the folder of its own fingerprint, so nothing of other settings can be picked up; frequencies are
always counted, whatever the draft vocabulary.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eyrie.core import atomic, estimate
from eyrie.core.errors import EyrieError
from eyrie.core.pipeline import Context
from eyrie.core.stage import Fault, Outcome, Stage, Work, tree_bytes
from eyrie.tokens.settings import Settings

log = logging.getLogger(__name__)

TABLE = "responses.parquet"


class Tokens(Stage):
    name = "tokens"
    inputs = ("target", "responses")
    settings_type = Settings
    tools = ()  # ids come from the responses, the format is ours: no library decides the bytes

    def gates(self, ctx: Context) -> list[dict[str, Any]]:
        size, asked = ctx.target.vocab_size, ctx.settings.draft_vocab_size
        ok = asked is None or asked <= size
        message = f"draft vocabulary {asked or size} of {size}"
        return [{"name": "vocabulary", "ok": ok, "message": message if ok else f"{message}: larger than the target's."}]

    def forecast(self, ctx: Context) -> dict[str, Any]:
        figures = ctx.input("responses").record().get("figures") or {}
        turns = (figures.get("turns") or {}).get("kept")
        tokens = turns and figures.get("output_tokens", 0) + figures.get("prompt_tokens", 0)
        return dict(estimate.estimate(self.name, ctx.pipeline.raw, samples=turns, tokens=tokens or None))

    def run(self, ctx: Context, work: Work) -> Outcome:
        from eyrie.tokens import audit, build, special
        from eyrie.tokens.vocab import check_ids

        settings: Settings = ctx.settings
        model, source = ctx.input("target").out, ctx.input("responses").out / TABLE
        size = special.vocab_size(model, ctx.target.vocab_size)
        scratch = ctx.out / ".ids.tmp"
        work.progress.start("building rows", unit="turns")
        turns = self._turns(ctx, source)
        if settings.merge_turns:
            turns = build.merge(turns)
        try:
            rows, counts = build.collect(turns, settings, size, scratch, audit.bos_id(model), work.check_stop)
            supervised = counts.supervised
            if not len(rows) or not supervised.sum():
                rows.account.check(self.name)
                raise EyrieError("no row has a supervised token.", code="nothing-supervised", where=str(source))
            check_ids(supervised, size)
            work.check_stop()
            tokens = write_data(ctx.out, rows, settings, work)
            audited = audit.audit(rows, model, ctx.target.trust_remote_code, settings)
            atomic.write_json(ctx.out / "audit.json", audited)
        finally:
            scratch.unlink(missing_ok=True)
        figures: dict[str, Any] = {
            "rows": len(rows),
            "tokens": tokens,
            "supervised_tokens": int(supervised.sum()),
            "clipped": rows.clipped.total(),
            "supervised_share": audited["supervised_share"],
            "warnings": audited["warnings"],
            "merged_turns": rows.account.kept - len(rows),
            "sources": {name: account.as_dict() for name, account in sorted(rows.per_source.items())},
        }
        write_frequencies(ctx.out / "token_freq.pt", supervised)
        template = special.template_text(model, ctx.target.chat_template)
        figures["vocabulary"] = write_vocab(ctx.out, model, template, settings, counts, rows.names)
        return Outcome(rows.account, outputs(), figures, tree_bytes(ctx.out))

    def _turns(self, ctx: Context, source: Path) -> Iterator[Any]:
        """Sampled ids where the responses have them; else borders from the chat template."""
        from eyrie.tokens import build

        if ctx.input("responses").settings.regenerate:
            return build.response_turns(source)
        from eyrie.tokens.template import Template
        from eyrie.tokens.tokenizer import Tokenizer

        model, target = ctx.input("target").out, ctx.target
        template = Template.load(model, target.chat_template, dict(ctx.settings.chat_template_kwargs))
        return build.rendered_turns(source, template, Tokenizer.load(model, target.trust_remote_code))

    def verify(self, ctx: Context) -> list[Fault]:
        from eyrie.tokens.verify import verify

        return super().verify(ctx) or verify(ctx.out, ctx.target.vocab_size, ctx.record())


def outputs() -> list[str]:
    return ["data/state.json", "data/dataset_info.json", "samples.parquet", "token_freq.pt", "vocab.json", "audit.json"]


def write_data(out: Path, rows: Any, settings: Settings, work: Work) -> int:
    """data/ and samples.parquet in shuffled order; the number of tokens."""
    import numpy as np
    import pyarrow as pa

    from eyrie.responses.output import TableWriter
    from eyrie.tokens import arrow, build

    total = int(sum(rows.lengths))
    ids = np.memmap(rows.path, dtype="<i4", mode="r", shape=(total,))
    schema = pa.schema(
        [
            ("key", pa.string()),
            ("id", pa.string()),
            ("source", pa.string()),
            ("turn", pa.int32()),
            ("length", pa.int32()),
            ("supervised", pa.int32()),
        ]
    )
    table = TableWriter(out / "samples.parquet", schema)
    work.progress.start("writing rows", len(rows), "rows")
    try:
        with arrow.DatasetWriter(out / "data", total) as data:
            for count, row in enumerate(build.order(rows, settings.shuffle_seed).tolist()):
                if count % build.BATCH == 0:
                    work.check_stop()
                    work.progress.update(count)
                start, length = rows.offsets[row], rows.lengths[row]
                data.add(np.array(ids[start : start + length]), build.mask_of(rows.spans[row], length))
                table.add(
                    {
                        "key": rows.keys[row].hex(),
                        "id": rows.ids[row],
                        "source": rows.names[rows.sources[row]],
                        "turn": rows.turns[row],
                        "length": length,
                        "supervised": rows.supervised(row),
                    }
                )
    except BaseException:
        table.abandon()
        raise
    table.close()
    return total


def write_frequencies(path: Path, supervised: Any) -> None:
    """token_freq.pt as speculators reads it: {token id: count}, supervised tokens only, by torch.save."""
    import numpy as np
    import torch

    frequencies = {int(token): int(supervised[token]) for token in np.flatnonzero(supervised)}
    temporary = path.with_name(f".{path.name}.tmp")
    torch.save(frequencies, temporary)
    with open(temporary, "rb") as stream:
        os.fsync(stream.fileno())
    os.replace(temporary, path)
    atomic.fsync_dir(path.parent)


def write_vocab(
    out: Path, model: Path, template: str, settings: Settings, counts: Any, names: list[str]
) -> dict[str, Any]:
    """vocab/{d2t,t2d}.npy and vocab.json; the figures. Without a draft vocabulary size there are no tables."""
    import numpy as np

    from eyrie.tokens import special, vocab

    size = counts.size
    required = special.required(model, template, size, settings.keep_tokens, counts.supervised)
    figures: dict[str, Any] = {
        "target_vocab_size": size,
        "draft_vocab_size": settings.draft_vocab_size or size,
        "reduced": settings.draft_vocab_size is not None,
        "distinct_supervised": int(np.count_nonzero(counts.supervised)),
        "required_tokens": {str(token): text for token, text in required.items()},
    }
    table = np.ones(size, dtype=np.bool_)
    if settings.draft_vocab_size is not None:
        built = vocab.build(counts.supervised, settings.draft_vocab_size, required, counts.context)
        table = built.t2d
        vocab.check_tables(built.d2t, table, size, settings.draft_vocab_size)
        folder = out / "vocab"
        folder.mkdir(exist_ok=True)
        save_array(folder / "d2t.npy", built.d2t)
        save_array(folder / "t2d.npy", table)
        figures.update(seen=built.seen, from_prompts=built.from_prompts, filled=built.filled)
    figures["coverage"] = round(vocab.coverage(counts.supervised, table), 6)
    figures["coverage_by_source"] = {
        name: round(vocab.coverage(counts.by_source[number], table), 6) for number, name in enumerate(names)
    }
    figures["coverage_by_language"] = {
        name: round(vocab.coverage(count, table), 6) for name, count in sorted(counts.by_script.items())
    }
    kinds = {**figures["coverage_by_source"], **{f"{k} script": v for k, v in figures["coverage_by_language"].items()}}
    low = {name: value for name, value in kinds.items() if value < settings.min_coverage}
    figures["below_bound"] = {"bound": settings.min_coverage, "coverage": low}
    if low:
        text = ", ".join(f"{name} {value:.1%}" for name, value in sorted(low.items()))
        if settings.coverage_policy == "fail":
            raise EyrieError(
                f"the draft vocabulary covers too little of: {text} (bound {settings.min_coverage:.0%}).",
                todo="Raise eyrie_tokens_draft_vocab_size.",
                code="coverage-low",
            )
        log.warning("the draft vocabulary covers less than %.0f%% of: %s", settings.min_coverage * 100, text)
    atomic.write_json(out / "vocab.json", figures)
    return figures


def save_array(path: Path, array: Any) -> None:
    """numpy .npy, written durably."""
    import io

    import numpy as np

    stream = io.BytesIO()
    np.save(stream, array)
    atomic.write_bytes(path, stream.getvalue())


STAGE = Tokens()

__all__ = ["STAGE", "Tokens"]

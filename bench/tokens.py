"""Tokens a second of the stage `tokens` against speculators' preparation, on the same conversations, in one run.

    python bench/tokens.py --model MODEL_FOLDER [--render http://127.0.0.1:8000] [--json]

sampled: rows that hold ids already. text: rows that have to be rendered and tokenised; speculators asks a vLLM server
for that (--render: one that serves MODEL_FOLDER with --enable-scale-out; without it only Eyrie is measured), Eyrie
renders the template itself. limit: what the tokenizer library alone makes of the same texts, all cores, nothing else.
Imports do not count for either.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SUPPORT = HERE / "support"
SOURCE = HERE.parent / "src"
sys.path.insert(0, str(SOURCE))
LENGTH = 4096


def conversations(count: int) -> list[list[dict[str, str]]]:
    """Seeded English-like text: one to three turns, 20 to 400 words each."""
    dice = random.Random(11)
    syllables = [
        "ba",
        "con",
        "de",
        "ing",
        "ter",
        "ra",
        "mi",
        "tion",
        "al",
        "er",
        "pro",
        "st",
        "le",
        "ver",
        "en",
        "the",
        "of",
    ]
    words = ["".join(dice.choices(syllables, k=dice.randint(1, 4))) for _ in range(4000)]
    rows = []
    for _ in range(count):
        turns = []
        for _ in range(dice.randint(1, 3)):
            turns.append({"role": "user", "content": " ".join(dice.choices(words, k=dice.randint(20, 80)))})
            turns.append({"role": "assistant", "content": " ".join(dice.choices(words, k=dice.randint(40, 400)))})
        rows.append(turns)
    return rows


def write_inputs(folder: Path, model: Path, rows: list[list[dict[str, str]]]) -> list[str]:
    """The same turns in both tools' forms, with and without ids; the texts that are tokenised."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from eyrie.responses.output import schema
    from eyrie.tokens.template import Template
    from eyrie.tokens.tokenizer import Tokenizer

    template, tokenizer = Template.load(model), Tokenizer.load(model)
    table, sampled, texts = [], [], []
    for number, turns in enumerate(rows):
        for at in range(1, len(turns), 2):
            span = template.span(turns[:at], turns[at])
            texts += [span.prompt, span.answer]
            [(ids, border)] = tokenizer.encode_parts([(span.prompt, span.answer)])
            sampled.append({"input_ids": ids, "loss_mask": [0] * border + [1] * (len(ids) - border)})
            row = dict.fromkeys(schema().names)
            row |= {"id": f"c{number}", "source": "bench", "turn": at // 2, "messages": json.dumps(turns[:at])}
            row |= {"text": turns[at]["content"], "prompt_ids": ids[:border], "output_ids": ids[border:]}
            table.append(row)
    pq.write_table(pa.Table.from_pylist(table, schema=schema()), folder / "responses.parquet")
    write_lines(folder / "sampled.jsonl", sampled)
    write_lines(folder / "text.jsonl", [{"conversations": turns} for turns in rows])
    return texts


def write_lines(path: Path, values: list[Any]) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


def timed(arguments: list[str], folder: Path) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    environment["HF_DATASETS_CACHE"] = str(folder / f"cache{time.monotonic_ns()}")
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{arguments[0]} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def measure(folder: Path, model: Path, repeats: int, render: str) -> dict[str, dict[str, Any]]:
    runs: dict[str, list[dict[str, Any]]] = {}
    for number in range(repeats):
        for kind in ("sampled", "text"):
            form = "as-is" if kind == "text" else "sampled"
            out = [str(folder / f"{tool}{kind}{number}") for tool in ("eyrie", "speculators")]
            ours = [str(SUPPORT / "prepare_eyrie.py"), str(model), str(folder / "responses.parquet"), out[0]]
            runs.setdefault(f"eyrie_{kind}", []).append(timed([*ours, str(LENGTH), form], folder))
            if kind == "text" and not render:
                continue
            theirs = [
                str(SUPPORT / "prepare_speculators.py"),
                str(model),
                str(folder / f"{kind}.jsonl"),
                out[1],
                str(LENGTH),
            ]
            runs.setdefault(f"speculators_{kind}", []).append(
                timed([*theirs, *([render] if kind == "text" else [])], folder)
            )
    return {
        name: {
            "tokens_s": found[0]["tokens"] / statistics.median(run["seconds"] for run in found),
            "rows": found[0]["rows"],
            "tokens": found[0]["tokens"],
        }
        for name, found in runs.items()
    }


def library_limit(model: Path, texts: list[str]) -> float:
    """Tokens a second of the tokenizer library's own batch encoding, all cores."""
    import tokenizers

    library = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    start = time.perf_counter()
    tokens = sum(len(item.ids) for item in library.encode_batch_fast(texts, add_special_tokens=False))
    return tokens / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--render", default="", help="base URL of a vLLM server with --enable-scale-out")
    parser.add_argument("--conversations", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = write_inputs(folder, options.model, conversations(options.conversations))
        limit = statistics.median(library_limit(options.model, texts) for _ in range(options.repeats))
        found = measure(folder, options.model, options.repeats, options.render)
    flat: dict[str, Any] = {"library_limit_tokens_s": round(limit)}
    for name, value in found.items():
        flat[f"{name}_tokens_s"] = round(value["tokens_s"])
    for kind in ("sampled", "text"):
        if f"speculators_{kind}" in found:
            flat[f"vs_speculators_{kind}"] = round(
                found[f"eyrie_{kind}"]["tokens_s"] / found[f"speculators_{kind}"]["tokens_s"], 2
            )
    flat["text_share_of_library_limit"] = round(found["eyrie_text"]["tokens_s"] / limit, 3)
    print(
        json.dumps({**flat, "runs": found})
        if options.json
        else "\n".join(f"{key}: {value}" for key, value in flat.items())
    )


if __name__ == "__main__":
    main()

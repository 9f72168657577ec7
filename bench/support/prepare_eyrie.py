"""Eyrie's rows, frequencies and draft vocabulary, timed after its imports.

Arguments: MODEL RESPONSES.parquet OUTPUT SEQ_LENGTH as-is|sampled.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy  # noqa: F401 - imports are not what is timed
import pyarrow.compute
import pyarrow.parquet  # noqa: F401
import torch  # noqa: F401

from eyrie.core.progress import Progress
from eyrie.core.stage import Work
from eyrie.tokens import build, special, stage
from eyrie.tokens.settings import Settings
from eyrie.tokens.template import Template
from eyrie.tokens.tokenizer import Tokenizer


def main() -> None:
    model, source, out = map(Path, sys.argv[1:4])
    settings = Settings(seq_length=int(sys.argv[4]), merge_turns=False, draft_vocab_size=8192)
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    if sys.argv[5] == "as-is":
        turns = build.rendered_turns(source, Template.load(model), Tokenizer.load(model))
    else:
        turns = build.response_turns(source)
    rows, counts = build.collect(turns, settings, size, out / "ids.tmp")
    tokens = stage.write_data(out, rows, settings, Work(Progress(out / "progress.json")))
    stage.write_frequencies(out / "token_freq.pt", counts.supervised)
    stage.write_vocab(out, model, special.template_text(model), settings, counts, rows.names)
    print(json.dumps({"seconds": time.perf_counter() - start, "rows": len(rows), "tokens": tokens}))


if __name__ == "__main__":
    main()

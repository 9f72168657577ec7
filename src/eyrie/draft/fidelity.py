"""What fp8 states cost the draft: predicted acceptance on both forms of the same held-out samples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from eyrie.core import children
from eyrie.core.errors import EyrieError, GateError
from eyrie.core.pipeline import Context
from eyrie.hidden_states import manifest


def originals(ctx: Context) -> dict[int, Path]:
    """{row: bf16 copy} of the samples that the hidden_states stage kept in both forms; {} without fp8."""
    source = ctx.input("hidden_states")
    folder = source.base / "store" / "originals"
    if not folder.is_dir():
        return {}
    listed = manifest.read(source.out / manifest.NAME)
    pairs = ((int(line["row"]), folder / f"{line['key']}.safetensors") for line in listed if line["dtype"] == "fp8")
    return {row: path for row, path in pairs if path.exists()}


def check(ctx: Context, rows: dict[int, str], exact: dict[int, Path], threads: int) -> dict[str, Any]:
    """Compare both forms; raises GateError when fp8 costs more than `fidelity_acceptance`."""
    from datasets import load_from_disk

    data = load_from_disk(str(ctx.input("tokens").out / "data")).with_format(None)
    sets: dict[str, list[dict[str, Any]]] = {"bf16": [], "fp8": []}
    for row, path in sorted(exact.items()):
        sample = {"ids": list(data[row]["input_ids"]), "mask": [int(item) for item in data[row]["loss_mask"]]}
        sets["bf16"].append({**sample, "file": str(path)})
        sets["fp8"].append({**sample, "file": rows[row]})
    request = {
        "checkpoint": str(ctx.out / "checkpoint"),
        "verifier": str(ctx.input("target").out),
        "ttt_steps": ctx.settings.ttt_steps,
        "threads": threads,
        "sets": sets,
    }
    found = run(request)
    lost = found["bf16"]["predicted"] - found["fp8"]["predicted"]
    figures = {
        "samples": len(exact),
        "predicted_bf16": round(found["bf16"]["predicted"], 4),
        "predicted_fp8": round(found["fp8"]["predicted"], 4),
        "lost": round(lost, 4),
    }
    if lost > ctx.settings.fidelity_acceptance:
        raise GateError(
            f"fp8 states cost {lost:.3f} of predicted acceptance length ({figures['predicted_bf16']} in bf16, "
            f"{figures['predicted_fp8']} in fp8) on {len(exact)} held-out samples.",
            code="fp8-acceptance",
            todo="Use storage bf16 or window, or raise fidelity_acceptance knowingly.",
        )
    return figures


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Evaluate in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "eyrie.draft.evaluate"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
        env=children.environment(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false"),
    )
    if done.returncode != 0:
        raise EyrieError(
            "the evaluation of the draft failed.",
            why=done.stderr.strip()[-500:],
            code="evaluate-failed",
            todo="The draft is exported; run again to evaluate it.",
        )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer

"""The probe before the bulk: the captured layers are what they are said to be, through the real path.

1. Each probe sample is captured alone: full length, right layout, finite, layers distinct.
2. argmax(lm_head(norm(last state of the last token))) is the token that the server answers: the last slot is the last
   layer before the final norm, and the states belong to the tokens.
3. All of them again at once: the same states whatever the batch, and whatever was cached before.
4. For targets that fit: each slot is nearest, over all layers, to the declared layer of a transformers forward pass.

The measured rate is the basis of the forecast.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eyrie.core import children
from eyrie.core.errors import EyrieError, GateError
from eyrie.hidden_states import files
from eyrie.hidden_states.client import Captured, Endpoint, Gone, Invalid, Refused, remove
from eyrie.hidden_states.corpus import Corpus, Row
from eyrie.hidden_states.keys import Shape
from eyrie.hidden_states.settings import HiddenStatesSettings
from eyrie.hidden_states.weights import Checkpoint, dimensions, logits, to_float
from eyrie.serve import key

NEAR_TIE = 0.25  # bf16 logits of size 16..32 are this far apart
BATCH_TOLERANCE = 0.1  # relative error between two batch shapes; another layer is far above
REFERENCE_TOLERANCE = 0.1


@dataclass
class Proof:
    """What the probe found. agreement: share of samples whose argmax is exactly the served token."""

    samples: int = 0
    tokens: int = 0
    tok_s: float = 0.0
    agreement: float = 0.0
    batch_error: float = 0.0
    reference: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def choose(rows: Sequence[Row], count: int) -> list[Row]:
    """Rows spread over the lengths, each key once."""
    unique = sorted({row.key: row for row in rows}.values(), key=lambda row: (row.tokens, row.key))
    if len(unique) <= count:
        return unique
    return [unique[round(i * (len(unique) - 1) / max(1, count - 1))] for i in range(count)]


def run(
    url: str,
    model: str,
    checkpoint: Checkpoint,
    corpus: Corpus,
    rows: Sequence[Row],
    shape: Shape,
    settings: HiddenStatesSettings,
    scratch: Path,
) -> Proof:
    """Probe one server. Raises GateError naming what is wrong, EyrieError when it cannot be asked."""
    chosen = choose(rows, settings.probe_samples)
    return asyncio.run(_run(url, model, checkpoint, corpus, chosen, shape.with_dtype("bf16"), settings, scratch))


async def _run(
    url: str,
    model: str,
    checkpoint: Checkpoint,
    corpus: Corpus,
    rows: list[Row],
    shape: Shape,
    settings: HiddenStatesSettings,
    scratch: Path,
) -> Proof:
    import aiohttp

    proof = Proof(samples=len(rows), tokens=sum(row.tokens for row in rows))
    paths: list[Path] = []
    ids = [corpus.ids(row.row) for row in rows]
    async with aiohttp.ClientSession(headers=key.headers()) as session:
        endpoint = Endpoint(url, model, settings, session)
        await _check_model(endpoint, model)
        try:
            alone = [await _capture(endpoint, item, row, shape, paths) for item, row in zip(ids, rows, strict=True)]
            proof.agreement = _check_last(checkpoint, alone, rows, shape)
            started = time.monotonic()
            answers = await asyncio.gather(
                *(_capture(endpoint, item, row, shape, paths) for item, row in zip(ids, rows, strict=True)),
                return_exceptions=True,
            )
            together = [_or_raise(answer) for answer in answers]
            proof.tok_s = round(proof.tokens / max(time.monotonic() - started, 1e-9), 1)
            proof.batch_error = _check_batch(alone, together, rows)
            proof.reference = await asyncio.to_thread(_reference, checkpoint, alone, ids, shape, settings, scratch)
        finally:
            for path in paths:
                remove(path)
    return proof


def _or_raise(answer: Captured | BaseException) -> Captured:
    if isinstance(answer, BaseException):
        raise answer
    return answer


async def _check_model(endpoint: Endpoint, model: str) -> None:
    try:
        listed = [str(entry.get("id")) for entry in await endpoint.models()]
    except Gone as error:
        raise EyrieError(str(error), code="server-gone", todo="Bring the extract server up.") from None
    if model not in listed:
        raise GateError(
            f"the server at {endpoint.url} serves {listed}, not {model!r}.",
            code="endpoint-wrong-model",
            todo="Nothing was captured. Check server.endpoints and the served model name.",
        )


async def _capture(endpoint: Endpoint, ids: list[int], row: Row, shape: Shape, paths: list[Path]) -> Captured:
    try:
        captured = await endpoint.capture(ids)
        paths.append(captured.path)
        files.check_file(captured.path, shape, ids)
    except files.BadFile as error:
        raise GateError(
            f"the probe's states of row {row.row} are wrong ({error.code}): {error}",
            where=endpoint.url,
            code=f"probe-{error.code}",
            todo="Nothing was captured in bulk. Check the extract server's speculative config and layer ids.",
        ) from None
    except (Invalid, Refused) as error:
        raise GateError(
            f"the probe failed on row {row.row}: {error}", where=endpoint.url, code="probe-failed"
        ) from None
    except Gone as error:
        raise EyrieError(f"the probe lost the server: {error}", code="server-gone", todo="Run again.") from None
    return captured


def _states(path: Path) -> Any:
    """[seq, layers, hidden] in fp32."""
    tensor = files.read_header(path)["hidden_states"]
    return to_float(tensor.dtype, files.read_array(path, tensor))


def _check_last(checkpoint: Checkpoint, captured: list[Captured], rows: list[Row], shape: Shape) -> float:
    """argmax(lm_head(norm(last))) against the served greedy token."""
    import numpy as np

    norm, head = checkpoint.head()
    eps = dimensions(checkpoint.config()).rms_norm_eps
    last = np.stack([_states(item.path)[-1] for item in captured])  # [n, layers, hidden]
    served = np.array([item.token for item in captured])
    scores = logits(last[:, -1], norm, head, eps)
    top = scores.max(axis=-1)
    own = scores[np.arange(len(served)), served]
    wrong = [rows[i].row for i in np.nonzero(own < top - NEAR_TIE)[0]]
    if wrong:
        raise GateError(
            f"the last captured state does not predict the served token for {len(wrong)} of {len(rows)} probes "
            f"(rows {wrong[:5]}).{_which_slot(last, served, norm, head, eps, shape)}",
            code="probe-last-layer",
            todo="Nothing was captured in bulk. The layer ids of the extract server are not the declared ones.",
        )
    return round(float(np.mean(scores.argmax(axis=-1) == served)), 4)


def _which_slot(last: Any, served: Any, norm: Any, head: Any, eps: float, shape: Shape) -> str:
    """A hint: which other slot predicts the served tokens, if one does."""
    for slot, layer in enumerate(shape.layers[:-1]):
        if (logits(last[:, slot], norm, head, eps).argmax(axis=-1) == served).all():
            return f" Slot {slot} (declared as layer {layer}) does: the order is wrong."
    return ""


def _check_batch(alone: list[Captured], together: Sequence[Captured], rows: list[Row]) -> float:
    """Largest relative error between a sample captured alone and in a batch."""
    import numpy as np

    worst = 0.0
    for one, many, row in zip(alone, together, rows, strict=True):
        a, b = _states(one.path), _states(many.path)
        error = float(np.linalg.norm(a - b) / max(float(np.linalg.norm(a)), 1e-9))
        worst = max(worst, error)
        if error > BATCH_TOLERANCE:
            raise GateError(
                f"row {row.row} has other states in a batch than alone (relative error {error:.3f}).",
                code="probe-batch",
                todo="Nothing was captured in bulk. Switch prefix caching and chunked prefill off on the server.",
            )
    return round(worst, 5)


def _reference(
    checkpoint: Checkpoint,
    captured: list[Captured],
    ids: list[list[int]],
    shape: Shape,
    settings: HiddenStatesSettings,
    scratch: Path,
) -> list[dict[str, Any]]:
    """Compare with a transformers forward pass (in its own process, so that its memory goes again)."""
    weights = sum(path.stat().st_size for path in checkpoint.folder.glob("*.safetensors"))
    if weights > settings.reference_max_bytes:
        return []
    picked = sorted(range(len(ids)), key=lambda i: len(ids[i]))[:2]
    request = {
        "model": str(checkpoint.folder),
        "layers": list(shape.layers),
        "samples": [{"ids": ids[i], "file": str(captured[i].path)} for i in picked],
    }
    done = subprocess.run(
        [sys.executable, "-m", "eyrie.hidden_states.reference"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=600,
        cwd=scratch,
        env=children.environment(),
        check=False,
    )
    if done.returncode != 0:
        raise EyrieError(
            "the reference forward pass failed.",
            why=done.stderr.strip()[-400:],
            code="reference-failed",
            todo="Set reference_max_bytes to 0 to do without it.",
        )
    slots: list[dict[str, Any]] = json.loads(done.stdout)["slots"]
    wrong = [slot for slot in slots if slot["nearest"] != slot["declared"] or slot["error"] > REFERENCE_TOLERANCE]
    if wrong:
        told = "; ".join(
            f"declared {slot['declared']}, nearest {slot['nearest']} (relative error {slot['error']:.3f})"
            for slot in wrong
        )
        raise GateError(
            f"captured layers are not the declared ones: {told}.",
            code="probe-layer-identity",
            why="Ids shifted by one are the usual cause: id L is hidden_states[L], the input of layer L.",
            todo="Nothing was captured in bulk. Make the ids of the extract server, the training and the draft equal.",
        )
    return slots

"""Train/serve parity: predicted against served acceptance length, and what a gap usually means. Pure."""

from __future__ import annotations

from typing import Any

CAUSES = (
    "the server reads other auxiliary layers than were captured (compare the three lists of layer ids)",
    "the serving config ignores a norm of the draft (norm_before_fc, norm_output)",
    "the served prompts are of another kind than the training data",
    "the server drafts more tokens than the draft was unrolled for (num_speculative_tokens above ttt_steps)",
    "responses or states came from another model, template or precision than what serves",
)


def predicted_for(per_position: list[float], num_speculative_tokens: int) -> float:
    """Predicted acceptance length when the server drafts k tokens: 1 + the first k positions' full accuracy."""
    return 1.0 + sum(per_position[:num_speculative_tokens])


def check(
    predicted: float, served: float, bound: float, ttt_steps: int, num_speculative_tokens: int, untrained: float = 1.0
) -> dict[str, Any]:
    """{predicted, served, gap, bound, ok, code, causes}: a gap above the bound is a named failure.

    untrained: the control's served acceptance length; a trained draft no better than it is a failure of its own.
    """
    gap = predicted - served
    code = ""
    if served <= untrained + 0.02 and predicted > untrained + 0.1:
        code = "served-like-untrained"
    elif gap > bound:
        code = "parity-gap"
    causes = list(CAUSES) if code else []
    if num_speculative_tokens <= ttt_steps and code:
        causes.remove(CAUSES[3])
    return {
        "predicted": round(predicted, 4),
        "served": round(served, 4),
        "gap": round(gap, 4),
        "bound": bound,
        "ok": not code,
        "code": code,
        "causes": causes,
    }

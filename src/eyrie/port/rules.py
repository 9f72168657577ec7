"""Which differences between two hosts keep an output valid: data, first match wins, no match means it does not.

The reasoning, with its figures, is in docs/porting.md. In short: text and token ids are data, whoever sampled them
(one host asked twice at other batch shapes differs as much as two hosts do); hidden states are numbers of the
kernels that made them, so other kernels make them again; a checkpoint is tensors, as long as the trainer that goes on
reads its format; a measurement belongs to the machine that was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any


class Verdict(StrEnum):
    VALID = "valid"  # the output stays what it says it is
    ROUNDING = "rounding"  # the same computation in other kernels: equal up to rounding
    BREAKS = "breaks"  # another output was asked for


@dataclass(frozen=True)
class Rule:
    """stage and name are patterns; `unfinished` is the verdict for work that is to go on (default: the same)."""

    stage: str
    name: str
    verdict: Verdict
    why: str
    unfinished: Verdict | None = None
    holds: Callable[[Any, Any], bool] | None = None


def same_minor(source: Any, destination: Any) -> bool:
    """0.9.0 and 0.9.3 share a file format by their makers' custom; 0.9 and 0.10 may not."""
    parts = [str(version).partition("+")[0].split(".")[:2] for version in (source, destination)]
    return parts[0] == parts[1] and all(part and part[0].isdigit() for part in parts[0])


def grows(source: Any, destination: Any) -> bool:
    """The destination asks for more of the same."""
    return _number(source) and _number(destination) and destination >= source


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_DATA = "the files are data once written; the version that wrote them is kept in the record"
_LATE = "which sources came in at a later try says how the table came about: it is carried with their rows"
_SAMPLED = (
    "sampled tokens are the target's own on any engine: at another batch shape one engine differs as much from itself"
)
_QUANTISED = "the answers are the target's as the source served it: a little off the policy that is served next"
_KERNELS = (
    "states are numbers of the kernels that computed them, some 2% apart: the destination's own will feed the draft"
)
_FORMAT = "its files are read by the destination's own version: the same minor release reads them"
_TENSORS = "a checkpoint is tensors: the numerical library may differ"
_SHARES = "a draft does not tell how many processes trained it; unfinished training goes on with as many as began it"

RULES: tuple[Rule, ...] = (
    Rule("target", "tools.*", Verdict.VALID, "the model's files are compared by SHA-256, not by who wrote them"),
    Rule("dataset", "tools.*", Verdict.VALID, _DATA),
    Rule("dataset", "came_in", Verdict.VALID, _LATE),
    Rule("responses", "tools.*", Verdict.VALID, _SAMPLED),
    Rule("responses", "serving.args.quantization", Verdict.VALID, _QUANTISED),
    Rule("responses", "serving.args.*dtype", Verdict.VALID, _QUANTISED),
    Rule("responses", "serving*", Verdict.VALID, _SAMPLED),
    Rule("tokens", "tools.speculators", Verdict.VALID, _FORMAT, holds=same_minor),
    Rule("tokens", "tools.*", Verdict.VALID, _DATA),
    Rule("hidden_states", "tools.*", Verdict.ROUNDING, _KERNELS),
    Rule("hidden_states", "serving*", Verdict.ROUNDING, _KERNELS),
    Rule("draft", "tools.speculators", Verdict.VALID, _FORMAT, holds=same_minor),
    Rule("draft", "tools.*", Verdict.VALID, _TENSORS),
    Rule("draft", "settings.processes", Verdict.VALID, _SHARES, unfinished=Verdict.BREAKS),
    Rule("draft", "settings.fsdp_shard", Verdict.VALID, _SHARES, unfinished=Verdict.BREAKS),
    Rule("draft", "nodes", Verdict.VALID, _SHARES, unfinished=Verdict.BREAKS),
)

NO_RULE = "no rule says that it may differ"


@dataclass(frozen=True)
class Difference:
    """One difference between the source's identity and the destination's, judged."""

    name: str
    source: Any
    destination: Any
    verdict: Verdict
    why: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "source": self.source,
            "destination": self.destination,
            "verdict": self.verdict.value,
            "why": self.why,
        }


def judge(stage: str, name: str, source: Any, destination: Any, unfinished: bool = False) -> Difference:
    """The verdict on one difference."""
    for rule in RULES:
        if not (fnmatchcase(stage, rule.stage) and fnmatchcase(name, rule.name)):
            continue
        if rule.holds is not None and not rule.holds(source, destination):
            return Difference(name, source, destination, Verdict.BREAKS, f"not so here: {rule.why}")
        verdict = rule.unfinished if unfinished and rule.unfinished else rule.verdict
        return Difference(name, source, destination, verdict, rule.why)
    return Difference(name, source, destination, Verdict.BREAKS, NO_RULE)


def judge_all(stage: str, differences: list[dict[str, Any]], unfinished: bool = False) -> list[Difference]:
    """Verdicts on fingerprint.differences(source, destination)."""
    return [judge(stage, item["name"], item["current"], item["desired"], unfinished) for item in differences]

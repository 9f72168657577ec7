"""The plan of a port: per stage copy, make again or reuse, with bytes, minutes, the reason and every difference."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from eyrie.core import planner, registry
from eyrie.core.errors import SpecError
from eyrie.core.estimate import estimate
from eyrie.core.fingerprint import differences
from eyrie.core.pipeline import Context, Pipeline
from eyrie.core.spec import load
from eyrie.port import serving
from eyrie.port.decision import (
    BLOCKED,
    COPY,
    EXPENSIVE,
    HOST_BOUND,
    LEAVE,
    RECOMPUTE,
    REPRODUCIBLE,
    RESERVE,
    RESUMABLE,
    REUSE,
    Content,
    Decision,
    Link,
    Options,
)
from eyrie.port.land import handed_over, landing
from eyrie.port.rules import Difference, Verdict, judge_all
from eyrie.port.survey import DIGESTED, digest, free_bytes, hash_cache, items_of


class Planner:
    """Plans on the destination, from the source's survey."""

    def __init__(self, pipeline: Pipeline, source: dict[str, Any], link: Link, options: Options):
        self.pipeline, self.source, self.link, self.options = pipeline, source, link, options
        self.hash_bytes_s = hash_rate()
        self.made: dict[str, Decision] = {}

    def plan(self) -> dict[str, Any]:
        """{ok, from, to, decisions, gates, totals, link, lines}."""
        for name in registry.NAMES:
            self.made[name] = self._decide(self.pipeline.context(name), self.source["stages"].get(name) or {})
        self._leave_states()
        decisions = [self.made[name] for name in registry.NAMES]
        copied = [item for item in decisions if item.action == COPY]
        gates = self._gates(decisions)
        totals = {
            "bytes": sum(item.bytes for item in copied),
            "copy_seconds": round(sum(item.seconds for item in copied), 1),
            "recompute_seconds": round(sum(item.seconds for item in decisions if item.action == RECOMPUTE), 1),
        }
        return {
            "ok": all(gate["ok"] for gate in gates),
            "changes": bool(copied) or any(item.action == LEAVE for item in decisions),
            "from": {"host": self.source.get("host", ""), "run": self.source.get("run", "")},
            "to": {"host": self.pipeline.host, "run": self.pipeline.run},
            "decisions": [item.as_dict() for item in decisions],
            "gates": gates,
            "totals": totals,
            "link": {"mb_s": self.rate / 1e6, "basis": self.link.basis, "via": self.link.via, "why": self.link.why},
        }

    @property
    def rate(self) -> float:
        """Bytes per second that files travel with."""
        bound = self.options.bandwidth_mb_s
        return max(1e3, min(self.link.mb_s, bound or self.link.mb_s) * 1e6)

    def copy_seconds(self, size: int) -> float:
        """On the link, and hashed once on either side (hashing at the source overlaps nothing)."""
        return size / self.rate + 2 * size / self.hash_bytes_s

    def _decide(self, ctx: Context, source: dict[str, Any]) -> Decision:
        name, status = ctx.name, source.get("status", "absent")
        base = Decision(ctx.name, RECOMPUTE, "", source=source.get("fingerprint", ""), destination=ctx.fingerprint)
        if planner.is_up_to_date(ctx):
            base.action, base.reason = REUSE, "up to date on the destination"
            base.content = self._reused_content(ctx, source)
            return base
        if name in HOST_BOUND:
            return self._again(base, ctx, source, "a measurement belongs to the host that was measured")
        if source.get("running"):
            base.action, base.reason = BLOCKED, "it runs on the source: what is written now would be torn"
            return base
        unfinished = status in ("interrupted", "failed", "damaged")
        if status == "absent" or source.get("released") or not source.get("files"):
            return self._again(base, ctx, source, self._nothing(source), self._as_good(ctx, source))
        if unfinished and name not in RESUMABLE:
            return self._again(base, ctx, source, f"{status} on the source, and quicker begun again than carried")
        base.unfinished = unfinished
        found = differences(source.get("identity"), ctx.identity)
        found += differences({"serving": source.get("serving")}, {"serving": serving.of(self.pipeline, name)})
        base.differences = judge_all(name, found, unfinished)
        return self._judged(base, ctx, source)

    def _judged(self, base: Decision, ctx: Context, source: dict[str, Any]) -> Decision:
        name = ctx.name
        breaks = [item for item in base.differences if item.verdict is Verdict.BREAKS]
        if breaks:
            listed = "; ".join(f"{item.name} ({item.why})" for item in breaks[:3])
            return self._refuse(base, ctx, source, f"another output was asked for: {listed}")
        strange = [item for item in ctx.stage.inputs if self.made[item].content is Content.OTHER]
        if strange:
            return self._refuse(
                base, ctx, source, f"it was made from another {strange[0]} than the destination will have"
            )
        rounding = [item for item in base.differences if item.verdict is Verdict.ROUNDING]
        choice = self.options.stages.get(name)
        if name in REPRODUCIBLE:
            return self._cheaper(base, ctx, source, rounding, choice)
        if choice == RECOMPUTE:
            return self._again(base, ctx, source, "chosen by the operator")
        if base.unfinished and handed_over(ctx, source):
            base.action, base.reason, base.content = REUSE, "handed over before; it goes on there", Content.SAME
            return base
        if base.unfinished and self._own_work(ctx) and name not in self.options.replace:
            base.action = BLOCKED
            base.reason = (
                "the destination has unfinished work of its own; name it in eyrie_port_replace to put it aside"
            )
            return base
        what = "unfinished work that goes on there" if base.unfinished else "small or dear"
        return self._copied(base, source, f"{what}: {_cost(source)}", Content.SAME)

    def _cheaper(
        self, base: Decision, ctx: Context, source: dict[str, Any], rounding: list[Difference], choice: str | None
    ) -> Decision:
        content = Content.EQUIVALENT if ctx.name == "hidden_states" else Content.SAME
        carried, again = self.copy_seconds(int(source["bytes"])), self._forecast(ctx)
        fixed = [item for item in rounding if not item.name.startswith("serving.")]
        if fixed and choice == COPY:
            return self._refuse(base, ctx, source, fixed[0].why, content)
        if rounding and choice != COPY:
            return self._again(base, ctx, source, rounding[0].why, content)
        exact = ctx.name != "target" or base.source == base.destination  # else only the source's files are the same
        if exact and (choice == RECOMPUTE or (choice is None and again < carried)):
            why = "chosen by the operator" if choice else f"sooner made than carried ({_time(carried)} on the link)"
            return self._again(base, ctx, source, why, content)
        why = "chosen by the operator" if choice == COPY else f"sooner carried than made ({_time(again)})"
        if not exact:
            why = "all that was made with it needs these very files"
        return self._copied(base, source, why, Content.SAME)

    def _copied(self, base: Decision, source: dict[str, Any], reason: str, content: Content) -> Decision:
        base.action, base.reason, base.content = COPY, reason, content
        base.bytes, base.files = int(source["bytes"]), int(source["files"])
        base.seconds = self.copy_seconds(base.bytes)
        return base

    def _again(
        self, base: Decision, ctx: Context, source: dict[str, Any], reason: str, content: Content = Content.OTHER
    ) -> Decision:
        base.action, base.reason, base.content = RECOMPUTE, reason, content
        if ctx.name == "target" and source.get("fingerprint") == ctx.fingerprint:
            base.content = Content.SAME  # its files are proved by hash wherever they come from
        base.seconds = self._forecast(ctx)
        return base

    def _refuse(
        self, base: Decision, ctx: Context, source: dict[str, Any], reason: str, content: Content = Content.OTHER
    ) -> Decision:
        base.refused = True
        return self._again(base, ctx, source, f"not handed over: {reason}", content)

    def _nothing(self, source: dict[str, Any]) -> str:
        if source.get("other_settings"):
            return f"the source has it only for other settings ({source['other_settings']})"
        return "given up on the source" if source.get("released") else "the source has none"

    def _as_good(self, ctx: Context, source: dict[str, Any]) -> Content:
        """What the destination makes of a stage whose files the source gave up: as good as they were, or another."""
        if ctx.name not in REPRODUCIBLE or not source.get("record"):
            return Content.OTHER
        found = judge_all(ctx.name, differences(source.get("identity"), ctx.identity))
        inputs = [self.made[name].content for name in ctx.stage.inputs]
        fits = Content.OTHER not in inputs and not any(item.verdict is Verdict.BREAKS for item in found)
        return Content.EQUIVALENT if fits else Content.OTHER

    def _own_work(self, ctx: Context) -> bool:
        return not landing(ctx) and ctx.out.is_dir() and any(ctx.out.iterdir())

    def _reused_content(self, ctx: Context, source: dict[str, Any]) -> Content:
        """Does the destination have what the source has? Equal settings do not say so: sampling is not exact."""
        mark = ctx.record().get("imported_from") or {}
        if source.get("fingerprint") and mark.get("fingerprint") == source["fingerprint"]:
            return Content.SAME
        equal = source.get("fingerprint") == ctx.fingerprint
        if ctx.name == "target" and equal:
            return Content.SAME
        if ctx.name in DIGESTED and source.get("digest"):
            hashes = hash_cache(self.pipeline.root)
            same = digest(ctx, items_of(ctx), hashes) == source["digest"]
            hashes.save()
            return Content.SAME if same else Content.OTHER
        if ctx.name == "hidden_states" and equal and self.made["tokens"].content is Content.SAME:
            return Content.EQUIVALENT
        return Content.OTHER

    def _forecast(self, ctx: Context) -> float:
        """Seconds on the destination, from the source's counts where it has some."""
        record = (self.source["stages"].get("tokens") or {}).get("record") or {}
        samples = (record.get("account") or {}).get("kept")
        tokens = (record.get("figures") or {}).get("tokens")
        if ctx.name in ("hidden_states", "draft") and samples and tokens:
            return float(estimate(ctx.name, ctx.pipeline.raw, samples=int(samples), tokens=int(tokens))["seconds"])
        return float(ctx.stage.forecast(ctx)["seconds"])

    def _leave_states(self) -> None:
        """States whose draft is handed over complete are not needed any more: nothing is copied or made again."""
        states, draft = self.made["hidden_states"], self.made["draft"]
        complete = (draft.action == COPY and not draft.unfinished) or draft.action == REUSE
        there = (self.source["stages"].get("hidden_states") or {}).get("record")
        if states.action in (COPY, RECOMPUTE) and complete and there and "hidden_states" not in self.options.stages:
            states.action, states.bytes, states.files, states.seconds = LEAVE, 0, 0, 0.0
            states.refused = False
            states.reason = "the draft made from them is handed over; they are made when something needs them"

    def _gates(self, decisions: list[Decision]) -> list[dict[str, Any]]:
        size = sum(item.bytes for item in decisions if item.action == COPY)
        free = free_bytes(self.pipeline.root)
        fits = size <= free * (1 - RESERVE)
        gates = [
            {
                "name": "space",
                "ok": fits,
                "message": f"{size} bytes travel, {free} are free on the destination"
                + ("." if fits else ": free space, or leave hidden_states to be made again there."),
            }
        ]
        for item in decisions:
            if item.action == BLOCKED:
                gates.append(
                    {"name": f"{item.stage} can travel", "ok": False, "message": f"{item.stage}: {item.reason}."}
                )
            elif item.refused and item.stage in EXPENSIVE and item.stage not in self.options.accept:
                gates.append(
                    {
                        "name": f"{item.stage} is handed over",
                        "ok": False,
                        "message": f"{item.stage} is {item.reason}; making it again takes {_time(item.seconds)}. "
                        f"To accept that, name it in eyrie_port_accept.",
                    }
                )
        return gates


def make(pipeline: Pipeline, source: dict[str, Any], link: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The port's plan, from plain data. Raises SpecError for what is not a survey or not an option."""
    if not isinstance(source, dict) or not isinstance(source.get("stages"), dict):
        raise SpecError("the source's survey is missing.", where="port.source", code="survey-missing")
    return Planner(pipeline, source, load(Link, link, "port.link"), load(Options, options, "port")).plan()


def hash_rate(size: int = 8 << 20) -> float:
    """Bytes per second of SHA-256 on this machine, measured (some 10 ms)."""
    block = bytes(size)
    begin = time.perf_counter()
    hashlib.sha256(block).digest()
    return size / max(time.perf_counter() - begin, 1e-6)


def _cost(source: dict[str, Any]) -> str:
    record = source.get("record") or {}
    seconds = float(record.get("seconds") or 0) + float(record.get("seconds_before") or 0)
    return f"{_time(seconds)} of work on the source"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"

"""Match the catalogue against the evidence and rank what was found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from eyrie.core import registry, state
from eyrie.ops import host
from eyrie.ops.doctor import catalogue
from eyrie.ops.doctor.catalogue import Signature
from eyrie.ops.doctor.evidence import Document, host_document, log_document, log_documents, stage_documents
from eyrie.ops.shown import redact

#: a stage's own record says more than a log line, a log line more than a fact about the host
TRUST = {"state": 3.0, "play": 2.5, "log": 2.0, "host": 1.0}
QUOTE_CHARS = 300
LAST_LINES = 12


def examine(
    root: Path, run: str, stages: Sequence[str] = (), play_log: Path | None = None, with_host: bool = True
) -> dict[str, Any]:
    """Findings for the named stages (default: those that failed, were killed or run), best first.

    Returns {findings: [{id, title, stage, cause, cure, where, line}], looked_at: [...], last_lines: [...]}.
    """
    run_dir = root / "runs" / run
    names = list(stages) or troubled(run_dir)
    documents = [document for name in names for document in stage_documents(run_dir, name)]
    since = earliest_start(run_dir, names)
    known = {document.origin for document in documents}
    documents += [item for item in log_documents(root, run_dir, since) if item.origin not in known]
    if play_log is not None:
        documents += filter(None, [log_document(play_log, "", "play")])
    if with_host:
        documents.append(host_document(host.snapshot(root)))
    found = diagnose(documents)
    return {
        "findings": found,
        "looked_at": [document.origin for document in documents],
        "last_lines": [] if found else last_lines(documents),
    }


def troubled(run_dir: Path) -> list[str]:
    """Stages whose latest record is not `done`; all that have a record when every one is."""
    records = {name: state.StateDir(run_dir / "state" / name) for name in registry.NAMES}
    known = [name for name, folder in records.items() if folder.latest()]
    return [name for name in known if records[name].latest().get("status") != state.DONE] or known


def earliest_start(run_dir: Path, names: Iterable[str]) -> float:
    """When the first of the stages' last attempts began: older log files are of no interest."""
    starts = [state.StateDir(run_dir / "state" / name).latest().get("started") for name in names]
    return min((float(start) for start in starts if start), default=0.0)


def diagnose(documents: Iterable[Document], signatures: Iterable[Signature] | None = None) -> list[dict[str, Any]]:
    """Ranked findings, one per (signature, stage). Pure."""
    best: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}
    known = tuple(catalogue.load() if signatures is None else signatures)
    for document in documents:
        lines = document.lines()
        text = "\n".join(lines)
        for signature in known:
            hit = match(signature, document, lines, text)
            if hit is None:
                continue
            score, line_number = hit
            key = (signature.id, document.stage)
            if key not in best or best[key][0] < score:
                best[key] = (score, _finding(signature, document, lines, line_number))
    ranked = sorted(best.values(), key=lambda item: -item[0])
    return [finding for _, finding in ranked]


def match(signature: Signature, document: Document, lines: list[str], text: str) -> tuple[float, int | None] | None:
    """(score, index of the last matching line) or None; `text` is the lines joined, to pass over it quickly."""
    if document.source not in signature.sources:
        return None
    if signature.stages and document.stage not in signature.stages and document.stage:
        return None
    if signature.facts and not all(fact.holds(document.facts) for fact in signature.facts):
        return None
    if not all(needed.search(text) for needed in signature.needed):
        return None
    trust = TRUST[document.source] * signature.weight
    if not signature.compiled:
        return trust, None
    present = [pattern for pattern in signature.compiled if pattern.search(text)]
    for number in range(len(lines) - 1, -1, -1) if present else ():
        if any(pattern.search(lines[number]) for pattern in present):
            return trust + 0.5 * (number + 1) / len(lines), number
    return None


def _finding(signature: Signature, document: Document, lines: list[str], number: int | None) -> dict[str, Any]:
    where = document.origin if number is None or not document.whole else f"{document.origin}:{number + 1}"
    if number is None:
        quoted = ", ".join(f"{fact.fact} = {document.facts.get(fact.fact)}" for fact in signature.facts)
    else:
        quoted = lines[number].strip()
    return {
        "id": signature.id,
        "title": signature.title,
        "stage": document.stage,
        "cause": signature.cause.strip(),
        "cure": signature.cure.strip(),
        "where": where,
        "line": redact(quoted)[:QUOTE_CHARS],
    }


def last_lines(documents: Iterable[Document]) -> list[str]:
    """The end of the newest log, redacted, for when nothing known was found."""
    for document in documents:
        if document.source == "log" and document.text.strip():
            lines = [line for line in document.lines() if line.strip()]
            return [redact(line)[:QUOTE_CHARS] for line in lines[-LAST_LINES:]]
    return []


def as_text(answer: dict[str, Any], limit: int = 5) -> str:
    """For people: cause and cure of each finding."""
    parts = []
    for finding in answer["findings"][:limit]:
        stage = f" [{finding['stage']}]" if finding["stage"] else ""
        parts.append(
            f"{finding['title']}{stage}\n  cause: {finding['cause']}\n  cure:  {finding['cure']}\n"
            f"  seen:  {finding['where']}\n         {finding['line']}"
        )
    if parts:
        return "\n\n".join(parts)
    if answer["last_lines"]:
        return "No known failure was recognised. The newest log ends:\n  " + "\n  ".join(answer["last_lines"])
    return "Nothing wrong was found."

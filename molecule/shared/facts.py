"""What a run's folder says of its trained drafts and of how each stage came to be; one JSON object.

usage: facts.py RUN_FOLDER
"""

import hashlib
import json
import statistics
import sys
from pathlib import Path

run = Path(sys.argv[1])
STAGES = ("target", "dataset", "responses", "tokens", "hidden_states", "draft")
VALIDATED = ("epochs", "chosen_epoch", "per_position", "predicted_acceptance", "loss_curve")


def latest(stage):
    return json.loads((run / "state" / stage / "latest.json").read_text())


def ran(stage):
    """Whether the stage was ever started here: a stage that is only handed over never says 'running'."""
    lines = (run / "state" / stage / "history.jsonl").read_text().splitlines()
    return any(json.loads(line)["status"] == "running" for line in lines)


def trained(record):
    """A finished draft: what it became, and how long its steps took. Where a host only trained along: on whose word."""
    figures = record["figures"]
    shown = {key: figures.get(key) for key in ("resumed_from", "draft_is_on")}
    if figures.get("draft_is_on"):
        return shown
    out = run / "draft" / record["fingerprint"][:12]
    metrics = json.loads((out / "metrics.json").read_text())
    lines = map(json.loads, (out / "train/metrics.jsonl").read_text().splitlines())
    steps = {line["global_step"]: line["profile"]["step_ms"] for line in lines if line.get("profile")}
    return {
        **shown,
        "trained": {key: metrics[key] for key in VALIDATED},
        "weights": hashlib.sha256((out / "checkpoint/model.safetensors").read_bytes()).hexdigest(),
        "steps": metrics["steps"],
        "step_ms": round(statistics.median(steps.values())),
        "training_s": round(sum(steps.values()) / 1000, 1),
    }


def shape(record):
    """Hosts x processes of each."""
    return f"{record['identity'].get('nodes', 1)}x{record['identity']['settings']['processes']}"


records = {stage: latest(stage) for stage in STAGES}
drafts = [json.loads(path.read_text()) for path in (run / "state/draft").glob("?" * 12 + ".json")]
sources = [(records[stage].get("imported_from") or {}).get("host") for stage in STAGES]
print(
    json.dumps(
        {
            "drafts": {shape(record): trained(record) for record in drafts if record["status"] == "done"},
            "ran": [stage for stage in STAGES if ran(stage)],
            "imported": [stage for stage, host in zip(STAGES, sources, strict=True) if host and not ran(stage)],
            "imported_from": sorted({host for host in sources if host}),
        }
    )
)

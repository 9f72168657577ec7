"""What a run's folder says of its training and of how each stage came to be; one JSON object.

usage: facts.py RUN_FOLDER
"""

import hashlib
import json
import sys
from pathlib import Path

run = Path(sys.argv[1])
STAGES = ("target", "dataset", "responses", "tokens", "hidden_states", "draft")


def latest(stage):
    return json.loads((run / "state" / stage / "latest.json").read_text())


def ran(stage):
    """Whether the stage was ever started here: a stage that is only handed over never says 'running'."""
    lines = (run / "state" / stage / "history.jsonl").read_text().splitlines()
    return any(json.loads(line)["status"] == "running" for line in lines)


out = run / "draft" / latest("draft")["fingerprint"][:12]
metrics = json.loads((out / "metrics.json").read_text())
validated = ("epochs", "chosen_epoch", "per_position", "predicted_acceptance", "loss_curve")
records = {stage: latest(stage) for stage in STAGES}
sources = [(records[stage].get("imported_from") or {}).get("host") for stage in STAGES]
print(
    json.dumps(
        {
            "trained": {key: metrics[key] for key in validated},
            "weights": hashlib.sha256((out / "checkpoint/model.safetensors").read_bytes()).hexdigest(),
            "steps": metrics["steps"],
            "resumed_from": records["draft"]["figures"]["resumed_from"],
            "ran": [stage for stage in STAGES if ran(stage)],
            "imported": [stage for stage, host in zip(STAGES, sources, strict=True) if host and not ran(stage)],
            "imported_from": sorted({host for host in sources if host}),
        }
    )
)

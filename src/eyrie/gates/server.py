"""Gates of a server profile, before the running server is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyrie.core.errors import GateError
from eyrie.core.pipeline import Pipeline


def report(pipeline: Pipeline, document: dict[str, Any]) -> list[dict[str, Any]]:
    """[{name, ok, message}] for a launch document."""
    found = [_model_there(document)]
    return found


def check(pipeline: Pipeline, document: dict[str, Any]) -> None:
    """Raise GateError naming each gate that refuses."""
    refused = [gate for gate in report(pipeline, document) if not gate["ok"]]
    if refused:
        raise GateError(
            f"{document['profile']} is refused before it starts: "
            + " ".join(f"[{gate['name']}] {gate['message']}" for gate in refused),
            code="gate-refused",
            todo="The server that runs was not touched.",
        )


def _model_there(document: dict[str, Any]) -> dict[str, Any]:
    there = (Path(document["model"]) / "config.json").is_file()
    message = f"the target is in {document['model']}." if there else f"{document['model']} holds no model."
    return {"name": "target present", "ok": there, "message": message}

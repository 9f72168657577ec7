"""One run's pipeline: the full spec, and per stage its settings, folders and Merkle fingerprint.

A stage's fingerprint covers its identity and its inputs' fingerprints, all computed from the spec: the plan of
the last stage is right even when the first has yet to run. Outputs live in a folder named by fingerprint, so two
settings never mix and going back to earlier settings finds their outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from eyrie.core import registry, spec
from eyrie.core.errors import SpecError
from eyrie.core.fingerprint import HashCache, fingerprint
from eyrie.core.stage import Stage
from eyrie.core.state import StateDir
from eyrie.core.target import Target

SCHEMA = 1
KEYS = {"schema", "root", "run", "host", "target", "server", "stages", "execution", "planning"}


class Pipeline:
    """The typed view of a run's spec (plain JSON, see docs/architecture.md)."""

    def __init__(self, raw: dict[str, Any]):
        if not isinstance(raw, dict):
            raise SpecError(f"the spec must be a mapping, got {type(raw).__name__}.", code="spec-type")
        for key in raw:
            if key not in KEYS:
                raise SpecError(f"unknown key {key!r}.{spec.nearest(str(key), KEYS)}", where="spec")
        for key in ("root", "run", "target", "stages"):
            if not raw.get(key):
                raise SpecError(f"key {key!r} is missing or empty.", where="spec", code="spec-missing")
        for name in raw["stages"]:
            if name not in registry.NAMES:
                raise SpecError(f"there is no stage {name!r}.{spec.nearest(name, registry.NAMES)}", where="spec.stages")
        try:
            spec.plain(str(raw["run"]), "run")
        except ValueError as error:
            raise SpecError(str(error), where="spec", code="spec-value") from None
        for name in (raw.get("execution") or {}).get("environment") or {}:
            if spec.SECRET_NAME.search(str(name)):
                raise SpecError(
                    f"{name} must not stand in the spec, which is written to disk.",
                    where="spec.execution.environment",
                    code="spec-secret",
                    todo="Put it into a file that its program reads, mode 0600.",
                )
        self.raw = raw
        self.root = Path(raw["root"])
        self.run = str(raw["run"])
        self.host = str(raw.get("host") or "")
        self.execution: dict[str, Any] = dict(raw.get("execution") or {})
        self.server: dict[str, Any] = dict(raw.get("server") or {})
        self.target = spec.load(Target, raw["target"], "target")
        self._contexts: dict[str, Context] = {}

    @property
    def run_dir(self) -> Path:
        return self.root / "runs" / self.run

    @cached_property
    def hashes(self) -> HashCache:
        return HashCache(self.root / "state" / "hashes.json")

    def context(self, name: str) -> Context:
        if name not in self._contexts:
            stage = registry.get(name)
            data = self.raw["stages"].get(name) or {}
            settings = spec.load(stage.settings_type, data, name)
            self._contexts[name] = Context(self, stage, settings)
        return self._contexts[name]


@dataclass
class Context:
    """One stage of one run."""

    pipeline: Pipeline
    stage: Stage
    settings: Any

    @property
    def name(self) -> str:
        return self.stage.name

    @property
    def target(self) -> Target:
        return self.pipeline.target

    @cached_property
    def identity(self) -> dict[str, Any]:
        return self.stage.identity(self)

    @cached_property
    def inputs(self) -> dict[str, str]:
        """Fingerprints of the input stages."""
        return {name: self.pipeline.context(name).fingerprint for name in self.stage.inputs}

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint({"schema": SCHEMA, "stage": self.name, "identity": self.identity, "inputs": self.inputs})

    @property
    def state(self) -> StateDir:
        return StateDir(self.pipeline.run_dir / "state" / self.name)

    @property
    def base(self) -> Path:
        """runs/<run>/<stage>: what the stage keeps across fingerprints (content-keyed stores)."""
        return self.pipeline.run_dir / self.name

    @property
    def out(self) -> Path:
        """runs/<run>/<stage>/<fingerprint12>: the outputs of exactly these settings."""
        return self.stage.folder(self)

    def input(self, name: str) -> Context:
        """The context of an input stage (its `out` is where its outputs are)."""
        return self.pipeline.context(name)

    def record(self) -> dict[str, Any]:
        """This fingerprint's state record, {} before the first run."""
        return self.state.read(self.fingerprint)

"""Stage `target`: a Hugging Face checkpoint folder below <root>/models, with a manifest of checksums."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyrie.core import spec
from eyrie.core.accounting import Account
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import short, tool_versions
from eyrie.core.pipeline import Context
from eyrie.core.spec import setting
from eyrie.core.stage import Fault, Outcome, Stage, Work
from eyrie.target import checkpoint, package


@dataclass
class TargetSettings:
    """How the model's files are fetched; none of it can change them."""

    workers: int = setting(8, identity=False, doc="parallel downloads")
    token_file: str = setting("", identity=False, doc="file on the node that holds a hub token")
    endpoint: str = setting("", identity=False, doc="address of the hub, for mirrors")

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers must be 1 or more, got {self.workers}.")


class TargetStage(Stage):
    """Brings the model that the inventory declares; the folder is shared by all runs below a root."""

    name = "target"
    settings_type = TargetSettings

    def identity(self, ctx: Context) -> dict[str, Any]:
        source = ctx.target.source
        value: dict[str, Any] = {"name": ctx.target.name, "source": spec.identity(source)}
        if source.kind == "package":
            value["dtype"] = ctx.target.dtype
            value["tools"] = tool_versions((source.package, *package.TOOLS))
        elif source.kind == "path":
            value["files"] = checkpoint.survey(Path(source.path), ctx.pipeline.hashes.sha256)
        return value

    def folder(self, ctx: Context) -> Path:
        return ctx.pipeline.root / "models" / f"{ctx.target.name}-{short(ctx.fingerprint)}"

    def gates(self, ctx: Context) -> list[dict[str, Any]]:
        source = ctx.target.source
        if source.kind == "package":
            problem = package.missing(source)
            return [{"name": "model-package", "ok": not problem, "message": problem}]
        if source.kind == "path":
            there = (Path(source.path) / "config.json").is_file()
            message = (
                ""
                if there
                else f"{source.path} holds no config.json: set eyrie_target_source_path to a checkpoint folder."
            )
            return [{"name": "model-path", "ok": there, "message": message}]
        return []

    def run(self, ctx: Context, work: Work) -> Outcome:
        out = ctx.out
        if not checkpoint.faults(out):  # another run below this root has brought it
            work.progress.start("check", total=1, unit="models")
        else:
            self._bring(ctx, work)
        manifest = checkpoint.read_manifest(out)
        account = Account()
        account.keep(len(manifest["files"]))
        size = sum(entry["bytes"] for entry in manifest["files"].values())
        figures = {"model": ctx.target.name, "source": spec.identity(ctx.target.source), "config": manifest["config"]}
        return Outcome(account, outputs=sorted([*manifest["files"], checkpoint.MANIFEST]), figures=figures, bytes=size)

    def _bring(self, ctx: Context, work: Work) -> None:
        """Make the folder beside its place, check it, then put it there in one step."""
        source = ctx.target.source
        part = ctx.out.parent / f".{ctx.out.name}.part"
        if source.kind == "hub":
            from eyrie.target import hub

            hub.download(source, part, ctx.settings, work)  # goes on where an interrupted one ended
        else:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            if source.kind == "package":
                package.convert(source, ctx.target.dtype, part, work)
            else:
                checkpoint.link_tree(Path(source.path), part)
        config = checkpoint.check(part, ctx.target)
        work.progress.start("checksums", total=1, unit="models")
        checkpoint.write_manifest(part, config, links=source.kind == "path")
        self._place(part, ctx.out)

    @staticmethod
    def _place(part: Path, out: Path) -> None:
        from eyrie.core.atomic import fsync_dir

        if out.exists() and any(out.iterdir()):  # damaged or incomplete: it failed its checksums above
            old = out.parent / f".{out.name}.old"
            shutil.rmtree(old, ignore_errors=True)
            os.replace(out, old)
            shutil.rmtree(old)
        try:
            os.replace(part, out)
        except OSError as error:
            raise EyrieError(
                f"The finished model could not be put in its place: {error}", where=str(out), code="target-place"
            ) from None
        fsync_dir(out.parent)

    def verify(self, ctx: Context) -> list[Fault]:
        """Every file's size and SHA-256 against the manifest."""
        todo = "Remove the folder and run again: the stage brings it anew."
        return [Fault(str(ctx.out / name), what, todo, "target-damaged") for name, what in checkpoint.faults(ctx.out)]


STAGE = TargetStage()

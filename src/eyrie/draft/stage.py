"""The draft stage: view, train, choose, export, check."""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

from eyrie.core import atomic, estimate
from eyrie.core.accounting import Account
from eyrie.core.errors import EyrieError, GateError
from eyrie.core.pipeline import Context
from eyrie.core.stage import Fault, Outcome, Stage, Work, tree_bytes
from eyrie.draft import checkpoints, export, feeding, fidelity, group, hardware, results, view
from eyrie.draft.settings import DraftSettings
from eyrie.draft.training import Training
from eyrie.draft.watch import Epoch, Watch
from eyrie.hidden_states import manifest
from eyrie.hidden_states.store import Store

log = logging.getLogger(__name__)


class DraftStage(Stage):
    """Trains the draft from captured states."""

    name = "draft"
    inputs = ("target", "tokens", "hidden_states")
    settings_type = DraftSettings
    tools = ("speculators", "torch", "transformers")

    def identity(self, ctx: Context) -> dict[str, Any]:
        """How many hosts train decides the batch; which they are does not."""
        nodes = len(ctx.settings.hosts)
        return {**super().identity(ctx), **({"nodes": nodes} if nodes > 1 else {})}

    def forecast(self, ctx: Context) -> dict[str, Any]:
        """From the prepared rows as soon as they are counted."""
        record = ctx.input("tokens").record()
        samples = (record.get("account") or {}).get("kept")
        tokens = (record.get("figures") or {}).get("tokens")
        return dict(estimate.estimate(self.name, ctx.pipeline.raw, samples=samples, tokens=tokens))

    def run(self, ctx: Context, work: Work) -> Outcome:
        started = time.monotonic()
        settings: DraftSettings = ctx.settings
        train_dir = ctx.out / "train"
        train_dir.mkdir(parents=True, exist_ok=True)
        windowed = ctx.input("hidden_states").settings.storage == "window"
        prepare_the_host(ctx, work, windowed)
        rows = states_of(ctx, windowed)
        exact = {} if windowed else fidelity.originals(ctx)
        built = view.build(
            ctx.input("tokens").out,
            rows,
            ctx.out / "view",
            settings.val_ratio,
            settings.seed,
            settings.total_seq_len,
            frozenset(exact),
        )
        choice = hardware_of(ctx)
        watch = Watch(train_dir / "metrics.jsonl", settings)
        watch.read()
        figures: dict[str, Any] = {"hardware": vars(choice), "view": view_figures(built)}
        if finished(watch, train_dir, settings) is None:
            figures.update(Training(ctx, work, built, choice, watch, windowed).run())
        if group.follows(settings, ctx.pipeline.host):
            return _helped(ctx, built, figures)
        chosen = finished(watch, train_dir, settings)
        if chosen is None:
            raise EyrieError(
                "the trainer ended without validating its last epoch.",
                where=str(train_dir / "log"),
                code="training-incomplete",
                todo="Run again: it resumes from the last whole checkpoint.",
            )
        figures.update(self._export(ctx, watch, train_dir, chosen))
        if exact:
            work.progress.start("compare fp8 with bf16")
            figures["fidelity"] = fidelity.check(ctx, rows, exact, int(ctx.pipeline.execution.get("threads") or 0))
        figures["seconds"] = round(time.monotonic() - started, 1)
        account = Account()
        account.keep(built.train + built.val)
        checkpoints.prune(train_dir / "checkpoints", 1, {chosen.global_step})
        shutil.rmtree(train_dir / "resume", ignore_errors=True)
        outputs = [
            "checkpoint",
            "untrained",
            "metrics.json",
            "checkpoint/config.json",
            *_weights(ctx.out / "checkpoint"),
        ]
        return Outcome(account, outputs, figures, tree_bytes(ctx.out / "checkpoint"))

    def verify(self, ctx: Context) -> list[Fault]:
        faults = super().verify(ctx)
        if not faults:
            try:
                check_export(ctx, ctx.out / "checkpoint")
            except EyrieError as error:
                faults.append(Fault(error.where, error.what, error.todo, error.code))
        return faults

    def carry(self, ctx: Context) -> list[Path]:
        """The exported draft, its control, its metrics, and what training goes on from."""
        names = ("checkpoint", "untrained", "metrics.json", "train/metrics.jsonl")
        every = ctx.pipeline.execution.get("port_checkpoints") == "all"
        return [
            *(ctx.out / name for name in names if (ctx.out / name).exists()),
            *(item.path for item in needed_checkpoints(ctx.out / "train", ctx.settings, every)),
        ]

    def adopt(self, ctx: Context) -> None:
        for name in ("checkpoint", "untrained"):
            if (ctx.out / name / "config.json").exists():
                export.point_at(ctx.out / name, ctx.input("target").out)

    # -- parts of run --------------------------------------------------------------------------------------

    def _export(self, ctx: Context, watch: Watch, train_dir: Path, chosen: Epoch) -> dict[str, Any]:
        settings: DraftSettings = ctx.settings
        source = next(
            item for item in checkpoints.find(train_dir / "checkpoints") if item.global_step == chosen.global_step
        )
        target = ctx.input("target").out
        export.export(source.path, ctx.out / "checkpoint", target)
        export.export(train_dir / "untrained", ctx.out / "untrained", target)
        checked = check_export(ctx, ctx.out / "checkpoint")
        check_export(ctx, ctx.out / "untrained")
        figures = results.metrics(watch.curve, chosen, settings.ttt_steps)
        atomic.write_json(ctx.out / "metrics.json", figures)
        if chosen.predicted < settings.min_predicted:
            raise GateError(
                f"predicted acceptance {chosen.predicted:.2f} is below min_predicted {settings.min_predicted:.2f}.",
                code="predicted-low",
                todo="Train longer or on more prompts; see docs/training.md, 'Too little acceptance'.",
            )
        shown = {
            key: figures[key]
            for key in ("predicted_acceptance", "per_position", "chosen_epoch", "steps", "tokens_per_s")
        }
        return {**shown, "input_wait_share": figures["input_wait_share"], "draft": checked}


def states_of(ctx: Context, windowed: bool) -> dict[int, str]:
    """{row: absolute path of its states, there or to come}; refuses states of other layers than the target's."""
    source = ctx.input("hidden_states")
    wanted = ",".join(map(str, ctx.target.captured_layers))
    rows: dict[int, str] = {}
    for line in manifest.read(source.out / manifest.NAME):
        if line["layers"] != wanted:
            raise GateError(
                export.layers_differ(
                    capture=[int(item) for item in line["layers"].split(",")][:-1],
                    training=list(ctx.target.aux_layers),
                    serving=list(ctx.target.aux_layers),
                ),
                code="layers-differ",
                todo="Run hidden_states again.",
            )
        if windowed:
            rows[int(line["row"])] = str(Store(feeding.store_path(ctx)).file(line["key"]))
            continue
        link = source.out / manifest.LINKS / f"hs_{line['row']}.safetensors"
        rows[int(line["row"])] = os.path.realpath(link)
    return rows


def hardware_of(ctx: Context) -> hardware.Choice:
    """Attention and loss implementation: as set, else by what this host can run."""
    settings: DraftSettings = ctx.settings
    config = atomic.read_json(ctx.input("target").out / "config.json", {}) or {}
    head = hardware.head_dim_of(config.get("text_config") or config)
    choice = hardware.choose(hardware.capability(), head, settings.total_seq_len)
    attention = choice.attention if settings.draft_attn_impl == "auto" else settings.draft_attn_impl
    loss = choice.loss if settings.loss_implementation == "auto" else settings.loss_implementation
    if (attention, loss) != (choice.attention, choice.loss):
        why = f"{choice.why}; overridden by the inventory"
        choice = dataclasses.replace(choice, attention=attention, loss=loss, why=why)
    if choice.warning:
        log.warning("%s", choice.why)
    return choice


def check_export(ctx: Context, folder: Path) -> dict[str, Any]:
    target = ctx.target
    return export.check(folder, list(target.aux_layers), target.hidden_size, target.vocab_size, target.max_model_len)


def finished(watch: Watch, train_dir: Path, settings: DraftSettings) -> Epoch | None:
    """The epoch to export once all epochs are trained and validated and its checkpoint is whole, else None."""
    curve = watch.curve
    if settings.epochs - 1 not in curve.epochs:
        return None
    chosen = curve.best if settings.select == "best" else curve.epochs[settings.epochs - 1]
    assert chosen is not None
    steps = {item.global_step for item in checkpoints.find(train_dir / "checkpoints")}
    return chosen if chosen.global_step in steps else None


def needed_checkpoints(train_dir: Path, settings: DraftSettings, every: bool = False) -> list[checkpoints.Checkpoint]:
    """The whole checkpoints that training goes on from: the newest, and the best epoch's, which may be the one that is
    exported in the end. every: all whole ones.
    """
    whole = checkpoints.find(train_dir / "checkpoints")
    if every:
        return whole
    watch = Watch(train_dir / "metrics.jsonl", settings)
    try:
        watch.read()
    except EyrieError:  # a run that went wrong tells so when it is resumed, not when it is carried
        return whole
    best = watch.curve.best
    steps = {best.global_step} if best and settings.select == "best" else set()
    return [item for item in whole if item is whole[-1] or item.global_step in steps]


def view_figures(built: view.View) -> dict[str, Any]:
    return {
        "train_rows": built.train,
        "val_rows": built.val,
        "train_tokens": built.train_tokens,
        "val_tokens": built.val_tokens,
        "truncated_rows": built.truncated,
        "unsupervised_rows": built.unsupervised,
    }


def prepare_the_host(ctx: Context, work: Work, windowed: bool) -> None:
    """Training wants the memory that a server holds; in window mode it wants the extract server beside it."""
    from eyrie.serve import switch

    if windowed:
        switch.ensure(ctx.pipeline, "extract", progress=work.progress)
    else:
        switch.stop(ctx.pipeline, progress=work.progress)


def _helped(ctx: Context, built: view.View, figures: dict[str, Any]) -> Outcome:
    """The outcome on a host that trained along: the draft is on the first host of the list."""
    first = ctx.settings.hosts[0]
    atomic.write_json(ctx.out / "helped.json", {"draft_is_on": first})
    account = Account()
    account.keep(built.train + built.val)
    return Outcome(account, ["helped.json"], {**figures, "draft_is_on": first}, 0)


def _weights(folder: Path) -> list[str]:
    return [f"{folder.name}/{path.name}" for path in sorted(folder.glob("*.safetensors"))]


STAGE = DraftStage()

"""Window mode from the trainer's side: the order of its visits, and the feeder that runs beside it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eyrie.core.pipeline import Context
from eyrie.core.stage import Work
from eyrie.draft.settings import DraftSettings
from eyrie.draft.view import View
from eyrie.draft.watch import Curve
from eyrie.hidden_states import plan, probe, window
from eyrie.hidden_states.capture import Capture, Result
from eyrie.hidden_states.corpus import Corpus, Row
from eyrie.hidden_states.disk import DiskGuard
from eyrie.hidden_states.keys import Shape
from eyrie.hidden_states.store import Store

log = logging.getLogger(__name__)


def visits(rows: Sequence[Row], train: int, settings: DraftSettings) -> list[window.Visit]:
    """The trainer's visits over all epochs, from its own sampler: the same packing for the same seed.

    rows: all rows of the view in order, the first `train` of them are the training side.
    """
    replicas = settings.processes * max(1, len(settings.hosts))
    lengths = [row.tokens for row in rows]
    out: list[window.Visit] = []
    step = 0
    for epoch in range(settings.epochs):
        for batch in _batches(lengths[:train], settings.total_seq_len, replicas, epoch, settings.seed):
            out.append(window.Visit(epoch, step, tuple(rows[index] for index in batch)))
            step += 1
        for batch in _batches(lengths[train:], settings.total_seq_len, replicas, epoch, 0):
            out.append(window.Visit(epoch, -1, tuple(rows[train + index] for index in batch)))
    return out


def _batches(lengths: list[int], seq_len: int, replicas: int, epoch: int, seed: int) -> list[list[int]]:
    """Per step, the indices that all processes read together."""
    from speculators.train.distributed_batch_sampler import MultipackDistributedBatchSamplerV2

    per_rank = []
    for rank in range(replicas):
        sampler = MultipackDistributedBatchSamplerV2(
            batch_max_length=seq_len, lengths=lengths, num_replicas=replicas, rank=rank, seed=seed
        )
        per_rank.append(sampler._generate_batches(epoch))
    return [[int(index) for batch in together for index in batch] for together in zip(*per_rank, strict=True)]


class Feeding:
    """The feeder of one training attempt, from the server's probe to the last deletion."""

    def __init__(self, ctx: Context, work: Work, built: View, reads: Path, global_step: int):
        self.reads = reads
        source = ctx.input("hidden_states")
        shape = plan.shape_of(source)
        corpus = Corpus(built.data)
        rows = list(corpus.rows(shape))
        self.store = Store(store_path(ctx))
        schedule = window.Schedule(visits(rows, built.train, ctx.settings))
        self._side = window.quiet_work(ctx.out / "train" / "window.json")
        todo = plan.Todo(source.fingerprint, corpus, shape, rows, rows)
        self.feeder = window.Feeder(
            self.store,
            shape,
            schedule,
            int(source.settings.window_bytes),
            self._capturer(source, corpus, shape, work),
            first_visit(schedule, global_step),
        )
        self._offsets: dict[Path, int] = {}
        # a probe sample is on disk twice at a time: alone, and in the batch
        probed = probe.choose(rows, source.settings.probe_samples)
        self.feeder.make_room(2 * sum(self.feeder.size(row) for row in probed))
        self.proof = plan.prove(source, todo, work)
        shutil.rmtree(reads, ignore_errors=True)

    def _capturer(self, source: Context, corpus: Corpus, shape: Shape, work: Work) -> Callable[[Sequence[Row]], Result]:
        def capture(rows: Sequence[Row]) -> Result:
            return Capture(
                store=self.store,
                shape=shape,
                corpus=corpus,
                settings=source.settings,
                endpoints=plan.endpoints(source),
                model=source.target.name,
                work=self._side,
                guard=DiskGuard(source.base, source.settings),
                revive=plan.reviver(source, work),
            ).run(rows)

        return capture

    def start(self) -> None:
        self.feeder.start()

    def follow(self, curve: Curve) -> None:
        """Tell the feeder how far training is; raise what it failed with."""
        if self.feeder.error is not None:
            raise self.feeder.error
        if not curve.plan:
            return  # the curve is still that of an attempt that was killed: its steps are about to be repeated
        self.feeder.trained(curve.last_step + 1)
        self.feeder.read(self._read())
        for epoch in curve.epochs:
            self.feeder.validated(epoch)

    def _read(self) -> list[int]:
        """Rows that the trainer's processes noted as read since the last look."""
        rows: list[int] = []
        if not self.reads.is_dir():
            return rows
        for path in self.reads.iterdir():
            with open(path, "rb") as stream:
                stream.seek(self._offsets.get(path, 0))
                data = stream.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            rows += [int(line) for line in whole.split()]
        return rows

    def stop(self) -> dict[str, Any]:
        self._side.stop_requested = True
        self.feeder.stop()
        self.store.close()
        return self.feeder.figures()


def store_path(ctx: Context) -> Path:
    """The window's store: beside the other states, shared by attempts and settings (keys are content)."""
    return ctx.input("hidden_states").base / "window"


def first_visit(schedule: window.Schedule, global_step: int) -> int:
    """The visit that a trainer resumed at `global_step` begins with.

    A checkpoint at an epoch's end was saved before that epoch's validation, which is then done again.
    """
    number = next((at for at, visit in enumerate(schedule.visits) if visit.step >= global_step), len(schedule.visits))
    while number > 0 and schedule.visits[number - 1].step < 0:
        number -= 1
    return number

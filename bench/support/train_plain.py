"""speculators' trainer with nothing of Eyrie's around it but what a CPU needs to run it at all.

python train_plain.py METRICS_FILE THREADS -- <speculators train arguments>
"""

from __future__ import annotations

import json
import logging
import sys
import time


class Lines(logging.Handler):
    """The trainer's own step figures, one JSON line each."""

    def __init__(self, path: str):
        super().__init__(logging.INFO)
        self.stream = open(path, "a", buffering=1)  # noqa: SIM115

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.msg, dict) and "train" in record.msg:
            line = {"profile": record.msg["profile"], "cpu": time.process_time()}
            self.stream.write(json.dumps(line, default=float) + "\n")


def main() -> None:
    path, threads, _, *arguments = sys.argv[1:]
    from eyrie.draft import cpu_trainer

    cpu_trainer.apply(int(threads))
    from speculators.train import cli
    from speculators.train.config import TrainConfig

    setup = cli.setup_metric_logger

    def with_lines(*args: object, **kwargs: object) -> None:
        setup(*args, **kwargs)
        logging.getLogger("speculators.metrics").addHandler(Lines(path))

    cli.setup_metric_logger = with_lines
    cli.main(TrainConfig.resolve(arguments))


if __name__ == "__main__":
    main()

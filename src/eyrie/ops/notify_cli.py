"""`eyrie notify`: send a test event by every declared way."""

from __future__ import annotations

import argparse
import time
from typing import Any

from eyrie.core.errors import EyrieError


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="eyrie notify", description="Send a test event by the declared hook.")
    top.add_argument("--spec", default="-")
    top.add_argument("--text", default="a test of the notification hook")
    return top


def run(args: argparse.Namespace) -> dict[str, Any]:
    from eyrie.cli import read_spec
    from eyrie.core.pipeline import Pipeline
    from eyrie.ops import notify

    pipeline = Pipeline(read_spec(args.spec))
    wanted = notify.settings(pipeline.execution)
    if wanted is None:
        raise EyrieError(
            "no notification hook is declared.",
            code="notify-none",
            todo="Set eyrie_notify_command or eyrie_notify_webhook.",
        )
    where = f"{pipeline.host or 'host'}/{pipeline.run}"
    told = {"event": "test", "text": f"{where}: {args.text}", "time": time.time(), "host": pipeline.host}
    notify.send(told, wanted)
    return {"sent": [name for name in ("command", "webhook") if getattr(wanted, name)]}

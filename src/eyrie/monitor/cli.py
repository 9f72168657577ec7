"""`eyrie monitor`: the metrics page once, served, or together with Prometheus under the supervisor."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="eyrie monitor", description="The stages' progress for Prometheus.")
    verbs = top.add_subparsers(dest="action", required=True)
    once = verbs.add_parser("metrics", help="print the page once (for node exporter's textfile collector)")
    page = verbs.add_parser("exporter", help="serve the page until it is stopped")
    page.add_argument("--listen", default="127.0.0.1:9107", help="host:port")
    for sub in (once, page):
        sub.add_argument("--root", required=True)
        sub.add_argument("--run", action="append", help="only this run; may be given again (all runs by default)")
    for name, text in (("start", "exporter and Prometheus under the supervisor"), ("stop", "stop both")):
        sub = verbs.add_parser(name, help=text)
        sub.add_argument("--root", required=True)
        sub.add_argument("--folder", required=True, help="where prometheus.yml, the data and the logs are")
        sub.add_argument("--supervisor", default="auto")
        sub.add_argument("--exporter", default="127.0.0.1:9107", help="host:port of the exporter")
        sub.add_argument("--prometheus", default="/usr/bin/prometheus", help="the program")
        sub.add_argument("--address", default="127.0.0.1:9090", help="host:port of Prometheus")
        sub.add_argument("--retention", default="30d")
        sub.add_argument("--retention-size", default="2GB")
        sub.add_argument("--check", action="store_true", help="say what would be done, and do nothing")
    return top


def run(args: argparse.Namespace) -> dict[str, Any] | str:
    root = Path(args.root)
    if args.action == "metrics":
        from eyrie.monitor import collect

        return collect.metrics(root, args.run).rstrip("\n")
    if args.action == "exporter":
        from eyrie.monitor import exporter

        exporter.serve(root, args.listen, args.run)
        return {"stopped": True}
    from eyrie.monitor import supervised

    watch = supervised.Watch(
        root,
        Path(args.folder),
        args.supervisor,
        args.exporter,
        args.prometheus,
        args.address,
        args.retention,
        args.retention_size,
    )
    act = supervised.start if args.action == "start" else supervised.stop
    return act(watch, args.check)

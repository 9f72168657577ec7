"""python -m eyrie.serve.cluster_look ADDRESS OWN: a Ray cluster's living nodes and free GPUs, as one JSON object."""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

PATIENCE_S = 3.0


def answers(node: dict[str, Any]) -> bool:
    """Whether somebody still listens there: Ray itself notices half a minute later that a node is gone."""
    try:
        with socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), PATIENCE_S):
            return True
    except OSError:
        return False


def main() -> None:
    import ray

    address, own = sys.argv[1:]
    ray.init(address=address, _node_ip_address=own, logging_level="ERROR", log_to_driver=False)
    nodes = [
        {"address": node["NodeManagerAddress"], "gpus": node["Resources"].get("GPU", 0)}
        for node in ray.nodes()
        if node["Alive"] and answers(node)
    ]
    print(json.dumps({"nodes": nodes, "free": ray.available_resources().get("GPU", 0)}))


if __name__ == "__main__":
    main()

"""A key pair for one port: made on the source, allowed on the destination for one folder, removed afterwards."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.core.pipeline import Pipeline
from eyrie.port.survey import port_dir


def key_path(pipeline: Pipeline) -> Path:
    return port_dir(pipeline.root) / "key" / "id_ed25519"


def make(pipeline: Pipeline) -> dict[str, Any]:
    """{public, path}: a fresh ed25519 pair without a passphrase, 0600 in a 0700 folder; it never leaves this host."""
    remove(pipeline)
    path = key_path(pipeline)
    path.parent.mkdir(parents=True, mode=0o700)
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"eyrie-port {pipeline.run}", "-f", str(path)]
    try:
        subprocess.run(argv, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise EyrieError(
            "ssh-keygen is missing.", code="no-ssh", todo="Install openssh-client, or port through the controller."
        ) from None
    except subprocess.CalledProcessError as error:
        raise EyrieError(f"ssh-keygen failed: {error.stderr.strip()}", where=str(path), code="keygen") from None
    return {"public": path.with_suffix(".pub").read_text("utf-8").strip(), "path": str(path)}


def remove(pipeline: Pipeline) -> dict[str, Any]:
    folder = key_path(pipeline).parent
    there = folder.exists()
    shutil.rmtree(folder, ignore_errors=True)
    return {"removed": there}


def ssh_words(pipeline: Pipeline, address: str, port: int, user: str, host_keys: list[str]) -> list[str]:
    """The remote shell towards the destination: this port's key only, the destination's known host keys only."""
    known = key_path(pipeline).parent / "known_hosts"
    name = f"[{address}]:{port}" if port != 22 else address
    atomic.write_text(known, "".join(f"{name} {line}\n" for line in host_keys), mode=0o600)
    return [
        "ssh",
        *("-i", str(key_path(pipeline)), "-p", str(port), "-l", user),
        *("-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes"),
        *("-o", f'UserKnownHostsFile="{known}"', "-o", "GlobalKnownHostsFile=none"),
        *("-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=10"),
        *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=4"),
    ]

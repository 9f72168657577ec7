"""From how Ansible reaches a host to rsync's remote shell."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from eyrie.core.errors import EyrieError
from eyrie.core.spec import load
from eyrie.port.transfer import Way

SSH = ("ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh", "ansible.builtin.paramiko_ssh")
DOCKER = ("docker", "community.docker.docker", "community.docker.docker_api")
LOCAL = ("local", "ansible.builtin.local")


@dataclass
class Connection:
    """A host as the inventory reaches it; common_args and extra_args are ssh options as Ansible takes them."""

    kind: str = "ssh"
    host: str = ""
    port: int = 22
    user: str = ""
    private_key: str = ""
    common_args: str = ""
    extra_args: str = ""


def way(data: dict[str, Any]) -> Way:
    """The remote shell of a connection. Raises EyrieError for one that rsync cannot use."""
    there = load(Connection, data, "port.connection")
    if there.kind in LOCAL:
        return Way()
    if there.kind in DOCKER:
        user = ("-u", there.user) if there.user else ()
        return Way(("docker", "exec", "-i", *user), there.host)
    if there.kind not in SSH:
        raise EyrieError(
            f"files cannot be carried over a {there.kind!r} connection.",
            where=there.host,
            code="port-connection",
            todo="Reach the host by ssh, docker or local.",
        )
    words = ["ssh", "-p", str(there.port), "-o", "BatchMode=yes"]
    words += ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=4", "-o", "ConnectTimeout=20"]
    if there.user:
        words += ["-l", there.user]
    if there.private_key:
        words += ["-i", there.private_key, "-o", "IdentitiesOnly=yes"]
    return Way((*words, *shlex.split(there.common_args), *shlex.split(there.extra_args)), there.host)

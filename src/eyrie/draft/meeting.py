"""torchrun whose store listens on one address only: torch's own listens on every interface of the leader.

    python -m eyrie.draft.meeting ADDRESS <torchrun's arguments>

ADDRESS: where the store listens on the host that has rank 0, '' on the others. A static rendezvous at port 0 takes a
free port, which is held from the moment that it is chosen.
"""

from __future__ import annotations

import errno
import socket
import sys
from typing import Any

ENDPOINT = "--rdzv-endpoint"


def listener(address: str, port: int) -> socket.socket:
    """A socket that listens on that address; SystemExit in words where this host has no such address or port."""
    family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    found = socket.socket(family, kind, protocol)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(place)
    except OSError as error:
        found.close()
        cure = {
            errno.EADDRNOTAVAIL: "It is not this host's: set eyrie_draft_local_addr to one that others reach.",
            errno.EADDRINUSE: "The port is taken: choose another one in eyrie_draft_rdzv_endpoint.",
        }.get(error.errno or 0, "")
        raise SystemExit(f"the store of the rendezvous cannot listen on {address}:{port}: {error}. {cure}") from error
    found.listen(1024)
    return found


def confine(address: str, arguments: list[str]) -> list[str]:
    """Make torch's store listen on `address`; torchrun's arguments, with the port that it really has."""
    from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

    at = arguments.index(ENDPOINT) + 1
    host, _, port = arguments[at].rpartition(":")
    held = listener(address, int(port))
    number = held.getsockname()[1]
    inherited = static_tcp_rendezvous.TCPStore

    def store(name: str, port_: int, world: int, leads: bool, *rest: Any, **more: Any) -> Any:
        """The store, on the socket that is already there."""
        return inherited(name, port_, world, leads, *rest, **more, master_listen_fd=held.detach())

    static_tcp_rendezvous.TCPStore = store
    return [*arguments[:at], f"{host}:{number}", *arguments[at + 1 :]]


def main() -> None:
    address, *arguments = sys.argv[1:]
    if address:
        arguments = confine(address, arguments)
    from torch.distributed import run

    run.main(arguments)


if __name__ == "__main__":
    main()

"""Names, numbers and interfaces of hosts, as this host's own network knows them."""

from __future__ import annotations

import ipaddress
import json
import socket
import subprocess


def is_number(address: str) -> bool:
    try:
        ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        return False
    return True


def number_of(address: str) -> str:
    """The first number that a name leads to; the name itself when it leads nowhere."""
    try:
        return str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return address


def own_on_the_way_to(address: str) -> str:
    """This host's number on the route to another one, '' when there is none; nothing is sent."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def talk_over(interface: str) -> dict[str, str]:
    """The variables that hold gloo and NCCL to an interface; none for ''."""
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}


def interface_of(address: str) -> str:
    """The network interface that has an address, '' when none has or it cannot be found out."""
    try:
        shown = subprocess.run(["ip", "-j", "addr"], check=True, capture_output=True, text=True, timeout=10).stdout
        for link in json.loads(shown):
            if any(entry.get("local") == address for entry in link.get("addr_info", [])):
                return str(link["ifname"])
    except (OSError, ValueError, KeyError, subprocess.SubprocessError):
        return ""
    return ""

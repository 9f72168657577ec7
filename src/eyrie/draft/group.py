"""Training over a group of hosts: one leads (watches, keeps the checkpoints, exports), the others follow.

Every host of the group runs the draft stage with the same fingerprint, so with the same data, settings and versions.
torchrun joins them at the leader's address under a name that holds the fingerprint and the step that training resumes
at: hosts that stand at different steps never meet. When one host is lost, torchrun ends the trainers of the others; the
leader's last whole checkpoint is where the next run goes on, once it has been shared (playbooks do that).
"""

from __future__ import annotations

import dataclasses
import os
import re

from eyrie.core.addresses import interface_of, is_number, number_of, own_on_the_way_to, talk_over
from eyrie.core.errors import EyrieError, SpecError
from eyrie.draft import last_words
from eyrie.draft.settings import DraftSettings
from eyrie.draft.trainer import STOPPED

LOOPBACK = "127.0.0.1"
#: torch's words when not all hosts came to the rendezvous, or it could not be reached
NOT_MET = ("RendezvousTimeoutError", "RendezvousConnectionError", "clients joined", "while trying to connect to")

#: gloo's words for a peer that went away
_ENDED = re.compile(r"by peer|refused|timed out|read error", re.I)


def rank_of(settings: DraftSettings, host: str) -> int:
    """A host's place in the group; 0 leads. Raises SpecError for a host that is not in it."""
    if len(settings.hosts) < 2:
        return 0
    if host not in settings.hosts:
        raise SpecError(
            f"{host!r} is not among the hosts that train together: {', '.join(settings.hosts)}.",
            where="draft.hosts",
            code="group-stranger",
        )
    return settings.hosts.index(host)


def follows(settings: DraftSettings, host: str) -> bool:
    """True on a host of a group that does not lead it."""
    return rank_of(settings, host) > 0


def numbered(settings: DraftSettings, host: str) -> DraftSettings:
    """The settings as this host uses them: names of hosts are replaced by numbers.

    gloo names a peer by its number, and an interface is found by one. A host's own name may lead home only (Debian puts
    it on 127.0.1.1), so its own number is the one that it has on the way to another host of the group. A name that
    leads nowhere stays.
    """
    if len(settings.hosts) < 2:
        return settings
    leader, _, port = settings.rdzv_endpoint.rpartition(":")
    leads, own, endpoint = not follows(settings, host), settings.local_addr, settings.rdzv_endpoint
    others = [address for name, address in zip(settings.hosts, settings.addresses, strict=False) if name != host]
    if own and not is_number(own):
        own = own_on_the_way_to(leader if not leads else next(iter(others), "")) or own
    if leads and is_number(own) and not is_number(leader):
        endpoint = f"[{own}]:{port}" if ":" in own else f"{own}:{port}"
    addresses = [number_of(address) for address in settings.addresses]
    return dataclasses.replace(settings, local_addr=own, rdzv_endpoint=endpoint, addresses=addresses)


def rendezvous(settings: DraftSettings, host: str, run_id: str) -> list[str]:
    """torchrun's options for this host. run_id: fingerprint and resume step.

    The static rendezvous, not c10d's: that one numbers the hosts by their addresses, and another host than the leader
    would write metrics and checkpoints. The processes of a host that trains alone meet on loopback, at a free port.
    """
    alone = len(settings.hosts) < 2
    nodes, endpoint = ("1", f"{LOOPBACK}:0") if alone else (str(len(settings.hosts)), settings.rdzv_endpoint)
    options = ["--nnodes", nodes, "--node-rank", str(rank_of(settings, host)), "--max-restarts", "0"]
    options += ["--rdzv-backend", "static", "--rdzv-endpoint", endpoint, "--rdzv-id", run_id]
    options += ["--rdzv-conf", f"timeout={settings.join_timeout_s:.0f}"]
    return [*options, "--local-addr", settings.local_addr] if settings.local_addr and not alone else options


def listens_on(settings: DraftSettings, host: str) -> str:
    """The address that the leader's store listens on, '' on a host that does not lead."""
    if len(settings.hosts) < 2:
        return LOOPBACK
    if follows(settings, host):
        return ""
    return settings.local_addr or settings.rdzv_endpoint.rpartition(":")[0].strip("[]")


def environment(settings: DraftSettings) -> dict[str, str]:
    """gloo and NCCL must listen where the others reach this host, on the interface that has its address, and on
    loopback where there are no others; an interface that the environment names already stands."""
    if len(settings.hosts) < 2:
        name = "lo" if settings.processes > 1 else ""
    else:
        name = interface_of(settings.local_addr) if settings.local_addr else ""
    return {variable: name for variable, name in talk_over(name).items() if variable not in os.environ}


def stopped(said: str) -> bool:
    """True when torchrun's last words say that the first trainer to end did so by an orderly stop.

    One that failed first takes the others along, and they may end by an orderly stop after it: that is a failure.
    """
    return re.search(rf"exitcode\s*:\s*{STOPPED}\b", said.rpartition("Root Cause")[2]) is not None


def broken(settings: DraftSettings, said: str, host: str = "", status: int = 1) -> EyrieError:
    """What a host says when the training of its group ended too early.

    said: the last lines of its trainer's log. status: how its own torchrun ended; below 0: killed by that signal.
    """
    if any(mark in said for mark in NOT_MET):
        return EyrieError(
            f"the hosts of the group did not meet within {settings.join_timeout_s:.0f} s.",
            where=settings.rdzv_endpoint,
            why="A host is missing, cannot reach the rendezvous, or stands at another step.",
            code="group-not-met",
            todo="Check that all of "
            + ", ".join(settings.hosts)
            + " run the stage and reach that address; run train.yml again.",
        )
    lost, failed = lost_hosts(settings, said, host), failed_host(settings, said)
    what = f"the training of the group broke: {', '.join(lost) or 'a host or its trainer'} was lost."
    if failed and not lost:
        what = f"the training of the group broke: the trainer of {failed[0]} failed."
    if status < 0:
        what = f"the training of the group broke: the trainer of {host or 'this host'} was killed (signal {-status})."
    return EyrieError(
        what,
        where=", ".join(settings.hosts),
        why=failed[1] if failed and not lost else _reason(settings, said, lost),
        code="group-broken",
        todo="Bring the host back, or take it out of the group; train.yml resumes from the last whole checkpoint.",
    )


def lost_hosts(settings: DraftSettings, said: str, host: str = "") -> list[str]:
    """The other hosts whose connection ended, by the peers' addresses in a trainer's last words and in the others'.

    One that left a word itself was not lost: it ended after another one. An address that several hosts share (all on
    one machine) names none of them.
    """
    ended = [line for line in said.splitlines() if _ENDED.search(line)]
    spoke = _words(settings, said)
    found = []
    for name, address in zip(settings.hosts, settings.addresses, strict=False):
        alone = settings.addresses.count(address) == 1 and name != host and name not in spoke
        if alone and any(re.search(rf"(?<![\w.]){re.escape(address)}(?![\w.])", line) for line in ended):
            found.append(name)
    return found


def failed_host(settings: DraftSettings, said: str) -> tuple[str, str] | None:
    """Another host that failed by itself, and its word: one that tells of no connection that ended."""
    return next((found for found in _words(settings, said).items() if not _ENDED.search(found[1])), None)


def _words(settings: DraftSettings, said: str) -> dict[str, str]:
    """{host: its last word} of the others, as a trainer's log has them."""
    return {settings.hosts[rank]: word for rank, word in last_words.read(said).items() if rank < len(settings.hosts)}


def _reason(settings: DraftSettings, said: str, lost: list[str]) -> str:
    """The line that names the cause, be it the word of another host that heard of the loss; else the last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not last_words.read(line)]
    words = [f"{name}: {word}" for name, word in _words(settings, said).items()]
    for name in lost:
        address = f"[{settings.addresses[settings.hosts.index(name)]}]"
        found = [line for line in (*lines, *words) if address in line and _ENDED.search(line)]
        if found:
            return found[0][:400]
    for mark in ("closed by peer", "Connection reset", "Timed out", "RuntimeError", "Error:"):
        found = [line for line in lines if mark in line]
        if found:
            return found[0][:400]
    return lines[-1][:400] if lines else ""

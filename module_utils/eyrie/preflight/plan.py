# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""What the declared model, servers and lease say before anything is started."""

from __future__ import annotations

import calendar
import re
import time

from ansible.module_utils.eyrie.preflight.finding import error, info, warning
from ansible.module_utils.eyrie.text import human_bytes, human_seconds

#: stages whose outputs are brought home before a rented host is given back
EXPORTED = ("responses", "tokens", "draft", "benchmark", "report")


def layers(host, context):
    """Auxiliary layer ids are distinct, ascending and below the number of layers."""
    target = context.target
    ids, count = target.get("aux_layers") or [], int(target.get("num_hidden_layers") or 0)
    cure = "Set eyrie_target_aux_layers; [2, n/2, n-3] is usual."
    if not ids or not count:
        return error("layers", "The target declares no auxiliary layers or no number of layers.", "", cure)
    if ids != sorted(set(ids)):
        return error(
            "layers",
            "aux_layers %s are not distinct and ascending." % (ids,),
            "EAGLE-3 reads three different states.",
            cure,
        )
    if ids[0] < 0 or ids[-1] >= count:
        return error(
            "layers",
            "aux_layers %s leave 0..%d." % (ids, count - 1),
            "An id beyond the last layer is not captured, or is the last state twice.",
            cure,
        )
    if len(ids) != 3:
        return warning("layers", "%d auxiliary layers; EAGLE-3 drafts are served with 3." % len(ids), "", cure)
    return []


def parallel(host, context):
    """The tensor-parallel size of every server divides the heads and fits the GPUs."""
    heads = int(context.target.get("num_attention_heads") or 0)
    vocabulary = int(context.target.get("vocab_size") or 0)
    count = int(context.expect["gpu_count"])
    together = len((context.server.get("ray") or {}).get("nodes") or [])
    found = []
    for where, args in context.server_args():
        size = int(args.get("tensor_parallel_size") or 1)
        if heads and heads % size:
            found += error(
                "tensor parallel",
                "%s: tensor_parallel_size %d does not divide the target's %d attention heads." % (where, size, heads),
                "The server would stop while it loads.",
                "Choose a divisor of %d." % heads,
            )
        if vocabulary and vocabulary % size:
            found += warning(
                "tensor parallel", "%s: vocabulary %d is padded for %d shards." % (where, vocabulary, size)
            )
        world = size * int(args.get("pipeline_parallel_size") or 1)
        nodes = max(int(args.get("nnodes") or 1), together)
        if count and world > count * nodes:
            found += error(
                "tensor parallel",
                "%s wants %d GPUs, the profile has %d." % (where, world, count * nodes),
                "The server would wait for ranks that never come.",
                "Lower tensor_parallel_size or pipeline_parallel_size, or serve over more hosts (eyrie_server_hosts).",
            )
    return _once(found)


def _once(found):
    seen, kept = set(), []
    for item in found:
        key = item["what"].partition(": ")[2] or item["what"]
        if key not in seen:
            seen.add(key)
            kept.append(item)
    return kept


def hub(host, context):
    """The hub can be reached, where the run needs it and the model is not there yet."""
    source = context.target.get("source") or {}
    pending = [plan["stage"] for plan in context.pending()]
    if source.get("kind") != "hub" or not context.expect["hub"] or "target" not in pending:
        return []
    fetch = (context.spec.get("stages") or {}).get("target") or {}
    endpoint = str(fetch.get("endpoint") or "https://huggingface.co")
    match = re.match(r"^(https?)://([^/:]+)(?::(\d+))?", endpoint)
    if not match:
        return error(
            "hub", "The hub's address %r is no http address." % endpoint, "", "Correct eyrie_target_fetch_endpoint."
        )
    if host.proxies():
        return info("hub", "The hub is reached through a proxy: not tried here.")
    scheme, name, number = match.groups()
    problem = host.reach(name, int(number or (443 if scheme == "https" else 80)))
    if not problem:
        return []
    return error(
        "hub",
        "The hub %s cannot be reached: %s." % (name, problem),
        "The target's %s come from there."
        % human_bytes(next((p["forecast"]["bytes"] for p in context.plans if p["stage"] == "target"), 0)),
        "Check DNS and the network, set a proxy, name a mirror in eyrie_target_fetch_endpoint, or put the model on the "
        "host and use eyrie_target_source_kind: path.",
    )


def lease(host, context):
    """On a rented host: the forecast and the export fit into the time that is left."""
    left = lease_left(host, context)
    if left is None:
        return []
    pending = context.pending()
    work = sum(plan["forecast"]["seconds"] for plan in pending)
    size = sum(_size(plan) for plan in context.plans if plan["stage"] in EXPORTED)
    rate = float(context.expect["export_bytes_s"])
    export = size / rate if rate else 0.0
    reserve = 3600 * float(context.expect["lease_reserve_hours"])
    need = work + export + reserve
    told = "work %s, bringing %s home %s, reserve %s" % (
        human_seconds(work),
        human_bytes(size),
        human_seconds(export),
        human_seconds(reserve),
    )
    if need <= left:
        return info(
            "lease", "The run fits the lease: %s of %s (%s)." % (human_seconds(need), human_seconds(left), told)
        )
    longest = max(pending, key=lambda plan: plan["forecast"]["seconds"], default=None)
    share = (
        " The longest stage: %s, %s." % (longest["stage"], human_seconds(longest["forecast"]["seconds"]))
        if longest
        else ""
    )
    return error(
        "lease",
        "The run does not fit the lease: it needs %s (%s), %s are left."
        % (human_seconds(need), told, human_seconds(left)),
        "What is not brought home when the lease ends is lost.%s" % share,
        "Extend the lease, lower eyrie_dataset_samples or eyrie_draft_epochs, or hand over what can be made elsewhere "
        "(playbooks/port.yml).",
    )


def _size(plan):
    return plan["forecast"]["bytes"] or int((plan.get("record") or {}).get("bytes") or 0)


def lease_left(host, context):
    """Seconds left of the lease; None when there is no lease."""
    until = str(context.expect["lease_until"] or "")
    if until:
        moment = parse_utc(until)
        return 0.0 if moment is None else max(0.0, moment - host.now())
    hours = float(context.expect["lease_hours"] or 0)
    return 3600 * hours if hours else None


def parse_utc(text):
    """'2026-12-01T18:00:00Z' -> seconds since the epoch; None when it is not such a time."""
    for form in ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%MZ", "%Y-%m-%d %H:%M:%SZ"):
        try:
            return float(calendar.timegm(time.strptime(text, form)))
        except ValueError:
            continue
    return None

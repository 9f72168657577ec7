# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""A finding as data, and what the checks are given."""

from __future__ import annotations

ERROR, WARNING, INFO = "error", "warning", "info"

#: what a profile may expect of a host, with the value that means "not checked"
EXPECT = {
    "disk_reserve_bytes": 0,
    "disk_write_bytes_s": 0,
    "shm_bytes": 0,
    "memory_bytes": 0,
    "nofile": 0,
    "memlock_unlimited": False,
    "clock_skew_s": 0,
    "gpu_count": 0,
    "gpu_name": "",
    "gpu_memory_bytes": 0,
    "gpu_compute_capability": "",
    "gpu_driver": "",
    "gpu_link": "",
    "gpu_peer_to_peer": False,
    "hub": False,
    "lease_hours": 0,
    "lease_until": "",
    "lease_reserve_hours": 0,
    "export_bytes_s": 0,
}


class Context(object):
    """What the checks know besides the host.

    spec: the run's spec. expect: EXPECT with the profile's values. runtime: parameters of eyrie_venv.
    plans: the stages' plans (forecasts). names: unknown variable names as the controller found them.
    controller_time: seconds since the epoch, 0 = unknown. check_mode: whether nothing at all may be written.
    """

    def __init__(self, spec, expect=None, runtime=None, plans=None, names=None, controller_time=0, check_mode=False):
        self.spec = spec
        self.expect = dict(EXPECT)
        self.expect.update(expect or {})
        self.runtime = runtime or {}
        self.plans = plans or []
        self.names = names or []
        self.controller_time = controller_time
        self.check_mode = check_mode

    @property
    def target(self):
        return self.spec.get("target") or {}

    @property
    def server(self):
        return self.spec.get("server") or {}

    @property
    def root(self):
        return str(self.spec["root"])

    def pending(self):
        """Plans of the stages that would run."""
        return [plan for plan in self.plans if not plan.get("up_to_date")]

    def server_args(self):
        """(where, engine arguments) of the common settings and of each server profile over them."""
        common = self.server.get("args") or {}
        profiles = self.server.get("profiles") or {}
        found = [("server.args", common)]
        for name in sorted(profiles):
            merged = dict(common)
            merged.update((profiles[name] or {}).get("args") or {})
            found.append(("server.profiles.%s" % name, merged))
        return found

    def server_environment(self):
        """Environment of all server profiles together."""
        merged = dict(self.server.get("environment") or {})
        for profile in (self.server.get("profiles") or {}).values():
            merged.update((profile or {}).get("environment") or {})
        return merged


def finding(check, level, what, why="", cure=""):
    """One finding: what was seen, why it matters, what helps."""
    return {"check": check, "level": level, "what": what, "why": why, "cure": cure}


def error(check, what, why="", cure=""):
    return [finding(check, ERROR, what, why, cure)]


def warning(check, what, why="", cure=""):
    return [finding(check, WARNING, what, why, cure)]


def info(check, what, why="", cure=""):
    return [finding(check, INFO, what, why, cure)]

"""Hosts as recorded: what their commands and files say, read from recorded/<name>.yml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
PROJECT = HERE.parents[2]


def _module_utils() -> None:
    import ansible.module_utils

    place = str(PROJECT / "module_utils")
    if place not in ansible.module_utils.__path__:
        ansible.module_utils.__path__.append(place)


_module_utils()

from ansible.module_utils.eyrie.preflight.finding import Context  # noqa: E402

BLANK: dict[str, Any] = {
    "commands": {},
    "files": {},
    "links": {},
    "space": {"total": 20_000_000_000_000, "free": 18_000_000_000_000, "inodes": 1_000_000_000},
    "shm": {"total": 64_000_000_000, "free": 64_000_000_000, "inodes": 1_000_000},
    "limits": {"NOFILE": [1048576, 1048576], "MEMLOCK": [None, None]},
    "ports": [],
    "root": True,
    "write_speed": 2_000_000_000,
    "now": 1_800_000_000,
    "unreachable": {},
    "existing": ["/", "/dev/shm", "/data", "/usr/bin/python3.11"],
    "writable": True,
    "proxies": False,
}


class RecordedHost:
    """A host's answers by table; the same methods as preflight.host.Host."""

    def __init__(self, **recorded: Any):
        self.data = {**BLANK, **recorded}
        self.asked: list[list[str]] = []

    def run(self, argv: list[str], timeout: int = 30) -> tuple[int, str, str]:
        self.asked.append(argv)
        line = " ".join(argv)
        for words, answer in self.data["commands"].items():
            if all(word in line for word in words.split(" ")):
                if isinstance(answer, dict):
                    return answer.get("rc", 0), answer.get("out", ""), answer.get("err", "")
                return 0, answer, ""
        return 127, "", "not there"

    def read(self, path: str) -> str:
        return str(self.data["files"].get(path, ""))

    def glob(self, pattern: str) -> list[str]:
        from fnmatch import fnmatch

        return sorted(path for path in [*self.data["files"], *self.data["existing"]] if fnmatch(path, pattern))

    def realpath(self, path: str) -> str:
        return str(self.data["links"].get(path, path))

    def exists(self, path: str) -> bool:
        return path in self.data["existing"] or path in self.data["files"]

    def nearest(self, path: str) -> str:
        while path not in self.data["existing"]:
            path = str(Path(path).parent)
        return path

    def space(self, path: str) -> dict[str, Any]:
        return dict(self.data["shm"] if path.startswith("/dev/shm") else self.data["space"])

    def writable(self, path: str) -> bool:
        return bool(self.data["writable"])

    def root(self) -> bool:
        return bool(self.data["root"])

    def limit(self, name: str) -> tuple[int | None, int | None]:
        return tuple(self.data["limits"][name])

    def now(self) -> float:
        return float(self.data["now"])

    def reach(self, name: str, port: int, timeout: int = 5) -> str:
        return str(self.data["unreachable"].get(f"{name}:{port}", ""))

    def proxies(self) -> bool:
        return bool(self.data["proxies"])

    def write_speed(self, folder: str) -> float:
        return float(self.data["write_speed"])

    def port_owners(self, port: int) -> list[tuple[int, str, list[str]]]:
        return [tuple(item) for item in self.data["ports"]]


def recorded(name: str) -> RecordedHost:
    return RecordedHost(**yaml.safe_load((HERE / "recorded" / f"{name}.yml").read_text()))


def profile(name: str, component: str) -> dict[str, Any]:
    """Flat variables of a component as a profile has them: all, then the group's own."""
    merged: dict[str, Any] = {}
    for group in ("all", name):
        path = PROJECT / "inventory" / "group_vars" / group / f"{component}.yml"
        merged.update(yaml.safe_load(path.read_text()) if path.exists() else {})
    return {
        key.removeprefix(f"eyrie_{component}_"): value for key, value in merged.items() if key != f"eyrie_{component}"
    }


def spec_of(name: str = "rtx6000bw") -> dict[str, Any]:
    """The spec that a profile's own files make, as far as the preflight reads it."""
    target = profile(name, "target")
    server = profile(name, "server")
    return {
        "root": "/data/eyrie",
        "run": "main",
        "target": {
            **{key: value for key, value in target.items() if not key.startswith(("source", "fetch"))},
            "source": {
                key.removeprefix("source_"): value for key, value in target.items() if key.startswith("source_")
            },
        },
        "server": {
            "port": server["port"],
            "args": server["args"],
            "environment": server["environment"],
            "profiles": {
                kind: {"args": server[f"{kind}_args"], "environment": server[f"{kind}_environment"]}
                for kind in ("baseline", "extract", "eagle3")
            },
        },
        "stages": {"dataset": {"samples": 100_000}, "target": {}},
        "planning": profile(name, "planning"),
    }


@pytest.fixture
def context() -> Any:
    """context(profile, expect=..., **Context's arguments): what a check is given."""

    def make(
        name: str = "rtx6000bw", expect: dict[str, Any] | None = None, spec: dict[str, Any] | None = None, **more: Any
    ) -> Context:
        known = {key: value for key, value in profile(name, "preflight").items() if key != "json"}
        lock = (PROJECT / "requirements" / ("node-cpu.txt" if name == "local" else "node-cuda.txt")).read_text()
        more.setdefault("runtime", {"lock": lock, "python": ["python3.11"]})
        return Context(spec or spec_of(name), expect={**known, **(expect or {})}, **more)

    return make


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")

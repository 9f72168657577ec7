"""A root with stand-ins for the stages before the benchmark, for the switch, and for the load generator."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from eyrie.benchmark import load
from eyrie.core import registry
from eyrie.core.errors import EyrieError
from eyrie.core.pipeline import Pipeline
from eyrie.core.progress import Progress
from eyrie.core.stage import Outcome, Stage, Work
from eyrie.serve import launch, status, switch

GRID = [
    {"set": "own", "concurrency": [1, 4], "prompts": 4, "output_tokens": 32},
    {"set": "own", "concurrency": [4], "prompts": 4, "output_tokens": 32, "variants": ["untrained"]},
]
# Answers a cell like vllm bench serve: the server says how fast it is and books the requests.
WORKER = """
import json, sys, urllib.request
def call(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode())
    return json.loads(urllib.request.urlopen(request, timeout=10).read())
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["op"] == "render":
        texts = [{"text": row["messages"][-1]["content"], "tokens": 5} for row in request["prompts"]]
        answer = {"prompts": texts, "eos": [2]}
    else:
        words = request["argv"]
        value = lambda name: words[words.index(name) + 1]
        count, streams, tokens = (int(value(n)) for n in ("--num-prompts", "--max-concurrency", "--custom-output-len"))
        answer = call(value("--base-url") + "/work", {"count": count, "streams": streams, "tokens": tokens})
    print(json.dumps(answer), flush=True)
"""


@dataclass
class Machine:
    """What serves on the made-up host, how fast each variant is, and what happened."""

    speeds: dict[str, float] = field(default_factory=lambda: {"baseline": 40.0, "checkpoint": 60.0, "untrained": 30.0})
    accepted: dict[str, float] = field(default_factory=lambda: {"checkpoint": 0.8, "untrained": 0.0})
    serving: dict[str, Any] | None = None
    started: list[str] = field(default_factory=list)
    stops: int = 0
    fail_at: int = 0  # the n-th start fails
    broken_after: int = 0  # answers of the load after which every request fails
    answers: int = 0
    counters: dict[str, float] = field(default_factory=dict)
    on_work: Any = None

    def name(self) -> str:
        assert self.serving is not None
        draft = self.serving["draft"]
        return Path(draft).name if draft else "baseline"

    def ensure(
        self, pipeline: Any, profile: str, progress: Progress | None = None, overrides: dict[str, Any] | None = None
    ) -> switch.Serving:
        own = overrides or {}
        wanted = {"profile": profile, "draft": str(own.get("draft") or ""), "k": own.get("num_speculative_tokens", 0)}
        changed = wanted != self.serving
        if changed:
            self.started.append(Path(wanted["draft"]).name if wanted["draft"] else profile)
            if self.fail_at and len(self.started) == self.fail_at:
                raise EyrieError("the server does not start", code="switch-failed")
            self.serving, self.counters = wanted, {}
        return switch.Serving(self.url, "m", profile, "f" * 64, changed, 2.0 if changed else 0.0, Path("log"))

    def stop(self, pipeline: Any, progress: Progress | None = None) -> None:
        self.serving = None
        self.stops += 1

    def work(self, body: dict[str, Any]) -> dict[str, Any]:
        self.answers += 1
        if self.on_work:
            self.on_work(self)
        count, tokens, name = body["count"], body["tokens"], self.name()
        broken = self.broken_after and self.answers > self.broken_after
        done = 0 if broken else count
        rate = self.accepted.get(name, 0.0)
        drafts = round(count * tokens / (1 + rate)) if name != "baseline" and done else 0
        speed = self.speeds[name] * body["streams"] ** 0.8 * (1 + 0.004 * (self.answers % 3))
        grown = {"vllm:request_success_total": done, "vllm:e2e_request_latency_seconds_sum": done * 1.0}
        if drafts:
            grown["vllm:spec_decode_num_drafts_total"] = drafts
            grown["vllm:spec_decode_num_draft_tokens_total"] = 3 * drafts
            grown["vllm:spec_decode_num_accepted_tokens_total"] = round(drafts * rate)
            grown['vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}'] = round(drafts * rate)
        for key, value in grown.items():
            self.counters[key] = self.counters.get(key, 0.0) + value
        seconds = count * tokens / speed
        spread = {f"{part}_{key}_ms": 10.0 for part in ("mean", "p50", "p99") for key in ("ttft", "tpot", "e2el")}
        return {
            "duration": seconds,
            "completed": done,
            "total_output_tokens": done * tokens,
            "total_input_tokens": count * 5,
            "output_throughput": speed,
            "output_lens": [tokens if done else 0] * count,
            "latencies": [seconds * body["streams"] / count] * count,
            "chunks": [tokens] * count,
            "digests": ["d"] * count,
            "errors": ["" if done else "ConnectionResetError: server gone"] * count,
            **spread,
        }


class Handler(BaseHTTPRequestHandler):
    machine: Machine

    def do_GET(self) -> None:
        text = "".join(f"{key} {value}\n" for key, value in self.machine.counters.items())
        self.reply(text.encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reply(json.dumps(self.machine.work(body)).encode())

    def reply(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        return None


@dataclass
class Nothing:
    version: int = 0


class StandIn(Stage):
    settings_type = Nothing

    def __init__(self, name: str, inputs: tuple[str, ...] = ()):
        self.name, self.inputs = name, inputs

    def run(self, ctx: Any, work: Work) -> Outcome:
        raise NotImplementedError


STAND_INS = {
    "target": StandIn("target"),
    "dataset": StandIn("dataset", ("target",)),
    "draft": StandIn("draft", ("dataset",)),
}


class House:
    """One root; `run()` runs the stage as the runner does."""

    def __init__(self, root: Path, machine: Machine):
        self.root, self.machine = root, machine
        (root / "prompts").mkdir()
        lines = [json.dumps({"turns": [f"question {number}?"]}) for number in range(12)]
        (root / "prompts" / "own.jsonl").write_text("\n".join(lines))

    def pipeline(self, draft: int = 0, **settings: Any) -> Pipeline:
        own = {"name": "own", "src": "files/own.jsonl"}
        given = {"grid": GRID, "prompt_files": [own], "prompt_folder": str(self.root / "prompts"), "warmup": 2}
        target = {"name": "m", "source": {"kind": "path", "path": "/x"}, "hidden_size": 8, "num_hidden_layers": 8}
        target |= {"num_attention_heads": 2, "vocab_size": 99, "aux_layers": [1, 2, 3]}
        pipeline = Pipeline(
            {
                "root": str(self.root),
                "run": "main",
                "target": target,
                "stages": {"benchmark": {**given, **settings}, "draft": {"version": draft}},
                "server": {},
            }
        )
        for name in STAND_INS:
            ctx = pipeline.context(name)
            ctx.out.mkdir(parents=True, exist_ok=True)
            done = {"fingerprint": ctx.fingerprint, "status": "done", "outputs": ["."], "output_sizes": {".": 0}}
            ctx.state.path.mkdir(parents=True, exist_ok=True)
            ctx.state.write({**done, "identity": ctx.identity})
        for name in ("checkpoint", "untrained"):
            folder = pipeline.context("draft").out / name
            folder.mkdir(exist_ok=True)
            (folder / "model.safetensors").write_text(f"{name} {draft}")
        return pipeline

    def run(self, draft: int = 0, **settings: Any) -> dict[str, Any]:
        from eyrie.core import runner

        return runner.run(self.pipeline(draft, **settings), "benchmark")

    def results(self, draft: int = 0, **settings: Any) -> dict[str, Any]:
        path = self.pipeline(draft, **settings).context("benchmark").out / "results.json"
        return dict(json.loads(path.read_text()))


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    machine = Machine()
    handler = type("Own", (Handler,), {"machine": machine})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    machine.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    real = registry.get
    monkeypatch.setattr(registry, "get", lambda name: STAND_INS.get(name) or real(name))
    monkeypatch.setattr(switch, "ensure", machine.ensure)
    monkeypatch.setattr(switch, "stop", machine.stop)
    monkeypatch.setattr(load.Generator.__init__, "__defaults__", ([sys.executable, str(script)],))
    monkeypatch.setattr(
        status, "of", lambda pipeline: {"active": [machine.serving["profile"]] if machine.serving else []}
    )
    monkeypatch.setattr(
        launch,
        "read",
        lambda root, profile: (
            {"draft": machine.serving["draft"], "num_speculative_tokens": machine.serving["k"]}
            if machine.serving
            else {}
        ),
    )
    yield House(tmp_path, machine)
    server.shutdown()
    server.server_close()

"""The real worker: vLLM's own `bench serve` against a small server that streams tokens as vLLM does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from eyrie.benchmark import measure, prompts
from eyrie.benchmark.cells import Cell
from eyrie.benchmark.load import Generator
from eyrie.serve import metrics

pytestmark = [pytest.mark.node, pytest.mark.slow]

TOKENS_PER_MESSAGE = 2
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class Engine(ThreadingHTTPServer):
    """Streams `max_tokens` words, two a message, and counts drafts as vLLM does."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, Any]] = []
        self.counters: dict[str, float] = {}
        self.lock = threading.Lock()
        self.refuse = 0

    def count(self, **grown: float) -> None:
        with self.lock:
            for name, value in grown.items():
                key = f"vllm:{name}"
                self.counters[key] = self.counters.get(key, 0.0) + value


class Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        text = "".join(f"{name} {value}\n" for name, value in self.server.counters.items())
        self.plain(200, text.encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if len(self.server.bodies) <= self.server.refuse:
            self.plain(503, b"{}")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        words = body["max_tokens"]
        end = "<|end|>" if body.get("ignore_eos") else ""
        self.message({"choices": [{"index": 0, "text": "w"}]})
        steps = -(-(words - 1) // TOKENS_PER_MESSAGE)
        for step in range(steps):
            time.sleep(0.002)
            count = min(TOKENS_PER_MESSAGE, words - 1 - step * TOKENS_PER_MESSAGE)
            text = " w" * count if step or not end else end + " w" * (count - 1)
            self.message({"choices": [{"index": 0, "text": text}]})
        usage = {"prompt_tokens": 7, "completion_tokens": words, "total_tokens": words + 7}
        self.message({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        drafted = {"spec_decode_num_drafts_total": steps, "spec_decode_num_draft_tokens_total": 3 * steps}
        accepted = words - 1 - steps
        self.server.count(request_success_total=1, spec_decode_num_accepted_tokens_total=accepted, **drafted)

    def message(self, value: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def plain(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        return None


@pytest.fixture
def engine() -> Iterator[Engine]:
    server = Engine()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of a few words with a chat template, as a checkpoint folder holds it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    special = ["<|unk|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    words = {word: number for number, word in enumerate([*special, "w", "why", "how"])}
    inner = Tokenizer(WordLevel(words, unk_token="<|unk|>"))
    inner.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="<|unk|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>", "<|system|>"],
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 1}')
    return folder


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generator]:
    with Generator(tmp_path_factory.mktemp("log") / "bench.log", lambda: None) as asked:
        yield asked


def bench(generator: Generator, folder: Path, model: Path) -> measure.Bench:
    rows = [{"messages": [{"role": "user", "content": f"why w {'w ' * number}"}]} for number in range(6)]
    reply = generator.ask({"op": "render", "model": str(model), "prompts": rows}, 120)
    assert reply["eos"] == [1]
    assert reply["prompts"][0]["text"] == "<|user|>why w <|end|><|assistant|>"
    assert reply["prompts"][0]["tokens"] == 5
    found = prompts.PromptSet("own", "x")
    prompts.take(found, reply["prompts"], 6, 100)
    return measure.Bench(generator, {"own": found}, folder, model, False, reply["eos"], 0, 60.0, metrics.scrape)


def test_a_cell_is_measured_as_vllm_measures_it(
    generator: Generator, engine: Engine, tmp_path: Path, model: Path
) -> None:
    cell = Cell("own", 2, 0.0, "natural", 21, 6)
    url = f"http://127.0.0.1:{engine.server_port}"
    run = bench(generator, tmp_path, model).run(url, "m", cell, "salt")
    found = measure.sample(run, cell, metrics.acceptance(run["before"], run["after"]))
    assert found["completed"] == 6
    assert found["generated"] == 126
    assert found["tokens_per_message"] == pytest.approx(2.0)
    assert found["tokens_per_step"] == pytest.approx(126 / (126 - 60))
    assert 1 + found["accepted"] / found["drafts"] == pytest.approx(2.0)
    assert found["tok_s"] == pytest.approx(126 / found["seconds"], rel=0.01)
    assert found["ttft_ms"]["p50"] > 0
    assert len(set(found["digests"])) == 1
    body = engine.bodies[0]
    assert body["temperature"] == 0
    assert body["cache_salt"] == "salt"
    assert body["add_special_tokens"] is False
    sent = sorted(item["prompt"] for item in engine.bodies)
    assert sent == sorted(bench(generator, tmp_path, model).sets["own"].texts)


def test_text_after_the_end_is_found_in_cells_of_fixed_length(
    generator: Generator, engine: Engine, tmp_path: Path, model: Path
) -> None:
    cell = Cell("own", 1, 1.0, "fixed", 11, 2)
    run = bench(generator, tmp_path, model).run(f"http://127.0.0.1:{engine.server_port}", "m", cell, "salt")
    found = measure.sample(run, cell, metrics.acceptance(run["before"], run["after"]))
    assert engine.bodies[0]["ignore_eos"] is True
    assert engine.bodies[0]["seed"] == 0
    # of eleven tokens the second is the end: nine come after it
    assert found["past_end_share"] == pytest.approx(9 / 11)
    assert "past the end" in found["flags"]


def test_refused_requests_are_failures_with_their_reason(
    generator: Generator, engine: Engine, tmp_path: Path, model: Path
) -> None:
    engine.refuse = 2
    cell = Cell("own", 1, 0.0, "natural", 8, 6)
    run = bench(generator, tmp_path, model).run(f"http://127.0.0.1:{engine.server_port}", "m", cell, "salt")
    found = measure.sample(run, cell, metrics.acceptance(run["before"], run["after"]))
    assert found["completed"] == 4
    assert found["failed"] == {"Service Unavailable": 2}
    assert "failed requests" in found["flags"]

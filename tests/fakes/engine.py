#!/usr/bin/env python3
"""A serving engine that answers as vLLM or SGLang does, without a model. Standard library only.

    engine.py BEHAVIOUR.json serve MODEL --served-model-name NAME --port N ...        (vLLM's words)
    engine.py BEHAVIOUR.json --model-path MODEL --served-model-name NAME --port N ... (SGLang's words)

BEHAVIOUR.json: {"baseline": {...}, "extract": {...}, "eagle3": {...}}, each with any of
  load_s           seconds of loading before it listens (default 0.2)
  refuse_s         seconds of 503 after that
  never_healthy    503 for ever
  die_s            ends with status 1 that many seconds after its start
  die_after_requests  ends while it answers that request
  die_when         "<path>": ends as soon as that file exists
  model            serves another name
  method           states another speculation
  accept           share of drafted tokens that is accepted (default 0.5)
  ignore_term      does not end on SIGTERM
  workers          child processes (default 1); they outlive a SIGKILL of the parent
  no_template      refuses every conversation with 400
  no_states        answers without writing states
  shape            shape of the written states, instead of the right one
  when_tokens      all of this only when that many tokens are drafted
  gpu              "<path>": writes its pids there, as fake nvidia-smi reads them
"""

import argparse
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BORN = time.monotonic()


def arguments(words):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--served-model-name")
    parser.add_argument("--model-path", dest="model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int)
    parser.add_argument("--speculative-config", type=json.loads, default=None)
    parser.add_argument("--kv-transfer-config", type=json.loads, default=None)
    parser.add_argument("--speculative-algorithm")
    parser.add_argument("--speculative-draft-model-path")
    parser.add_argument("--speculative-num-steps", type=int)
    sglang = words[:1] != ["serve"]
    if not sglang:
        words = [*words[2:], "--model-path", words[1]]
    known, _others = parser.parse_known_args(words)
    known.sglang = sglang
    if sglang and known.speculative_algorithm:
        known.speculative_config = {
            "method": known.speculative_algorithm.lower(),
            "model": known.speculative_draft_model_path,
            "num_speculative_tokens": known.speculative_num_steps,
        }
    return known


def profile_of(options):
    method = (options.speculative_config or {}).get("method")
    if method is None:
        return "baseline"
    return "extract" if method == "extract_hidden_states" else "eagle3"


def say(text):
    print(f"INFO {time.strftime('%m-%d %H:%M:%S')} {text}", flush=True)


class Engine:
    def __init__(self, options, behaviour):
        self.options = options
        wanted = behaviour.get("when_tokens")
        drafted = (options.speculative_config or {}).get("num_speculative_tokens")
        self.behaviour = behaviour if wanted in (None, drafted) else {}
        behaviour = self.behaviour
        self.model = behaviour.get("model") or options.served_model_name
        self.speculative = options.speculative_config
        self.profile = profile_of(options)
        self.drafts = self.accepted = 0
        self.lock = threading.Lock()
        self.requests = 0

    @property
    def tokens(self):
        return int((self.speculative or {}).get("num_speculative_tokens") or 0)

    def start(self):
        if self.behaviour.get("ignore_term"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        else:
            signal.signal(signal.SIGTERM, lambda *_: os._exit(self.stop()))
        self.workers = [
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", "VLLM::EngineCore"])
            for _ in range(self.behaviour.get("workers", 1))
        ]
        if self.behaviour.get("gpu"):
            pids = [os.getpid(), *(worker.pid for worker in self.workers)]
            Path(self.behaviour["gpu"]).write_text("".join(f"{pid}, 1024\n" for pid in pids))
        if self.behaviour.get("die_s") is not None or self.behaviour.get("die_when"):
            threading.Thread(target=self.die, daemon=True).start()
        self.announce()
        time.sleep(self.behaviour.get("load_s", 0.2))
        server = ThreadingHTTPServer((self.options.host, self.options.port), handler(self))
        say("Application startup complete.")
        self.ready = time.monotonic() + self.behaviour.get("refuse_s", 0)
        server.serve_forever()

    def announce(self):
        method = self.behaviour.get("method", (self.speculative or {}).get("method"))
        draft = (self.speculative or {}).get("model")
        stated = f"SpeculativeConfig(method={method!r}, model={draft!r}, num_spec_tokens={self.tokens})"
        shown = stated if method else "None"
        say(
            f"Initializing a V1 LLM engine (v0.0-fake) with config: model={self.options.model!r}, "
            f"speculative_config={shown}, tokenizer={self.options.model!r}"
        )
        say("Starting to load model")
        say("Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.00s/it]")

    def die(self):
        while not self.dying():
            time.sleep(0.02)
        say("RuntimeError: the fake engine was told to die")
        self.stop()
        os._exit(1)

    def dying(self):
        if self.behaviour.get("die_when"):
            return Path(self.behaviour["die_when"]).exists()
        return time.monotonic() - BORN > self.behaviour["die_s"]

    def stop(self):
        for worker in self.workers:
            worker.kill()
            worker.wait()
        if self.behaviour.get("gpu") and not self.behaviour.get("gpu_stuck"):
            Path(self.behaviour["gpu"]).write_text("")
        return 0

    def healthy(self):
        return not self.behaviour.get("never_healthy") and time.monotonic() >= self.ready

    def metrics(self):
        if self.options.sglang or not self.speculative:
            return "# nothing is drafted\n"
        labels = '{engine="0",model_name="x"}'
        lines = [
            f"vllm:spec_decode_num_drafts_total{labels} {self.drafts}",
            f"vllm:spec_decode_num_draft_tokens_total{labels} {self.drafts * self.tokens}",
            f"vllm:spec_decode_num_accepted_tokens_total{labels} {self.accepted}",
        ]
        for position in range(self.tokens):
            share = self.accepted / max(self.tokens, 1)
            lines.append(
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{position}"}} {share}'
            )
        return "\n".join(lines) + "\n"

    def work(self, tokens):
        share = self.behaviour.get("accept", 0.5)
        with self.lock:
            self.requests += 1
            if self.speculative and self.profile == "eagle3":
                steps = max(1, round(tokens / (1 + share * self.tokens)))
                self.drafts += steps
                self.accepted += round(steps * self.tokens * share)
            return self.requests

    def server_info(self):
        states = [{"avg_spec_accept_length": 1 + self.accepted / self.drafts}] if self.drafts else [{}]
        return {
            "model_path": self.options.model,
            "served_model_name": self.model,
            "speculative_algorithm": self.behaviour.get("method", self.options.speculative_algorithm),
            "speculative_draft_model_path": self.options.speculative_draft_model_path,
            "speculative_num_steps": self.options.speculative_num_steps,
            "internal_states": states,
        }

    def states(self, number, tokens):
        """A safetensors file of zeros: hidden_states [tokens, layers, hidden] BF16, token_ids [tokens] I64."""
        config = json.loads((Path(self.options.model) / "config.json").read_text())
        layers = self.speculative["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"]
        shape = self.behaviour.get("shape") or [tokens, len(layers), config["hidden_size"]]
        size = 2 * shape[0] * shape[1] * shape[2]
        head = json.dumps(
            {
                "hidden_states": {"dtype": "BF16", "shape": shape, "data_offsets": [0, size]},
                "token_ids": {"dtype": "I64", "shape": [tokens], "data_offsets": [size, size + 8 * tokens]},
            }
        ).encode()
        folder = Path(self.options.kv_transfer_config["kv_connector_extra_config"]["shared_storage_path"])
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"fake-{number}.safetensors"
        path.write_bytes(struct.pack("<Q", len(head)) + head + bytes(size + 8 * tokens))
        return str(path)


def handler(engine):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            return

        def reply(self, status, value):
            text = value if isinstance(value, str) else json.dumps(value)
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            if self.path == "/health":
                return self.reply(200 if engine.healthy() else 503, "")
            if self.path == "/v1/models":
                return self.reply(200, {"data": [{"id": engine.model}]})
            if self.path == "/metrics":
                return self.reply(200, engine.metrics())
            if self.path == "/server_info" and engine.options.sglang:
                return self.reply(200, engine.server_info())
            return self.reply(404, {"error": "no such path"})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if body.get("model") != engine.model:
                return self.reply(404, {"error": f"the model {body.get('model')} does not exist"})
            tokens = int(body.get("max_tokens") or 16)
            number = engine.work(tokens)
            if number == engine.behaviour.get("die_after_requests"):
                say("RuntimeError: the fake engine was told to die")
                engine.stop()
                os._exit(1)
            usage = {"prompt_tokens": 9, "completion_tokens": tokens}
            if self.path == "/v1/chat/completions":
                if engine.behaviour.get("no_template"):
                    return self.reply(400, {"error": "no chat template is defined"})
                message = {"role": "assistant", "content": "words " * min(tokens, 8)}
                return self.reply(200, {"choices": [{"message": message, "finish_reason": "length"}], "usage": usage})
            answer = {"choices": [{"text": " words", "finish_reason": "length"}], "usage": usage}
            if engine.profile == "extract" and not engine.behaviour.get("no_states"):
                answer["kv_transfer_params"] = {"hidden_states_path": engine.states(number, 9)}
            return self.reply(200, answer)

    return Handler


if __name__ == "__main__":
    OPTIONS = arguments(sys.argv[2:])
    BEHAVIOUR = json.loads(Path(sys.argv[1]).read_text()) if Path(sys.argv[1]).exists() else {}
    Engine(OPTIONS, BEHAVIOUR.get(profile_of(OPTIONS), {})).start()

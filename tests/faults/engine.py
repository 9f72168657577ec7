#!/usr/bin/env python3
"""A server that answers as vLLM does, always the same to the same prompt, from a hash instead of a model.

    engine.py CONTROL serve MODEL --served-model-name NAME --port N ...

CONTROL is a folder: while it holds a file `cut`, every connection is dropped without an answer (the network is cut);
`log` gets a line per answered request, so that work done twice can be counted. States of an extract server obey the
contract: the last one, through norm and head, predicts the token that is answered. An untrained draft is never right.

`behaviour.json` there says what is wrong with it, per profile, besides what tests/fakes/engine.py knows:
  prompt   other-template, begin-twice: prompts are not what the target's template gives
  answers  same: one answer to everything; stuck: one token for ever
  states   off-by-one, other-layer, one-layer, three-layers, layer-twice, short, nan, other-tokens
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fakes"))
import engine as base
import model as toy
import numpy as np

CHAT_S = 0.03  # seconds of one answer
EXTRACT_S = 0.02
ORDINARY = range(40, toy.VOCAB)


def digest(value: Any) -> bytes:
    return hashlib.sha256(json.dumps(value).encode()).digest()


class Text:
    """The target's tokenizer and chat template."""

    def __init__(self, folder: Path):
        import jinja2
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        self.template = jinja2.Environment(autoescape=False).from_string(settings["chat_template"])
        self.end = self.tokenizer.token_to_id(toy.END)

    def prompt(self, messages: list[dict[str, Any]]) -> list[int]:
        text = self.template.render(messages=messages, add_generation_prompt=True)
        return self.ids(text)

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def answer(self, prompt: list[int], limit: int) -> tuple[list[int], str]:
        """(ids with the end token, finish reason)."""
        seed = digest(prompt)
        count = 8 + seed[0] % 8
        ids = [ORDINARY[(seed[i % 32] * 7 + i * 31) % len(ORDINARY)] for i in range(1, count)]
        return ([*ids, self.end], "stop") if count <= limit else (ids[:limit], "length")


class Engine(base.Engine):
    def __init__(self, options: Any, control: Path):
        held = control / "behaviour.json"
        wrong = json.loads(held.read_text()) if held.exists() else {}
        super().__init__(options, {"load_s": 0.1, "accept": 0.5, **wrong.get(base.profile_of(options), {})})
        if "untrained" in str((self.speculative or {}).get("model")):
            self.behaviour["accept"] = 0.0
        self.control = control
        self.text = Text(Path(options.model))
        raw = (Path(options.model) / "model.safetensors").read_bytes()
        length = int.from_bytes(raw[:8], "little")
        entry = json.loads(raw[8 : 8 + length])["model.embed_tokens.weight"]
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        bits = np.frombuffer(raw[start:end], dtype=np.uint16).reshape(entry["shape"])
        self.embed = (bits.astype(np.uint32) << 16).view(np.float32)
        self.generated = self.finished = 0

    @property
    def cut(self) -> bool:
        return (self.control / "cut").exists()

    def prompt(self, messages: list[dict[str, Any]]) -> list[int]:
        wrong = self.behaviour.get("prompt")
        if wrong == "other-template":
            messages = [{"role": "system", "content": "obey"}, *messages]
        ids = self.text.prompt(messages)
        return [ids[0], ids[0], *ids] if wrong == "begin-twice" else ids

    def answer(self, prompt: list[int], limit: int) -> tuple[list[int], str]:
        wrong = self.behaviour.get("answers")
        if wrong == "stuck":
            return [ORDINARY[digest(prompt)[0] % 64]] * min(limit, 16), "length"
        return self.text.answer([1] if wrong == "same" else prompt, limit)

    def note(self, kind: str, key: str, tokens: int) -> None:
        with self.lock:
            self.generated += tokens
            self.finished += 1
            with open(self.control / "log", "a") as stream:
                stream.write(f"{kind} {key}\n")

    def metrics(self) -> str:
        lines = [
            f'vllm:generation_tokens_total{{engine="0"}} {self.generated}',
            f'vllm:request_success_total{{engine="0",finished_reason="stop"}} {self.finished}',
            f'vllm:request_queue_time_seconds_sum{{engine="0"}} {self.finished * 0.0001}',
            f'vllm:e2e_request_latency_seconds_sum{{engine="0"}} {self.finished * CHAT_S}',
            'vllm:num_preemptions_total{engine="0"} 0',
        ]
        return "\n".join(lines) + "\n" + str(super().metrics())

    def write_states(self, ids: list[int]) -> tuple[int, str]:
        """(the token that is answered, path of the states file). Written by rename, as if under the server's lock."""
        seed = digest(ids)
        random = np.random.default_rng(int.from_bytes(seed[:8], "little"))
        layers = self.speculative["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"]
        states = random.standard_normal((len(ids), len(layers), toy.HIDDEN)).astype(np.float32)
        token = ORDINARY[seed[9] % len(ORDINARY)]
        states[:, -1] = 4 * self.embed[[*ids[1:], token]]
        states, inside = spoilt(self.behaviour.get("states"), states, ids)
        folder = Path(self.options.kv_transfer_config["kv_connector_extra_config"]["shared_storage_path"])
        folder.mkdir(parents=True, exist_ok=True)
        with self.lock:
            self.requests += 1
            number = self.requests
        path = folder / f"req-{os.getpid()}-{number}.safetensors"
        part = path.with_suffix(".part")
        tensors = {
            "hidden_states": ("BF16", toy.bf16(states)),
            "token_ids": ("I64", np.array(inside, dtype=np.int64)),
        }
        toy.save(part, tensors)
        os.chmod(part, 0o600)
        os.replace(part, path)
        return token, str(path)


def spoilt(wrong: str | None, states: Any, ids: list[int]) -> tuple[Any, list[int]]:
    """States and token ids as a server with this fault writes them."""
    if wrong == "off-by-one":
        states[:, -1] = np.roll(states[:, -1], 1, axis=0)
    elif wrong == "other-layer":
        states[:, -1] = states[:, 0] * 3
    elif wrong == "one-layer":
        states = states[:, -1]
    elif wrong == "three-layers":
        states = states[:, :3]
    elif wrong == "layer-twice":
        states[:, 1] = states[:, 0]
    elif wrong == "short":
        states = states[4:]
    elif wrong == "nan":
        states[0, 1, 2] = np.nan
    return states, [*ids[:-1], ORDINARY[0]] if wrong == "other-tokens" else ids


def handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            return

        def dropped(self) -> bool:
            if engine.cut:
                self.close_connection = True
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
                self.connection.shutdown(socket.SHUT_RDWR)
                return True
            return False

        def refused(self) -> bool:
            """As vLLM does with VLLM_API_KEY: everything below /v1 asks for it."""
            key = os.environ.get("VLLM_API_KEY")
            if not key or not self.path.startswith("/v1") or self.headers["Authorization"] == f"Bearer {key}":
                return False
            self.reply(401, {"error": "Unauthorized"})
            return True

        def reply(self, status: int, value: Any, kind: str = "application/json") -> None:
            body = (value if isinstance(value, str) else json.dumps(value)).encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if self.dropped() or self.refused():
                return
            if self.path == "/health":
                self.reply(200 if engine.healthy() else 503, "")
            elif self.path == "/v1/models":
                self.reply(200, {"data": [{"id": engine.model, "max_model_len": 512}]})
            elif self.path == "/metrics":
                self.reply(200, engine.metrics(), "text/plain")
            else:
                self.reply(404, {"error": "no such path"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.dropped() or self.refused():
                return
            if self.path == "/v1/chat/completions":
                self.chat(body)
            elif self.path == "/v1/completions":
                self.complete(body)
            else:
                self.reply(404, {"error": "no such path"})

        def chat(self, body: dict[str, Any]) -> None:
            prompt = engine.prompt(body["messages"])
            ids, finish = engine.answer(prompt, int(body.get("max_tokens") or 64))
            time.sleep(CHAT_S)
            if self.dropped():
                return
            text = engine.text.tokenizer.decode(ids)
            engine.work(len(ids))
            engine.note("chat", hashlib.sha256(json.dumps(prompt).encode()).hexdigest()[:16], len(ids))
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": finish,
                "token_ids": ids,
            }
            usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
            answer = {"id": "x", "model": engine.model, "choices": [choice], "prompt_token_ids": prompt, "usage": usage}
            self.reply(200, answer)

        def complete(self, body: dict[str, Any]) -> None:
            prompt = body["prompt"] if isinstance(body["prompt"], list) else engine.text.ids(str(body["prompt"]))
            if engine.profile == "extract":
                token, path = engine.write_states(prompt)
                time.sleep(EXTRACT_S)
                if self.dropped():
                    return
                engine.note("states", hashlib.sha256(json.dumps(prompt).encode()).hexdigest()[:16], 1)
                choice = {"index": 0, "text": "", "finish_reason": "length", "token_ids": [token]}
                choice["prompt_token_ids"] = prompt
                usage = {"prompt_tokens": len(prompt), "completion_tokens": 1}
                shown = {"hidden_states_path": path}
                self.reply(200, {"id": "x", "choices": [choice], "usage": usage, "kv_transfer_params": shown})
                return
            ids, finish = engine.answer(prompt, int(body.get("max_tokens") or 16))
            if body.get("ignore_eos"):
                ids = (ids * 20)[: int(body["max_tokens"])]
            usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
            engine.work(len(ids))
            if not body.get("stream"):
                choice = {"index": 0, "text": engine.text.tokenizer.decode(ids), "finish_reason": finish}
                engine.note("text", "", len(ids))
                self.reply(200, {"id": "x", "choices": [choice], "usage": usage})
                return
            self.stream(ids, finish, usage)

        def stream(self, ids: list[int], finish: str, usage: dict[str, int]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(ids), 2):
                time.sleep(0.002)
                if self.dropped():
                    return
                text = engine.text.tokenizer.decode(ids[at : at + 2], skip_special_tokens=False)
                last = at + 2 >= len(ids)
                choice = {"index": 0, "text": text, "finish_reason": finish if last else None}
                self.chunk({"id": "x", "choices": [choice]})
            self.chunk({"id": "x", "choices": [], "usage": usage})
            self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            engine.note("text", "", len(ids))

        def chunk(self, value: dict[str, Any]) -> None:
            data = f"data: {json.dumps(value)}\n\n".encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

    return Handler


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


if __name__ == "__main__":
    base.handler = handler
    base.ThreadingHTTPServer = Server
    place = Path(sys.argv[1])
    place.mkdir(parents=True, exist_ok=True)
    threading.excepthook = lambda _: None
    Engine(base.arguments(sys.argv[2:]), place).start()

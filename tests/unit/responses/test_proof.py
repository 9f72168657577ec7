"""Proof that an endpoint is the baseline, by what can be asked of it from anywhere."""

from __future__ import annotations

import http.server
import json
import threading

import pytest
import small_run
import toy
from harness import questions

from eyrie.core.errors import EyrieError, GateError
from eyrie.core.pipeline import Pipeline
from eyrie.responses import proof
from eyrie.tokens.template import Template
from eyrie.tokens.tokenizer import Tokenizer


class Peer:
    """Answers /v1/models, /metrics and /tokenize as told."""

    def __init__(self):
        self.models = [{"id": "toy", "root": "/far/models/FOLDER"}]
        self.metrics = "vllm:generation_tokens_total 5\n"
        self.tokens, self.tokenize_status = [], 200
        self.asked = []
        peer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def send(self, status, data):
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                data = json.dumps({"data": peer.models}).encode() if "models" in self.path else peer.metrics.encode()
                self.send(200, data)

            def do_POST(self):
                peer.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send(peer.tokenize_status, json.dumps({"tokens": peer.tokens}).encode())

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def peer(tmp_path, monkeypatch):
    """A peer that is the baseline, and the context that it is proven against."""
    small_run.serve_with(monkeypatch, [])
    pipeline = Pipeline(small_run.spec(tmp_path))
    small_run.ready(pipeline, questions(1))
    made = Peer()
    made.ctx = pipeline.context("responses")
    model = made.ctx.input("target").out
    made.models[0]["root"] = f"/far/models/{model.name}"
    made.tokens = Tokenizer.load(model).encode(Template.load(model).render(proof.PROBE, prompt=True))
    yield made
    made.server.shutdown()
    made.server.server_close()


def prove(peer, own="elsewhere", prove_own=lambda: None):
    proof.prover(peer.ctx, own, prove_own)(peer.url)


def refused(peer):
    with pytest.raises(GateError) as caught:
        prove(peer)
    return caught.value


def test_the_baseline_passes(peer):
    prove(peer)
    assert peer.asked[0]["messages"] == proof.PROBE


def test_the_own_host_is_proven_by_its_process_too(peer):
    called = []
    prove(peer, own=peer.url, prove_own=lambda: called.append("own"))
    assert called == ["own"]
    assert len(peer.asked) == 1


def test_another_model_is_named(peer):
    peer.models = [{"id": "other"}]
    assert "serves other, not toy" in refused(peer).what


def test_another_revision_of_the_model_is_named(peer):
    peer.models[0]["root"] = "/far/models/toy-000000000000"
    assert refused(peer).code == "wrong-revision"


def test_a_server_that_drafts_is_no_baseline(peer):
    peer.metrics += "vllm:spec_decode_num_drafts_total 0\n"
    assert refused(peer).code == "wrong-method"


def test_another_chat_template_is_found_by_its_tokens(peer):
    peer.tokens = [*peer.tokens[:5], 999, *peer.tokens[6:]]
    error = refused(peer)
    assert error.code == "template-differs"
    assert "token 5" in error.what


def test_a_server_without_a_template_is_refused(peer):
    peer.tokenize_status = 400
    assert refused(peer).code == "template-refused"


def test_a_server_without_tokenize_cannot_be_compared_and_passes(peer):
    peer.tokenize_status = 404
    prove(peer)


def test_declared_template_and_its_arguments_are_what_is_compared(peer):
    peer.ctx.settings.chat_template_kwargs = {"thinking": True}
    prove(peer)
    assert peer.asked[0]["chat_template_kwargs"] == {"thinking": True}
    peer.ctx.target.chat_template = toy.BRACKETS
    assert refused(peer).code == "template-differs"


def test_nobody_there_is_not_taken_for_a_stranger(peer):
    peer.server.shutdown()
    peer.server.server_close()
    with pytest.raises(EyrieError) as caught:
        prove(peer)
    assert not isinstance(caught.value, GateError)

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
    """Answers as told; engine: 'vllm', or 'sglang' with its own places for the same things."""

    def __init__(self):
        self.models = [{"id": "toy", "root": "/far/models/FOLDER"}]
        self.metrics = "vllm:generation_tokens_total 5\n"
        self.tokens, self.sampled, self.status = [], [7], 200
        self.engine, self.info = "vllm", None
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
                if "server_info" in self.path:
                    self.send(200 if peer.info is not None else 404, json.dumps(peer.info).encode())
                elif "models" in self.path:
                    self.send(200, json.dumps({"data": peer.models}).encode())
                else:
                    self.send(200, peer.metrics.encode())

            def do_POST(self):
                peer.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                choice = {"message": {"content": "x"}, "finish_reason": "length", "token_ids": peer.sampled}
                value = {"choices": [choice]}
                (choice if peer.engine == "sglang" else value)["prompt_token_ids"] = peer.tokens
                self.send(peer.status, json.dumps(value).encode())

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def engine():
    return "vllm"


@pytest.fixture
def peer(tmp_path, monkeypatch, engine):
    """A peer that is the baseline, and the context that it is proven against."""
    small_run.serve_with(monkeypatch, [])
    pipeline = Pipeline(small_run.spec(tmp_path, server={"engine": engine}))
    small_run.ready(pipeline, questions(1))
    made = Peer()
    made.ctx = pipeline.context("responses")
    model = made.ctx.input("target").out
    made.engine = engine
    if engine == "sglang":  # it gives the served name as root, and no counters that tell a draft
        made.models[0]["root"], made.metrics = "toy", "sglang:generation_tokens_total 5\n"
        made.info = {"model_path": f"/far/models/{model.name}", "speculative_algorithm": None}
    else:
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
    assert peer.asked[0]["return_token_ids"] is True
    assert peer.asked[0]["max_tokens"] == 1


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


def test_a_begin_of_text_that_is_added_twice_is_said_so(peer):
    peer.tokens = [peer.tokens[0], *peer.tokens]
    assert "two begin-of-text tokens" in refused(peer).what


def test_a_server_without_a_template_is_refused(peer):
    peer.status = 400
    assert refused(peer).code == "template-refused"


@pytest.mark.parametrize(("tokens", "sampled"), [(None, None), (None, [7]), ([1, 2], None)])
def test_a_server_that_gives_no_sampled_ids_is_refused_before_the_first_prompt(peer, tokens, sampled):
    peer.tokens, peer.sampled = tokens, sampled
    error = refused(peer)
    assert error.code == "no-token-ids"
    assert "return_token_ids" in error.what
    assert "eyrie_responses_regenerate: false" in error.todo


def test_a_server_that_fails_on_the_probe_is_ill_not_a_stranger(peer):
    peer.status = 500
    with pytest.raises(EyrieError) as caught:
        prove(peer)
    assert not isinstance(caught.value, GateError)


def test_a_template_that_cannot_render_the_probe_still_has_to_give_ids(peer):
    peer.ctx.target.chat_template = "{% if messages | length > 1 %}{{ raise_exception('one turn only') }}{% endif %}x"
    prove(peer)
    assert peer.asked[0]["messages"] == proof.PROBE[:1]
    peer.sampled = None
    assert refused(peer).code == "no-token-ids"


@pytest.mark.parametrize("engine", ["sglang"])
class TestSGLang:
    def test_ids_are_read_where_it_puts_them(self, peer):
        prove(peer)
        peer.tokens = [*peer.tokens[:5], 999, *peer.tokens[6:]]
        assert refused(peer).code == "template-differs"

    def test_an_older_one_without_ids_is_refused_with_the_reason(self, peer):
        peer.tokens = peer.sampled = None
        error = refused(peer)
        assert error.code == "no-token-ids"
        assert "SGLang" in error.todo

    @pytest.mark.parametrize("algorithm", ["EAGLE3", "NGRAM"])
    def test_one_that_drafts_is_no_baseline(self, peer, algorithm):
        peer.info["speculative_algorithm"] = algorithm
        assert refused(peer).code == "wrong-method"

    def test_one_that_does_not_say_whether_it_drafts_is_refused(self, peer):
        del peer.info["speculative_algorithm"]
        assert refused(peer).code == "method-unknown"
        peer.info = None
        assert refused(peer).code == "method-unknown"

    def test_another_revision_is_named_by_the_folder_it_was_started_with(self, peer):
        peer.info["model_path"] = "/far/models/toy-000000000000"
        assert refused(peer).code == "wrong-revision"


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

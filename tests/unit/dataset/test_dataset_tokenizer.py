"""Token limits where the target's tokenizer is code of its repository over a tiktoken vocabulary, as Kimi's is."""

from __future__ import annotations

import base64
import json
import subprocess
import sys

import pytest
from dataset_run import SRC, prompts, run, spec, summary
from dataset_toy import chat, jsonl

from eyrie.core import planner
from eyrie.core.errors import EyrieError, GateError
from eyrie.core.pipeline import Pipeline
from eyrie.dataset.limits import counter

pytestmark = pytest.mark.node

#: bytes, and what is merged of them
VOCABULARY = [bytes([value]) for value in range(256)] + [b"wo", b"rd", b"word", b" word"]
SPECIAL = {"<|im_user|>": len(VOCABULARY), "<|im_end|>": len(VOCABULARY) + 1}

CODE = """
import base64

import tiktoken
from transformers import PreTrainedTokenizer


class OwnTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "tiktoken.model"}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file, added_tokens_decoder=None, **kwargs):
        with open(vocab_file, encoding="ascii") as stream:
            ranks = {base64.b64decode(token): int(rank) for token, rank in map(str.split, stream)}
        special = {token.content: number for number, token in (added_tokens_decoder or {}).items()}
        self.model = tiktoken.Encoding("own", pat_str=r" ?[a-z]+|.", mergeable_ranks=ranks, special_tokens=special)
        self.texts = [token.decode("latin-1") for token in ranks] + list(special)
        self.ids = {text: number for number, text in enumerate(self.texts)}
        super().__init__(added_tokens_decoder=added_tokens_decoder, **kwargs)

    @property
    def vocab_size(self):
        return self.model.n_vocab

    def get_vocab(self):
        return dict(self.ids)

    def _tokenize(self, text, **kwargs):
        return [self.texts[number] for number in self.model.encode(text, allowed_special="all")]

    def _convert_token_to_id(self, token):
        return self.ids[token]

    def _convert_id_to_token(self, index):
        return self.texts[index]

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens).encode("latin-1").decode("utf-8", "replace")
"""


def write_tokenizer(folder, code: str = CODE) -> None:
    """Take the place of a folder's tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").unlink(missing_ok=True)
    (folder / "tokenization_own.py").write_text(code)
    ranked = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(VOCABULARY)]
    (folder / "tiktoken.model").write_text("".join(ranked))
    added = {str(number): {"content": text, "special": True} for text, number in SPECIAL.items()}
    config = {
        "tokenizer_class": "OwnTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]},
        "added_tokens_decoder": added,
        "chat_template": "{{ messages }}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    """Where transformers keeps the code that it was told to run."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))


def limited(tmp_path, trusted: bool, code: str = CODE):
    """A run over rows of 2, 60 and 2,000 tokens with a limit of 100."""
    rows = [chat("hi", "a"), chat("word" + " word" * 59, "b"), chat("word" + " word" * 1999, "c")]
    registry = {
        name: {"kind": "local", "adapter": "messages", "path": str(jsonl(tmp_path / f"{name}.jsonl", rows))}
        for name in ("one", "two")
    }
    value = spec(tmp_path / "root", registry, max_prompt_tokens=100, dedup="none")
    write_tokenizer(tmp_path / "model", code)
    value["target"]["trust_remote_code"] = trusted
    return value


def test_it_counts_when_its_code_may_be_run(tmp_path):
    ctx = run(limited(tmp_path, trusted=True))
    assert sorted(map(len, prompts(ctx))) == [2, 2, 299, 299]
    for found in summary(ctx)["sources"].values():
        assert (found["kept"], found["dropped"]) == (2, {"prompt_too_long": 1})
    assert {"tiktoken", "transformers"} <= set(ctx.identity["tools"])


def test_without_the_explicit_choice_it_is_refused_before_the_work(tmp_path):
    value = limited(tmp_path, trusted=False, code="raise SystemExit('this code was run')\n")
    with pytest.raises(GateError, match="not run unasked") as caught:
        run(value)
    assert "eyrie_target_trust_remote_code: true" in str(caught.value)
    plan = planner.plan(Pipeline(value).context("dataset"))
    assert [gate["ok"] for gate in plan["gates"] if gate["name"] == "tokenizer"] == [False]
    value["stages"]["dataset"] |= {"max_prompt_tokens": 0}
    assert len(prompts(run(value))) == 6, "without limits no tokenizer is needed"


def test_a_counter_refuses_code_too(tmp_path):
    write_tokenizer(tmp_path / "model", "raise SystemExit('this code was run')\n")
    with pytest.raises(EyrieError) as caught:
        counter(str(tmp_path / "model"))
    assert caught.value.code == "needs-trust-remote-code"
    with pytest.raises(EyrieError) as caught:
        counter(str(tmp_path / "nowhere"))
    assert caught.value.code == "tokenizer-missing"


def test_a_counter_counts_what_the_vocabulary_holds(tmp_path):
    """In an interpreter of its own: transformers reads where its cache is when it is imported."""
    write_tokenizer(tmp_path / "model")
    script = (
        "import sys\nfrom eyrie.dataset.limits import counter\n"
        "count = counter(sys.argv[1], trust_remote_code=True)\n"
        "print(count(['word', ' word word', '<|im_end|>', '\\u00fc', '']))\n"
    )
    environment = {"PYTHONPATH": str(SRC), "HF_MODULES_CACHE": str(tmp_path / "modules"), "HOME": str(tmp_path)}
    argv = [sys.executable, "-c", script, str(tmp_path / "model")]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "[1, 2, 1, 2, 0]", done.stderr[-2000:]

"""What the engines say of themselves: speculation in force, progress of a start."""

import pytest

from eyrie.core.errors import EyrieError, SpecError
from eyrie.serve import engines, identity, launch, switch
from eyrie.serve.engines.base import InForce

LINE = (
    "(EngineCore pid=9) INFO 11-30 [core.py:134] Initializing a V1 LLM engine (v0.32.0) with config: "
    "model='/m/t', speculative_config={}, tokenizer='/m/t', skip_tokenizer_init=False"
)


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        ("None", InForce("", source="engine log")),
        (
            "SpeculativeConfig(method='eagle3', model='/m/draft, 2', num_spec_tokens=3)",
            InForce("eagle3", "/m/draft, 2", 3, "engine log"),
        ),
        (
            "SpeculativeConfig(method='extract_hidden_states', model=None, num_spec_tokens=1)",
            InForce("extract_hidden_states", "", 1, "engine log"),
        ),
        ("SpeculativeConfig(method='ngram', model=None, num_spec_tokens=3)", InForce("ngram", "", 3, "engine log")),
    ],
)
def test_vllm_states_its_speculation(stated, found):
    assert engines.get("vllm").in_force("", ["noise", LINE.format(stated), "more noise"]) == found


def test_a_log_that_says_nothing_is_not_taken_for_a_baseline():
    assert engines.get("vllm").in_force("", ["noise"]).method is None


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["Starting to load model /m/t..."], "loading the model"),
        (["Loading safetensors checkpoint shards:  53% Completed | 34/64 [01:02<00:50]"], "loading shard 34/64"),
        (["Capturing CUDA graphs (decode, FULL):  50%|#####     | 33/67 [00:02<00:02]"], "capturing graphs 33/67"),
        (["Starting to load model", "something else"], "loading the model"),
        (["nothing known"], ""),
        ([], ""),
    ],
)
def test_vllm_progress(lines, text):
    assert engines.get("vllm").loading(lines) == text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("[2026-11-30 10:00:00] Load weight begin. avail mem=93.4 GB", "loading the model"),
        ("[2026-11-30 10:00:00] Capture cuda graph begin. This can take up to several minutes.", "capturing graphs"),
        ("[2026-11-30 10:00:00] The server is fired up and ready to roll!", "ready"),
    ],
)
def test_sglang_progress(line, text):
    assert engines.get("sglang").loading([line]) == text


@pytest.mark.node
def test_sglang_serves_and_is_proven(run):
    it = run(engine="sglang", args={"tp_size": 1, "disable_radix_cache": True, "disable_cuda_graph": False})
    document = launch.document(it.pipeline, "eagle3")
    argv = document["argv"]
    assert argv[argv.index("--speculative-algorithm") + 1] == "EAGLE3"
    assert argv[argv.index("--speculative-num-draft-tokens") + 1] == "4"
    assert "--disable-radix-cache" in argv
    assert not [word for word in argv if word.startswith("--no-")]
    assert it.ensure("baseline").started
    assert identity.prove(it.pipeline, "baseline")["proof"] == "/server_info"
    assert it.ensure("eagle3").started
    proof = identity.prove(it.pipeline, "eagle3")
    assert (proof["method"], proof["num_speculative_tokens"]) == ("eagle3", 3)


@pytest.mark.node
@pytest.mark.parametrize(
    ("behaviour", "code"), [({"method": "EAGLE"}, "wrong-method"), ({"accept": 0.0}, "no-acceptance")]
)
def test_sglang_with_the_silent_mistakes(run, behaviour, code):
    it = run(engine="sglang")
    it.ensure("baseline")
    it.behave(eagle3=behaviour)
    with pytest.raises(EyrieError) as caught:
        it.ensure("eagle3")
    assert caught.value.code == code
    assert identity.prove(it.pipeline, "baseline")["method"] == ""


def test_sglang_cannot_capture(run):
    with pytest.raises(SpecError) as caught:
        switch.plan(run(engine="sglang").pipeline, "extract")
    assert caught.value.code == "engine-cannot-extract"

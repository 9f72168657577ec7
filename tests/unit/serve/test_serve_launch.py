"""Launch documents: arguments as data, what is computed, what is refused, what never enters."""

import json
import os
from pathlib import Path

import pytest

from eyrie.core.errors import EyrieError, SpecError
from eyrie.serve import endpoints, execute, flags, launch
from eyrie.serve import settings as server_settings


def option(document, name):
    argv = document["argv"]
    return argv[argv.index(name) + 1]


def test_data_becomes_words():
    args = {
        "tensor_parallel_size": 8,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "gpu_memory_utilization": 0.9,
        "attention_config": {"backend": "it's 100% $x"},
        "middleware": ["a", "b"],
        "nothing": None,
    }
    found = flags.words(args)
    assert found[:4] == ["--tensor-parallel-size", "8", "--enforce-eager", "--no-enable-prefix-caching"]
    assert found[4:7] == ["--gpu-memory-utilization", "0.9", "--attention-config"]
    assert json.loads(found[7]) == {"backend": "it's 100% $x"}
    assert found[8:] == ["--middleware", "a", "b"]
    with pytest.raises(SpecError):
        flags.words({"x": object()})


def test_the_three_profiles(run):
    it = run(command=[])
    baseline = launch.document(it.pipeline, "baseline")
    assert "--speculative-config" not in baseline["argv"]
    assert option(baseline, "--served-model-name") == "toy"
    assert option(baseline, "--max-model-len") == "128"
    extract = launch.document(it.pipeline, "extract")
    config = json.loads(option(extract, "--speculative-config"))
    assert config["method"] == "extract_hidden_states"
    assert config["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5, 8]
    connector = json.loads(option(extract, "--kv-transfer-config"))
    assert connector["kv_connector_module_path"] == "eyrie.serve.cpu_connector"
    assert connector["kv_connector_extra_config"]["shared_storage_path"] == str(it.root / "server" / "extract")
    assert {"--no-enable-prefix-caching", "--no-enable-chunked-prefill"} <= set(extract["argv"])
    eagle3 = launch.document(it.pipeline, "eagle3")
    assert json.loads(option(eagle3, "--speculative-config")) == {
        "method": "eagle3",
        "model": str(it.root / "draft" / "checkpoint"),
        "num_speculative_tokens": 3,
    }


def test_on_a_gpu_the_stock_connector_and_device_order(run):
    it = run(command=[], device="cuda")
    extract = launch.document(it.pipeline, "extract")
    assert "kv_connector_module_path" not in option(extract, "--kv-transfer-config")
    assert extract["environment"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "LD_PRELOAD" not in extract["environment"]


def test_settings_go_over_what_is_computed_and_profiles_over_what_is_common(run):
    it = run(
        command=[],
        args={"max_num_seqs": 64, "max_model_len": 99},
        environment={"A": "1", "B": "1"},
        profiles={"eagle3": {"args": {"max_num_seqs": 8}, "environment": {"B": "2"}, "num_speculative_tokens": 5,
                             "speculative": {"draft_tensor_parallel_size": 1}}},
    )  # fmt: skip
    found = launch.document(it.pipeline, "eagle3")
    assert option(found, "--max-num-seqs") == "8"
    assert option(found, "--max-model-len") == "99"
    assert (found["environment"]["A"], found["environment"]["B"]) == ("1", "2")
    config = json.loads(option(found, "--speculative-config"))
    assert (config["num_speculative_tokens"], config["draft_tensor_parallel_size"]) == (5, 1)
    variant = launch.document(it.pipeline, "eagle3", {"num_speculative_tokens": 2, "args": {"max_num_seqs": 1}})
    assert option(variant, "--max-num-seqs") == "1"
    assert variant["num_speculative_tokens"] == 2
    assert (found["min_acceptance"], variant["min_acceptance"]) == (1.05, 0.0)


def test_caches_lie_below_the_root_and_the_hub_is_off(run):
    found = launch.document(run().pipeline, "baseline")["environment"]
    root = str(run().root)
    assert all(found[name].startswith(root) for name in ("HOME", "HF_HOME", "TMPDIR", "VLLM_CACHE_ROOT"))
    assert found["HF_HUB_OFFLINE"] == "1"


def test_the_fingerprint_follows_every_word_and_nothing_else(run):
    it = run()
    first = launch.document(it.pipeline, "baseline")
    assert launch.document(it.pipeline, "baseline") == first
    it.pipeline.server["args"] = {"seed": 1}
    second = launch.document(it.pipeline, "baseline")
    assert first["fingerprint"] != second["fingerprint"]
    it.pipeline.server.pop("args")
    it.pipeline.server["start_timeout_s"] = 7  # how long we wait changes no server
    assert launch.document(it.pipeline, "baseline")["fingerprint"] == first["fingerprint"]


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"args": {"port": 1}}, "server.args.port is set by Eyrie"),
        ({"args": {"speculative-config": {}}}, "is set by Eyrie"),
        ({"args": {"--max-num-seqs": 1}}, "is not the name of an argument"),
        ({"profiles": {"extract": {"args": {"served_model_name": "x"}}}}, "server.profiles.extract.args"),
        ({"environment": {"HF_TOKEN": "x"}}, "HF_TOKEN: a secret must not stand"),
        ({"args": {"api_key": "x"}}, "secret"),
        ({"port": 0}, "port 0"),
        ({"stop_timeout_s": 0}, "stop_timeout_s"),
        ({"profiles": {"eagle3": {"num_speculative_tokens": 0}}}, "at least 1"),
        ({"prot": 1}, "Did you mean 'port'?"),
        ({"engine": "vlm"}, "vllm"),
    ],
)
def test_settings_that_are_refused(run, server, said):
    it = run()
    it.pipeline.server.update(server)
    with pytest.raises(SpecError) as caught:
        server_settings.load(it.pipeline)
    assert said in str(caught.value)


def test_unknown_profiles_and_overrides(run):
    it = run()
    for name, overrides in (("basline", None), ("eagle3", {"drft": 1})):
        with pytest.raises(SpecError):
            launch.document(it.pipeline, name, overrides)
    with pytest.raises(SpecError) as caught:
        launch.document(it.pipeline, "eagle3", {"draft": None})
    assert caught.value.code == "no-draft"


def test_endpoints_own_first(run):
    it = run(endpoints=["http://other:8000/", "http://third:8000"])
    own = f"http://127.0.0.1:{it.port}"
    assert endpoints(it.pipeline, "baseline") == [own, "http://other:8000", "http://third:8000"]
    it.pipeline.server.update(host="0.0.0.0", endpoints=[own])
    assert endpoints(it.pipeline, "baseline") == [own]
    with pytest.raises(SpecError):
        endpoints(it.pipeline, "nonsense")


def test_secrets_are_read_at_start_and_stand_nowhere_else(run, tmp_path, monkeypatch):
    secret = tmp_path / "key"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    it = run(secrets={"VLLM_API_KEY": str(secret)})
    found = launch.document(it.pipeline, "baseline")
    assert "s3cret" not in json.dumps(found)
    assert execute._environment(it.root, found)["VLLM_API_KEY"] == "s3cret"
    secret.chmod(0o644)
    with pytest.raises(EyrieError) as caught:
        execute.read_secret("VLLM_API_KEY", secret)
    assert caught.value.code == "secret-open"
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "vllm_api_key").write_text("from systemd\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    assert execute.read_secret("VLLM_API_KEY", Path("/nonexistent")) == "from systemd"


def test_the_servers_own_key_is_sent_by_every_client_and_held_by_the_process_alone(run, tmp_path, monkeypatch):
    from eyrie.serve import http, key

    monkeypatch.delenv(key.HELD, raising=False)
    secret = tmp_path / "key"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    assert key.headers() == {}
    key.hold(run(secrets={"VLLM_API_KEY": str(secret)}).pipeline)
    assert key.headers() == {"Authorization": "Bearer s3cret"}
    assert key.for_openai_clients() == {"OPENAI_API_KEY": "s3cret"}
    sent = []

    class Opener:
        def open(self, request, timeout):
            sent.append(request.unredirected_hdrs)
            raise OSError("nobody")

    monkeypatch.setattr(http, "_OPENER", Opener())
    with pytest.raises(http.Unreachable) as caught:
        http.get("http://127.0.0.1:9", "/v1/models")
    assert sent == [{"Authorization": "Bearer s3cret"}]
    assert "s3cret" not in str(caught.value)
    key.hold(run().pipeline)
    assert key.headers() == {}
    secret.chmod(0o644)
    with pytest.raises(EyrieError, match="open to others"):
        key.hold(run(secrets={"VLLM_API_KEY": str(secret)}).pipeline)


def test_a_servers_environment_is_declared_not_inherited(run, monkeypatch):
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("LANG", "C.UTF-8")
    it = run()
    found = execute._environment(it.root, launch.document(it.pipeline, "baseline"))
    assert "NCCL_P2P_DISABLE" not in found
    assert "CUDA_VISIBLE_DEVICES" not in found
    assert found["LANG"] == "C.UTF-8"
    assert found["VLLM_CPU_OMP_THREADS_BIND"] == ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))

"""A target that several hosts hold: what a server is told, who is let in, when a start is refused."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from eyrie.core import spec
from eyrie.core.errors import EyrieError, GateError, SpecError
from eyrie.serve import cluster, cluster_look, cpu_platform, launch
from eyrie.serve import settings as server_settings
from eyrie.serve.settings import Ray, ServerSettings

NODES = ["10.0.0.1", "10.0.0.2"]
SECRET = "ab12" * 16


def settings(tmp_path: Path, **values: Any) -> Ray:
    token = tmp_path / "ray_token"
    if not token.exists():
        token.touch(0o600)
        token.write_text(SECRET + "\n")
    return spec.load(Ray, {"nodes": NODES, "own": NODES[0], "token": str(token), **values}, "server.ray")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"own": "10.0.0.9"}, "'10.0.0.9' is not among the nodes 10.0.0.1, 10.0.0.2"),
        ({"nodes": ["10.0.0.1", "10.0.0.1"]}, "name an address twice"),
        ({"token": ""}, "whoever reaches a cluster without a token runs code in it"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        settings(tmp_path, **values)


@pytest.mark.parametrize("nodes", [[], ["10.0.0.1"]])
def test_one_host_alone_needs_nothing_of_it(run: Any, nodes: list[str]) -> None:
    it = run(ray={"nodes": nodes})
    document = launch.document(it.pipeline, "baseline")
    assert "distributed_executor_backend" not in document["args"]
    assert not [name for name in {**document["environment"], **document["secrets"]} if name.startswith("RAY_")]


def test_the_server_is_told_of_the_cluster_and_not_of_its_secret(run: Any, tmp_path: Path) -> None:
    ray = settings(tmp_path)
    it = run(ray={"nodes": NODES, "own": NODES[0], "token": ray.token}, args={"pipeline_parallel_size": 2})
    document = launch.document(it.pipeline, "baseline")
    argv = document["argv"]
    assert argv[argv.index("--distributed-executor-backend") + 1] == "ray"
    assert document["environment"]["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert document["environment"]["VLLM_HOST_IP"] == "10.0.0.1"
    assert document["environment"]["RAY_AUTH_MODE"] == "token"
    assert document["secrets"]["RAY_AUTH_TOKEN"] == ray.token
    assert SECRET not in json.dumps(document)


def test_names_of_hosts_become_the_numbers_that_ray_knows_them_by(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_settings, "number_of", {"alpha": "127.0.1.1", "beta": "10.0.0.2"}.__getitem__)
    monkeypatch.setattr(server_settings, "own_on_the_way_to", {"beta": "10.0.0.1"}.__getitem__)
    named = settings(tmp_path, nodes=["alpha", "beta"], own="alpha")
    found = named.numbered()
    assert (found.nodes, found.own, found.address) == (["10.0.0.1", "10.0.0.2"], "10.0.0.1", "10.0.0.1:6379")
    document = launch.document(run(ray=vars(named)).pipeline, "baseline")
    assert document["environment"]["VLLM_HOST_IP"] == "10.0.0.1"
    plain = settings(tmp_path)
    assert plain.numbered() is plain


def test_another_engine_has_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="only vllm serves over several hosts"):
        spec.load(ServerSettings, {"engine": "sglang", "ray": vars(settings(tmp_path))}, "server")


def told(monkeypatch: pytest.MonkeyPatch, nodes: dict[str, float], free: float = 0.0) -> None:
    monkeypatch.setattr(cluster, "look", lambda ray: cluster.Cluster(nodes, free))


@pytest.mark.parametrize(
    ("nodes", "args", "code"),
    [
        ({"10.0.0.1": 8.0, "10.0.0.2": 8.0}, {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, None),
        ({"10.0.0.1": 8.0, "10.0.0.2": 8.0, "10.0.0.3": 8.0}, {"tensor_parallel_size": 16}, None),
        ({"10.0.0.1": 8.0}, {"tensor_parallel_size": 8}, "ray-node-missing"),
        ({"10.0.0.1": 8.0, "10.0.0.2": 4.0}, {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, "ray-too-small"),
        ({"10.0.0.1": 0.0, "10.0.0.2": 0.0}, {}, "ray-too-small"),
    ],
)
def test_a_start_wants_all_hosts_and_their_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: dict[str, float], args: dict[str, Any], code: str | None
) -> None:
    told(monkeypatch, nodes)
    if code is None:
        cluster.check(settings(tmp_path), args)
        return
    with pytest.raises(GateError) as caught:
        cluster.check(settings(tmp_path), args)
    assert caught.value.code == code
    assert caught.value.todo


def test_the_next_start_waits_for_the_gpus_of_all_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([13.0, 15.0, 16.0])
    monkeypatch.setattr(cluster, "look", lambda ray: cluster.Cluster({"a": 8.0, "b": 8.0}, next(free)))
    monkeypatch.setattr(cluster.time, "sleep", lambda seconds: None)
    notes: list[str] = []
    cluster.wait_free(settings(tmp_path), 60, notes.append)
    assert notes == ["waiting for 3 GPUs of the cluster", "waiting for 1 GPUs of the cluster"]
    told(monkeypatch, {"a": 8.0}, free=7.0)
    with pytest.raises(EyrieError, match="1 GPUs of the Ray cluster are not free after -1 s"):
        cluster.wait_free(settings(tmp_path), -1, notes.append)


def test_a_look_hands_the_secret_over_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def run(argv: list[str], **options: Any) -> Any:
        asked.update(argv=argv, env=options["env"])
        return subprocess.CompletedProcess(argv, asked.get("rc", 0), asked.get("out", ""), "Traceback\nno token\n")

    monkeypatch.setattr(cluster.subprocess, "run", run)
    asked["out"] = 'noise\n{"nodes": [{"address": "10.0.0.1", "gpus": 8}], "free": 6.0}\n'
    assert cluster.look(settings(tmp_path)) == cluster.Cluster({"10.0.0.1": 8.0}, 6.0)
    assert SECRET not in " ".join(asked["argv"])
    assert asked["env"]["RAY_AUTH_TOKEN"] == SECRET
    asked["rc"] = 1
    with pytest.raises(EyrieError, match="cannot be reached: no token"):
        cluster.look(settings(tmp_path))


def test_a_node_that_ray_still_believes_in_does_not_count() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        node = {"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": listener.getsockname()[1]}
        assert cluster_look.answers(node)
    assert not cluster_look.answers(node)


@pytest.mark.parametrize("own", NODES)
def test_a_host_becomes_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    ray = settings(tmp_path, own=own, seats=2)
    place = cluster.document_path(tmp_path)
    place.parent.mkdir()
    place.write_text(json.dumps(vars(ray)))
    became: dict[str, Any] = {}
    monkeypatch.setattr(os, "execvpe", lambda file, argv, env: became.update(argv=argv, env=env))
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody")
    cluster.become(tmp_path)
    words = " ".join(became["argv"])
    assert "ray start --block" in words
    assert f"--node-ip-address {own}" in words
    assert "--num-gpus 2" in words
    assert ("--head --port 6379" in words) == (own == NODES[0])
    assert ("--address 10.0.0.1:6379" in words) == (own != NODES[0])
    assert SECRET not in words
    assert became["env"]["RAY_AUTH_TOKEN"] == SECRET
    assert became["env"]["VLLM_HOST_IP"] == own
    assert "HF_TOKEN" not in became["env"]
    assert "RAY_ADDRESS" not in became["env"]


def test_a_host_without_its_document_says_so(tmp_path: Path) -> None:
    with pytest.raises(EyrieError, match=r"there is no .*ray\.json"):
        cluster.become(tmp_path)


def test_a_cpu_host_offers_seats_only_where_they_are_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(cpu_platform.SEATS, raising=False)
    assert cpu_platform.plugin() is None
    assert cpu_platform.SEATS not in cluster.environment(settings(tmp_path))
    monkeypatch.setenv(cpu_platform.SEATS, cluster.environment(settings(tmp_path, seats=2))[cpu_platform.SEATS])
    assert cpu_platform.plugin() == "eyrie.serve.cpu_platform.SeatedCpuPlatform"


@pytest.mark.node
def test_the_seated_platform_is_vllms_own_with_a_place_for_ray() -> None:
    from vllm.platforms.cpu import CpuPlatform

    assert issubclass(cpu_platform.SeatedCpuPlatform, CpuPlatform)
    assert cpu_platform.SeatedCpuPlatform.ray_device_key == "GPU"

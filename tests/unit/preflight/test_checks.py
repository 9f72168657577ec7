"""Single checks: limits, boundaries, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.eyrie.preflight import fabric, gpus, machine, plan, software

from tests.unit.preflight.conftest import RecordedHost, spec_of

PYTHON = '{"version": [3, 11, 7], "executable": "/usr/bin/python3.11", "venv": true}'


def stage(name: str, size: float = 0, seconds: float = 0, done: bool = False, **more: Any) -> dict[str, Any]:
    return {"stage": name, "up_to_date": done, "forecast": {"bytes": size, "seconds": seconds}, **more}


def levels(found: list[dict[str, str]]) -> list[str]:
    return [item["level"] for item in found]


# disk


def test_disk_forecast_and_reserve_against_free_space(context: Any) -> None:
    plans = [stage("hidden_states", 11e12), stage("draft", 1e9), stage("responses", 5e12, done=True)]
    known = context(expect={"disk_reserve_bytes": 1e12}, plans=plans)
    space = {"total": 20e12, "inodes": 10**9}
    fits = RecordedHost(space={**space, "free": 12.1e12}, files={"/data/eyrie/venv/bin/eyrie": "x"})
    short = RecordedHost(space={**space, "free": 11.9e12}, files={"/data/eyrie/venv/bin/eyrie": "x"})
    assert machine.disk(fits, known) == []
    (found,) = machine.disk(short, known)
    assert "11.0 TB" in found["what"]
    assert "11.9 TB free" in found["what"]
    assert "hidden_states, 11.0 TB" in found["why"]


def test_the_environment_counts_only_where_it_is_missing(context: Any) -> None:
    known = context(expect={"disk_reserve_bytes": 0}, plans=[])
    space = {"total": 20e12, "free": 1e10, "inodes": None}
    assert levels(machine.disk(RecordedHost(space=space), known)) == ["error"]
    assert machine.disk(RecordedHost(space=space, files={"/data/eyrie/venv/bin/eyrie": "x"}), known) == []


def test_inodes_run_out_before_bytes(context: Any) -> None:
    known = context(plans=[stage("hidden_states", 1e12)])
    few = RecordedHost(space={"total": 2e13, "free": 1.9e13, "inodes": 100_000})
    assert [item["check"] for item in machine.disk(few, known)] == ["inodes"]


@pytest.mark.parametrize(("speed", "level"), [(5e8, "info"), (1e8, "warning")])
def test_disk_speed_is_measured(context: Any, speed: float, level: str) -> None:
    known = context(expect={"disk_write_bytes_s": 4.2e8}, plans=[stage("hidden_states", 1)])
    assert levels(machine.disk_speed(RecordedHost(write_speed=speed), known)) == [level]


def test_disk_speed_is_not_measured_in_check_mode_or_without_need(context: Any) -> None:
    slow = RecordedHost(write_speed=1.0)
    assert machine.disk_speed(slow, context(plans=[stage("draft", 1)], check_mode=True)) == []
    assert machine.disk_speed(slow, context(plans=[stage("draft", 0, done=True)])) == []


# memory, limits


def test_a_container_s_64_mb_of_shared_memory(context: Any) -> None:
    small = RecordedHost(shm={"total": 64 << 20, "free": 64 << 20, "inodes": 1})
    (found,) = machine.shared_memory(small, context())
    assert "67.1 MB" in found["what"]
    assert "--shm-size" in found["cure"]
    assert machine.shared_memory(RecordedHost(), context()) == []
    full = RecordedHost(shm={"total": 64e9, "free": 1e9, "inodes": 1})
    assert levels(machine.shared_memory(full, context())) == ["error"]


def test_memory_is_what_the_control_group_leaves(context: Any) -> None:
    known = context(expect={"memory_bytes": 8e9}, plans=[stage("draft", 1)])
    roomy = {"/proc/meminfo": "MemAvailable:   100000000 kB\n"}
    assert machine.memory(RecordedHost(files=roomy), known) == []
    tight = {**roomy, "/sys/fs/cgroup/memory.max": "4000000000\n", "/sys/fs/cgroup/memory.current": "1000000000\n"}
    (found,) = machine.memory(RecordedHost(files=tight), known)
    assert "3.0 GB of memory are free" in found["what"]
    unlimited = {**roomy, "/sys/fs/cgroup/memory.max": "max\n"}
    assert machine.memory(RecordedHost(files=unlimited), known) == []
    old = {
        **roomy,
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": "5",
    }
    assert machine.memory(RecordedHost(files=old), known) == []


@pytest.mark.parametrize(
    ("limit", "found"),
    [([65536, 65536], []), ([1024, 1048576], ["warning"]), ([1024, 4096], ["error"]), ([None, None], [])],
)
def test_open_files(context: Any, limit: list[int | None], found: list[str]) -> None:
    host = RecordedHost(limits={"NOFILE": limit, "MEMLOCK": [None, None]})
    assert levels(machine.limits(host, context(expect={"nofile": 65536}))) == found


def test_locked_memory(context: Any) -> None:
    host = RecordedHost(limits={"NOFILE": [None, None], "MEMLOCK": [65536, 65536]})
    assert [item["check"] for item in machine.limits(host, context())] == ["memlock"]


# port, clock


def test_a_stranger_on_the_port_is_named_and_ours_is_fine(context: Any) -> None:
    ours = (7, "python vllm serve", ["PATH=/bin", "EYRIE_SERVER=/data/eyrie:baseline"])
    other_root = (8, "python vllm serve", ["EYRIE_SERVER=/data/eyrie2:baseline"])
    stranger = (9, "nginx: master process", [])
    assert machine.port(RecordedHost(ports=[]), context(plans=[stage("draft", 1)])) == []
    assert machine.port(RecordedHost(ports=[ours]), context(plans=[stage("draft", 1)])) == []
    assert "pid 8" in machine.port(RecordedHost(ports=[other_root]), context(plans=[stage("draft", 1)]))[0]["what"]
    assert machine.port(RecordedHost(ports=[stranger]), context(plans=[stage("draft", done=True)])) == []
    (found,) = machine.port(RecordedHost(ports=[stranger]), context(plans=[stage("draft", 1)]))
    assert found["level"] == "error"
    assert "pid 9: nginx" in found["what"]


@pytest.mark.parametrize(("skew", "words"), [(0, ""), (100, ""), (400, "400 s ahead of"), (-400, "400 s behind")])
def test_clock(context: Any, skew: int, words: str) -> None:
    found = machine.clock(RecordedHost(now=1_800_000_000 + skew), context(controller_time=1_800_000_000))
    assert (words in found[0]["what"]) if words else found == []


# the declared model and servers


@pytest.mark.parametrize(
    ("layers", "level"),
    [
        ([2, 30, 58], []),
        ([2, 30, 61], ["error"]),
        ([58, 30, 2], ["error"]),
        ([2, 2, 58], ["error"]),
        ([], ["error"]),
        ([2, 58], ["warning"]),
    ],
)
def test_layer_ids(context: Any, layers: list[int], level: list[str]) -> None:
    spec = spec_of()
    spec["target"]["aux_layers"] = layers
    assert levels(plan.layers(RecordedHost(), context(spec=spec))) == level


def test_a_tensor_parallel_size_that_does_not_divide_the_heads(context: Any) -> None:
    spec = spec_of()
    spec["server"]["args"]["tensor_parallel_size"] = 6
    found = plan.parallel(RecordedHost(), context(spec=spec))
    assert levels(found) == ["error", "warning"]
    assert "6 does not divide the target's 64 attention heads" in found[0]["what"]


def test_one_profile_s_own_size_is_looked_at_too(context: Any) -> None:
    spec = spec_of()
    spec["server"]["profiles"]["eagle3"]["args"]["tensor_parallel_size"] = 16
    (found,) = plan.parallel(RecordedHost(), context(spec=spec))
    assert "server.profiles.eagle3 wants 16 GPUs, the profile has 8" in found["what"]
    assert plan.parallel(RecordedHost(), context(spec=_with(spec, nodes=["10.0.0.1", "10.0.0.2"]))) == []
    spec["server"]["profiles"]["eagle3"]["args"]["nnodes"] = 2
    assert plan.parallel(RecordedHost(), context(spec=spec)) == []


def _with(spec: dict[str, Any], **ray: Any) -> dict[str, Any]:
    return {**spec, "server": {**spec["server"], "ray": ray}}


def test_the_hub_is_tried_only_when_the_model_must_come_from_it(context: Any) -> None:
    away = RecordedHost(unreachable={"huggingface.co:443": "Name or service not known"})
    needed = context(plans=[stage("target", 595e9)])
    (found,) = plan.hub(away, needed)
    assert "Name or service not known" in found["what"]
    assert "595.0 GB" in found["why"]
    assert plan.hub(away, context(plans=[stage("target", done=True)])) == []
    assert plan.hub(away, context(expect={"hub": False}, plans=[stage("target")])) == []
    assert levels(plan.hub(RecordedHost(proxies=True), needed)) == ["info"]


def test_a_mirror_is_tried_where_it_is(context: Any) -> None:
    spec = spec_of()
    spec["stages"]["target"] = {"endpoint": "http://mirror.local:8080"}
    host = RecordedHost(unreachable={"mirror.local:8080": "refused"})
    assert "mirror.local" in plan.hub(host, context(spec=spec, plans=[stage("target")]))[0]["what"]


# lease


def leased(context: Any, hours: float, **expect: Any) -> list[dict[str, str]]:
    plans = [
        stage("hidden_states", 5e12, 8 * 3600),
        stage("draft", 1.5e10, 3600),
        stage("responses", 2e9, 0, done=True, record={"bytes": 2e9}),
    ]
    wanted = {"lease_hours": hours, "lease_reserve_hours": 1, "export_bytes_s": 12.5e6, **expect}
    return plan.lease(RecordedHost(), context(expect=wanted, plans=plans))


def test_the_forecast_must_fit_the_lease_with_room_to_bring_results_home(context: Any) -> None:
    # 9 h of work, 15 GB + 0 GB forecast + 2 GB there / 12.5 MB/s = 20 min, 1 h of reserve: 10 h 20 min
    assert levels(leased(context, 10.5)) == ["info"]
    (found,) = leased(context, 10.2)
    assert found["level"] == "error"
    assert "10 h 20 min" in found["what"] or "10 h 23 min" in found["what"]
    assert "hidden_states, 8 h" in found["why"]


def test_no_lease_no_word(context: Any) -> None:
    assert leased(context, 0) == []


def test_an_end_time_wins_over_hours(context: Any) -> None:
    assert levels(leased(context, 1000, lease_until="2027-01-15T09:00:00Z")) == ["error"]
    assert levels(leased(context, 0, lease_until="2027-01-16T09:00:00Z")) == ["info"]
    assert plan.parse_utc("2027-01-15T08:00:00Z") == 1_800_000_000
    assert plan.parse_utc("tomorrow") is None


def test_an_end_time_that_is_none_counts_as_no_time_left(context: Any) -> None:
    assert levels(leased(context, 0, lease_until="tomorrow")) == ["error"]


# software


def test_unknown_names_carry_place_and_cure(context: Any) -> None:
    known = context(
        names=[{"name": "eyrie_drat_epochs", "nearest": "eyrie_draft_epochs", "where": "local/draft.yml:3"}]
    )
    (found,) = software.names(RecordedHost(), known)
    assert found["what"] == "Unknown variable eyrie_drat_epochs (local/draft.yml:3)."
    assert found["cure"] == "Write eyrie_draft_epochs."


def test_an_old_python_alone_is_not_enough(context: Any) -> None:
    host = RecordedHost(
        commands={"-c import": '{"version": [3, 9, 2], "executable": "/usr/bin/python3", "venv": true}'}
    )
    (found,) = software.python(host, context())
    assert "3.9.2" in found["what"]
    assert "apt-get install python3" in found["cure"]


def test_a_python_without_venv_is_told_to_whoever_is_not_root(context: Any) -> None:
    answer = {"-c import": PYTHON.replace("true", "false")}
    assert software.python(RecordedHost(commands=answer), context()) == []
    (found,) = software.python(RecordedHost(commands=answer, root=False), context())
    assert found["cure"] == "As root: apt-get install python3.11-venv"


def test_a_root_without_rights(context: Any) -> None:
    (found,) = software.environment(RecordedHost(writable=False), context())
    assert "may not write to /data" in found["what"]


def indexed(context: Any, answer: Any, profile: str = "local") -> list[dict[str, str]]:
    commands = {"-c import": PYTHON, "pip --version": "pip 23.2.1", "index versions": answer}
    return software.index(RecordedHost(commands=commands), context(profile))


def test_the_index_is_reached_and_knows_the_locked_torch(context: Any) -> None:
    assert indexed(context, "torch (2.15.0)\nAvailable versions: 2.15.0, 2.13.0+cpu, 2.13.0\n") == []


def test_an_index_without_the_cpu_build(context: Any) -> None:
    (found,) = indexed(context, "torch (2.15.0)\nAvailable versions: 2.15.0, 2.13.0\n")
    assert "no torch 2.13.0+cpu" in found["what"]
    assert "eyrie_runtime_torch_index" in found["cure"]


def test_no_network(context: Any) -> None:
    (found,) = indexed(context, {"rc": 1, "err": "WARNING: retrying\nERROR: Temporary failure in name resolution"})
    assert found["level"] == "error"
    assert "Temporary failure in name resolution" in found["what"]


def test_the_index_is_asked_with_the_declared_places(context: Any) -> None:
    host = RecordedHost(
        commands={"-c import": PYTHON, "pip --version": "x", "index versions": "Available versions: 1\n"}
    )
    known = context("local")
    known.runtime.update(torch_index="file:///wheels/simple", find_links="/wheels")
    software.index(host, known)
    assert host.asked[-1][-4:] == ["--extra-index-url", "file:///wheels/simple", "--find-links", "/wheels"]


def test_a_model_package_that_the_lock_does_not_carry(context: Any) -> None:
    spec = spec_of("local")
    spec["target"]["source"]["package"] = "other-model"
    (found,) = software.model(RecordedHost(), context("local", spec=spec))
    assert "other-model is not in the lock" in found["what"]
    assert software.model(RecordedHost(), context("local", spec=spec_of("local"))) == []


# the fabric's matrices


def test_a_matrix_with_colours_and_other_devices_is_read() -> None:
    text = (
        "\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\x1b[0m\n"
        "GPU0\t X \tPIX\tNODE\t0-31\nGPU1\tPIX\t X \tNODE\t0-31\nNIC0\tNODE\tNODE\t X \t\n\nLegend:\n  X = Self\n"
    )
    assert fabric.matrix(text) == {("GPU0", "GPU1"): "PIX", ("GPU1", "GPU0"): "PIX"}


@pytest.mark.parametrize("text", ["", "No devices were found\n", "Failed to initialize NVML: Unknown Error\n"])
def test_an_answer_without_a_matrix_gives_none(text: str) -> None:
    assert fabric.matrix(text) == {}


@pytest.mark.parametrize(
    ("text", "value"), [("97887", 97887.0), ("[N/A]", None), ("[Not Supported]", None), ("", None), ("12.5 W", 12.5)]
)
def test_figures(text: str, value: float | None) -> None:
    assert gpus.number(text) == value


def test_driver_versions_compare_by_number() -> None:
    assert gpus.version("580.65.06") > gpus.version("575.57.08")
    assert gpus.version("1000.1") > gpus.version("580.65.06")


def test_the_lock_s_cuda_is_known_without_a_profile_s_word(context: Any) -> None:
    assert gpus.cuda_of_lock(context("rtx6000bw")) == "13.0"
    assert gpus.cuda_of_lock(context("local")) == ""

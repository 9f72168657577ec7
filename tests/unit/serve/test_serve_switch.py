"""The switch under a real supervisord with a fake engine: proof, refusal, failure and restoration."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from eyrie.core.errors import EyrieError, GateError
from eyrie.serve import execute, http, identity, launch, records, status, switch
from eyrie.supervise import processes

pytestmark = pytest.mark.node


def family_of(run, profile):
    return processes.family(execute.launched(run.root, profile)["pid"])


def served(run):
    return status.of(run.pipeline)["active"]


def test_the_three_profiles_follow_each_other_and_each_is_proven(run):
    it = run()
    baseline = it.ensure("baseline")
    assert baseline.started
    assert baseline.base_url == f"http://127.0.0.1:{it.port}"
    assert baseline.model == "toy"
    before = family_of(it, "baseline")
    assert len(before) == 2  # the engine and its worker
    extract = it.ensure("extract")
    assert served(it) == ["extract"]
    assert all(processes.read(pid) is None for pid in before)
    proof = identity.prove(it.pipeline, "extract")
    assert proof["method"] == "extract_hidden_states"
    assert proof["states"] == {"shape": [9, 4, 8], "dtype": "BF16"}
    assert list((it.root / "server" / "extract").iterdir()) == []  # the proof leaves nothing behind
    eagle3 = it.ensure("eagle3")
    assert len({baseline.fingerprint, extract.fingerprint, eagle3.fingerprint}) == 3
    kept = records.read(records.serving_path(it.root))
    assert kept["identity"]["acceptance"]["length"] == pytest.approx(2.5, abs=0.2)  # 1 + 3 x 0.5
    assert kept["identity"]["draft"] == str(it.root / "draft" / "checkpoint")
    assert 0 <= kept["overhead_s"] < 3
    assert not records.switching_path(it.root).exists()


def test_a_profile_that_serves_already_is_left_alone(run):
    it = run()
    first = it.ensure("baseline")
    pid = execute.launched(it.root, "baseline")["pid"]
    again = it.ensure("baseline")
    assert again == switch.Serving(**{**first.__dict__, "started": False, "seconds": 0.0})
    assert execute.launched(it.root, "baseline")["pid"] == pid
    plan = switch.plan(it.pipeline, "baseline")
    assert plan["up_to_date"]
    assert plan["stops"] == plan["starts"] == plan["differences"] == []


def test_a_changed_argument_restarts_and_the_plan_names_it(run):
    it = run()
    it.ensure("baseline")
    pid = execute.launched(it.root, "baseline")["pid"]
    it.pipeline.server["args"] = {"max_num_seqs": 7}
    plan = switch.plan(it.pipeline, "baseline")
    assert plan["stops"] == plan["starts"] == ["eyrie-server-baseline"]
    assert plan["differences"] == [{"name": "args.max_num_seqs", "current": None, "desired": 7}]
    assert it.ensure("baseline").started
    assert execute.launched(it.root, "baseline")["pid"] != pid


@pytest.mark.parametrize(
    ("behaviour", "code", "said"),
    [
        ({"never_healthy": True}, "start-timeout", "still loading (503)"),
        ({"die_s": 0.1, "load_s": 30}, "server-died", "told to die"),
        ({"model": "stranger"}, "wrong-model", "stranger"),
        ({"method": "eagle"}, "wrong-method", "runs with eagle, wanted eagle3"),
        ({"accept": 0.0}, "no-acceptance", "acceptance length 1.000"),
        ({"no_template": True}, "answer-refused", "no chat template"),
    ],
)
def test_whatever_goes_wrong_the_profile_that_served_serves_again(run, behaviour, code, said):
    it = run(start_timeout_s=2)
    before = it.ensure("baseline")
    it.behave(eagle3=behaviour)
    with pytest.raises(EyrieError) as caught:
        it.ensure("eagle3")
    assert caught.value.code == code
    assert said in str(caught.value)
    assert "eyrie-server-eagle3" in str(caught.value)
    assert "served before and serves again" in caught.value.todo
    assert served(it) == ["baseline"]
    assert identity.prove(it.pipeline, "baseline")["fingerprint"] == before.fingerprint
    it.behave()
    assert it.ensure("eagle3").started


def test_the_same_profile_with_other_settings_is_restored_too(run):
    it = run()
    before = it.ensure("eagle3")
    it.behave(eagle3={"accept": 0.0, "when_tokens": 5})
    with pytest.raises(GateError) as caught:
        it.ensure("eagle3", overrides={"num_speculative_tokens": 5, "min_acceptance": 1.2})
    assert f"eagle3 ({before.fingerprint[:12]}) served before and serves again" in caught.value.todo
    proof = identity.prove(it.pipeline, "eagle3")
    assert (proof["fingerprint"], proof["num_speculative_tokens"]) == (before.fingerprint, 3)


def test_a_failed_start_with_nothing_before_leaves_nothing(run):
    it = run(start_timeout_s=2)
    it.behave(baseline={"never_healthy": True})
    with pytest.raises(EyrieError) as caught:
        it.ensure("baseline")
    assert "Nothing served before" in caught.value.todo
    assert served(it) == []
    assert processes.port_owners(it.port) == set()


def test_a_stranger_on_the_port_is_named_and_nothing_is_touched(run):
    it = run()
    code = f"import socket,time; s=socket.create_server(('127.0.0.1',{it.port})); time.sleep(60)"
    stranger = subprocess.Popen([sys.executable, "-c", code])
    try:
        while not processes.port_owners(it.port):
            time.sleep(0.05)
        with pytest.raises(GateError) as caught:
            it.ensure("baseline")
        assert caught.value.code == "port-foreign"
        assert f"pid {stranger.pid}" in caught.value.what
        assert stranger.poll() is None
        assert served(it) == []
    finally:
        stranger.kill()
        stranger.wait()


def test_a_server_that_ignores_sigterm_is_ended_at_the_deadline(run):
    it = run(stop_timeout_s=2)
    it.behave(baseline={"ignore_term": True, "workers": 2})
    it.ensure("baseline")
    before = family_of(it, "baseline")
    assert len(before) == 3
    begin = time.monotonic()
    it.ensure("extract")
    assert time.monotonic() - begin < 15
    assert all(processes.read(pid) is None for pid in before)


def test_a_killed_server_comes_back_and_its_orphan_is_reaped(run):
    it = run()
    first = it.ensure("baseline")
    old = execute.launched(it.root, "baseline")["pid"]
    orphans = family_of(it, "baseline") - {old}
    os.kill(old, signal.SIGKILL)
    end = time.monotonic() + 20
    while execute.launched(it.root, "baseline").get("pid") in (None, old):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert all(processes.read(pid) is None for pid in orphans)
    again = it.ensure("baseline")
    assert again.fingerprint == first.fingerprint


def test_servers_whose_supervisor_was_killed_are_replaced(run):
    from eyrie.supervise.supervisord import Supervisord

    it = run()
    it.ensure("baseline")
    old = family_of(it, "baseline")
    os.kill(Supervisord(it.root).daemon_pid(), signal.SIGKILL)
    assert it.ensure("baseline").started
    assert all(processes.read(pid) is None for pid in old)


def test_a_switch_that_was_cut_off_converges_and_remembers_what_served(run):
    it = run(start_timeout_s=60)
    before = it.ensure("baseline")
    it.behave(eagle3={"load_s": 30})
    code = (
        "import sys; sys.path[:0] = sys.argv[3:]\n"
        "import conftest, pathlib\n"
        "it = conftest.Run(pathlib.Path(sys.argv[1]), port=int(sys.argv[2]), start_timeout_s=60)\n"
        "it.ensure('eagle3')\n"
    )
    here = os.path.dirname(__file__)
    child = subprocess.Popen([sys.executable, "-c", code, str(it.root), str(it.port), here])
    end = time.monotonic() + 120
    while served(it) != ["eagle3"]:
        assert time.monotonic() < end
        time.sleep(0.1)
    child.kill()
    child.wait()
    it.behave(eagle3={"method": "eagle"})  # the next attempt fails as well
    with pytest.raises(EyrieError) as caught:
        it.ensure("eagle3", overrides={"num_speculative_tokens": 2})
    assert "baseline" in caught.value.todo
    assert identity.prove(it.pipeline, "baseline")["fingerprint"] == before.fingerprint


def test_two_switches_at_once_take_turns(run):
    it = run()
    results = []
    threads = [
        threading.Thread(target=lambda name=name: results.append(it.ensure(name).profile))
        for name in ("baseline", "extract")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["baseline", "extract"]
    assert len(served(it)) == 1


def test_variants_of_the_benchmark_need_not_be_accepted(run):
    it = run()
    it.behave(eagle3={"accept": 0.0})
    untrained = it.ensure("eagle3", overrides={"draft": it.root / "draft" / "checkpoint"})
    assert untrained.started
    ngram = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}}
    it.behave(eagle3={"accept": 0.1})
    assert it.ensure("eagle3", overrides={"draft": None, "args": ngram}).started
    assert identity.prove(it.pipeline, "eagle3")["method"] == "ngram"


def test_progress_tells_shards_and_seconds(run, progress):
    it = run()
    it.behave(baseline={"load_s": 1.0, "refuse_s": 1.0})
    it.ensure("baseline", progress=progress)
    assert progress.texts[0] == "server baseline"
    assert any(text.startswith("loading shard 1/2 (") for text in progress.texts)
    assert progress.texts[-1] == "proving its identity"


def test_stop_ends_all_and_is_idempotent(run):
    it = run()
    it.ensure("baseline")
    pids = family_of(it, "baseline")
    switch.stop(it.pipeline)
    assert all(processes.read(pid) is None for pid in pids)
    switch.stop(it.pipeline)
    assert served(it) == []
    with pytest.raises(GateError) as caught:
        identity.prove(it.pipeline, "baseline")
    assert caught.value.code == "not-serving"


def test_states_of_the_wrong_shape_or_none_at_all_are_refused(run):
    it = run(start_timeout_s=20)
    for behaviour, code in (({"shape": [9, 1, 8]}, "bad-states"), ({"no_states": True}, "no-states")):
        it.behave(extract=behaviour)
        with pytest.raises(EyrieError) as caught:
            it.ensure("extract")
        assert caught.value.code == code


def test_an_edited_document_is_not_started(run):
    it = run()
    it.ensure("baseline")
    switch.stop(it.pipeline)
    path = launch.path(it.root, "baseline")
    path.write_text(path.read_text().replace("--max-model-len", "--max-model-length"))
    assert launch.read(it.root, "baseline") == {}
    done = subprocess.run(
        [sys.executable, "-m", "eyrie", "server", "exec", "baseline", "--root", str(it.root)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == execute.WRONG_DOCUMENT
    assert "edited by hand" in done.stderr


def test_the_server_answers_the_clients(run):
    it = run()
    serving = it.ensure("baseline")
    assert http.get(serving.base_url, "/health").status == 200
    assert http.get(serving.base_url, "/nowhere").status == 404
    with pytest.raises(http.Unreachable):
        http.get("http://127.0.0.1:9", "/health", 1.0)

"""The switch as a job: begun once, attached to, looked at, its failure passed on."""

import os
import signal
import time

import pytest

from eyrie.core.errors import EyrieError, GateError
from eyrie.serve import background, execute, identity
from eyrie.supervise.supervisord import Supervisord

pytestmark = pytest.mark.node


def test_begun_looked_at_and_done(run):
    it = run()
    it.behave(baseline={"load_s": 1.5})
    assert background.begin(it.pipeline, "baseline") == {"started": True, "finished": False}
    assert background.begin(it.pipeline, "baseline") == {"started": False, "finished": False}
    texts = set()
    end = time.monotonic() + 30
    while not (answer := background.look(it.pipeline, "baseline", 0.2))["finished"]:
        assert time.monotonic() < end
        texts.add(answer["text"])
    assert any("loading shard 1/2" in text for text in texts)
    assert answer["serving"]["profile"] == "baseline"
    assert answer["serving"]["identity"]["model"] == "toy"
    again = background.begin(it.pipeline, "baseline")
    assert again["finished"]
    assert not again["started"]
    assert again["serving"]["load_s"] > 1


def test_another_switch_meanwhile_is_refused(run):
    it = run()
    it.behave(baseline={"load_s": 5})
    background.begin(it.pipeline, "baseline")
    with pytest.raises(EyrieError) as caught:
        background.begin(it.pipeline, "extract")
    assert caught.value.code == "running-other"
    assert background.look(it.pipeline, "baseline", 20)["finished"]
    with pytest.raises(EyrieError) as caught:
        background.look(it.pipeline, "extract")
    assert caught.value.code == "no-switch"


def test_its_failure_is_the_lookers(run):
    it = run()
    it.ensure("baseline")
    it.behave(extract={"no_states": True})
    background.begin(it.pipeline, "extract")
    with pytest.raises(EyrieError) as caught:
        background.look(it.pipeline, "extract", 30)
    assert caught.value.code == "no-states"
    assert "baseline" in caught.value.todo
    (it.model / "config.json").unlink()
    with pytest.raises(GateError):
        background.begin(it.pipeline, "extract")


def test_a_killed_switch_is_said_and_the_next_one_converges(run):
    it = run(start_timeout_s=60)
    before = it.ensure("baseline")
    it.behave(extract={"load_s": 40})
    background.begin(it.pipeline, "extract")
    end = time.monotonic() + 20
    while not execute.launched(it.root, "extract"):
        assert time.monotonic() < end
        time.sleep(0.1)
    supervisor = Supervisord(it.root)
    os.kill(supervisor.status(background.unit_of(it.root)).pid, signal.SIGKILL)
    with pytest.raises(EyrieError) as caught:
        background.look(it.pipeline, "extract", 10)
    assert caught.value.code == "switch-killed"
    it.behave()
    assert background.begin(it.pipeline, "baseline")["started"]
    assert background.look(it.pipeline, "baseline", 30)["finished"]
    assert identity.prove(it.pipeline, "baseline")["fingerprint"] == before.fingerprint

"""The canary as it is run: derived, brought up to date stage by stage, judged. Faults are seeded into what it meets.

Each fault is seeded into the server, the installed versions, or a file between two stages; the stages from there on
run again by `eyrie run`, and `eyrie canary judge` looks at what they left. One of them must refuse, and name it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="needs the node environment")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import model as toy
import numpy as np
from house import House, answer_of

from eyrie.ops.canary import derive

pytestmark = [pytest.mark.node, pytest.mark.slow]

SETTINGS = {"prompts": 24, "answer_tokens": 32, "benchmark_prompts": 8, "steps": 48}
Seed = Callable[["Canary"], object]


class Canary:
    """A finished, sound canary; `seeded` runs it again from a stage on, with a fault."""

    def __init__(self, work: Path):
        self.house = House(work, 60)
        self.spec = derive.derive(self.house.spec(), SETTINGS)
        self.behaviour = self.house.control / "behaviour.json"
        prompts = Path(derive.folder(self.spec)) / derive.PROMPTS
        prompts.parent.mkdir(parents=True)
        prompts.write_text(derive.prompts_text(SETTINGS["prompts"]))
        for stage in derive.STAGES:
            said = self.run(stage)
            assert said == "", f"{stage}: {said}"
            self.house.snapshot(stage)

    def run(self, stage: str) -> str:
        """'' or the error of `eyrie run STAGE`."""
        process = self.house.command("run", stage, self.spec)
        out, _ = process.communicate(timeout=300)
        return "" if process.returncode == 0 else told(answer_of(out))

    def judge(self) -> tuple[bool, str]:
        """(sound, the verdict in words) of `eyrie canary judge`."""
        process = self.house.command("canary", "judge", self.spec)
        out, _ = process.communicate(timeout=120)
        answer = answer_of(out)
        return process.returncode == 0, told(answer) or json.dumps(answer)

    def seeded(self, stage: str, act: Seed) -> tuple[str, str]:
        """(who refused: a stage or 'judge', what was said)."""
        self.house.restore(stage)
        self.behaviour.unlink(missing_ok=True)
        spec = self.spec
        try:
            act(self)
            for name in derive.STAGES[derive.STAGES.index(stage) :]:
                if said := self.run(name):
                    return name, said
            sound, said = self.judge()
            return "nobody" if sound else "judge", said
        finally:
            self.spec = spec
            self.behaviour.unlink(missing_ok=True)

    def wrong(self, profile: str, **values: Any) -> None:
        self.behaviour.write_text(json.dumps({profile: values}))

    def out(self, stage: str) -> Path:
        """The outputs of a finished stage."""
        run = self.house.root / "runs" / self.spec["run"]
        digits = json.loads((run / "state" / stage / "latest.json").read_text())["fingerprint"][:12]
        return self.house.root / "models" / f"toy-{digits}" if stage == "target" else run / stage / digits


def told(answer: dict[str, Any]) -> str:
    error = answer.get("error") or {}
    return " ".join(str(error.get(key) or "") for key in ("code", "what", "why")).strip()


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canary]:
    made = Canary(tmp_path_factory.mktemp("canary"))
    yield made
    made.house.kill_all()


def test_sound_canary_passes(canary: Canary) -> None:
    sound, said = canary.judge()
    assert sound, said
    verdict = json.loads(said)
    assert verdict["acceptance"]["trained"] > 2.0 > verdict["acceptance"]["untrained"]


SEEDED: dict[str, tuple[str, Seed, str]] = {}


def seed(name: str, stage: str, said: str) -> Callable[[Seed], Seed]:
    """Register a fault: the stage that meets it first, and words by which it must be named."""

    def register(act: Seed) -> Seed:
        SEEDED[name] = (stage, act, said)
        return act

    return register


def serving(name: str, stage: str, profile: str, said: str, **values: Any) -> None:
    seed(name, stage, said)(lambda canary: canary.wrong(profile, **values))


serving("method EAGLE in force for an EAGLE3 draft", "benchmark", "eagle3", "method", method="eagle")
serving("speculation not in force", "benchmark", "eagle3", "method", method=None)
serving("nothing is accepted", "benchmark", "eagle3", "served acceptance 1.00 is below", accept=0.0)
serving("another model is served", "responses", "baseline", "other-model", model="other-model")
serving("last state off by one", "hidden_states", "extract", "last", states="off-by-one")
serving("last state of another layer", "hidden_states", "extract", "last", states="other-layer")
serving("one layer's states", "hidden_states", "extract", "shape", states="one-layer")
serving("three layers without the last", "hidden_states", "extract", "shape", states="three-layers")
serving("one auxiliary layer twice", "hidden_states", "extract", "equal", states="layer-twice")
serving("states of a part of the tokens", "hidden_states", "extract", "shape", states="short")
serving("NaN in the states", "hidden_states", "extract", "finite", states="nan")
serving("states of other tokens", "hidden_states", "extract", "token", states="other-tokens")
serving("the server renders another template", "responses", "baseline", "template", prompt="other-template")
serving("begin of text twice", "responses", "baseline", "chat template", prompt="begin-twice")
serving("every answer is the same", "responses", "baseline", "different answers to", answers="same")
serving("answers repeat one token", "responses", "baseline", "repeat one or two tokens", answers="stuck")


@seed("the target has no chat template", "target", "chat template")
def _(canary: Canary) -> None:
    folder = canary.house.work / "untemplated"
    toy.make(folder, ["a", "b"])
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings["chat_template"] = ""
    path.write_text(json.dumps(settings))
    source = {**canary.spec["target"]["source"], "path": str(folder)}
    canary.spec = {**canary.spec, "target": {**canary.spec["target"], "source": source}}


@seed("the model has other dimensions than declared", "target", "num_hidden_layers")
def _(canary: Canary) -> None:
    canary.spec = {**canary.spec, "target": {**canary.spec["target"], "num_hidden_layers": 9}}


def tables(canary: Canary, d2t: Any, t2d: Any = None) -> None:
    folder = canary.out("tokens") / "vocab"
    np.save(folder / "d2t.npy", d2t)
    if t2d is not None:
        np.save(folder / "t2d.npy", t2d)


@seed("d2t holds absolute ids", "hidden_states", "d2t does not give ascending target ids")
def _(canary: Canary) -> None:
    offsets = np.load(canary.out("tokens") / "vocab" / "d2t.npy")
    tables(canary, offsets + np.arange(len(offsets)))


@seed("the draft vocabulary is the lowest ids", "hidden_states", "its mapping was never made")
def _(canary: Canary) -> None:
    size = len(np.load(canary.out("tokens") / "vocab" / "d2t.npy"))
    t2d = np.zeros(toy.VOCAB, dtype=bool)
    t2d[:size] = True
    tables(canary, np.zeros(size, dtype=np.int64), t2d)


@seed("served with other layer ids than captured", "benchmark", "layer")
def _(canary: Canary) -> None:
    """Each id one too high, as with another convention; the file keeps its size, which a plan looks at."""
    path = canary.out("draft") / "checkpoint" / "config.json"
    text = path.read_text()
    begin = text.index('"eagle_aux_hidden_state_layer_ids"')
    end = text.index("]", begin)
    shifted = re.sub(r"\b\d\b", lambda found: str(int(found[0]) + 1), text[begin:end])
    path.write_text(text[:begin] + shifted + text[end:])


@seed("the draft's embeddings are another model's", "benchmark", "embed")
def _(canary: Canary) -> None:
    path = next((canary.out("draft") / "checkpoint").glob("*.safetensors"))
    raw = bytearray(path.read_bytes())
    length = int.from_bytes(raw[:8], "little")
    entry = json.loads(raw[8 : 8 + length])["embed_tokens.weight"]
    begin, end = (8 + length + offset for offset in entry["data_offsets"])
    noise = np.random.default_rng(3).standard_normal((end - begin) // 2)
    raw[begin:end] = toy.bf16(noise).tobytes()
    path.write_bytes(bytes(raw))


@seed("versions moved between two stages", "benchmark", "speculators")
def _(canary: Canary) -> None:
    """The draft's record says another version of what trained it, as after an upgrade in between."""
    state = canary.house.root / "runs" / canary.spec["run"] / "state" / "draft"
    for path in state.glob("*.json"):
        record = json.loads(path.read_text())
        if (record.get("identity") or {}).get("tools", {}).get("speculators"):
            record["identity"]["tools"]["speculators"] = "0.8.0"
            path.write_text(json.dumps(record))


def test_there_are_at_least_twelve() -> None:
    assert len(SEEDED) >= 12


@pytest.mark.parametrize("name", list(SEEDED))
def test_seeded_fault_is_named(canary: Canary, name: str) -> None:
    stage, act, said = SEEDED[name]
    who, words = canary.seeded(stage, act)
    assert who != "nobody", f"{name} was not noticed"
    assert said in words, f"{who}: {words}"

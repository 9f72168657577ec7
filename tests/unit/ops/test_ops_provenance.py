"""why: the chain behind a draft is followed, and every break in it is named."""

from __future__ import annotations

import json
import shutil

import pytest
from small_house import INPUTS, House

from eyrie.cli import main
from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.core.fingerprint import short
from eyrie.ops import provenance

BEHIND = ["target", "dataset", "responses", "tokens", "hidden_states", "draft"]


def test_chain_of_a_promoted_draft_is_whole(house: House) -> None:
    version = house.promote(house.run(draft={"value": 7}))
    answer = provenance.why(house.root, "current")
    assert answer["ok"]
    assert [link["stage"] for link in answer["chain"]] == BEHIND
    assert answer["version"]["version"] == version
    draft = answer["chain"][-1]
    assert draft["settings"] == {"value": 7, "fail": ""}
    assert set(draft["inputs"]) == set(INPUTS["draft"])


def test_an_older_draft_keeps_its_own_chain(house: House) -> None:
    first = house.promote(house.run(dataset={"value": 1}))
    house.promote(house.run(dataset={"value": 2}))
    answer = provenance.why(house.root, first)
    assert answer["ok"]
    dataset = next(link for link in answer["chain"] if link["stage"] == "dataset")
    assert dataset["settings"]["value"] == 1


@pytest.mark.parametrize("name", ["version", "beginning", "run", "folder", "checkpoint", "whole"])
def test_a_draft_is_named_in_many_ways(house: House, name: str) -> None:
    pipeline = house.run()
    version, out = house.promote(pipeline), pipeline.context("draft").out
    named = {
        "version": version,
        "beginning": version[:6],
        "run": "main",
        "folder": str(house.root / "drafts" / version),
        "checkpoint": str(out / "checkpoint"),
        "whole": pipeline.context("draft").fingerprint,
    }[name]
    assert provenance.why(house.root, named)["fingerprint"] == pipeline.context("draft").fingerprint


def test_unknown_draft_is_refused_with_what_is_known(house: House) -> None:
    version = house.promote(house.run())
    with pytest.raises(EyrieError) as caught:
        provenance.why(house.root, "ffff00001111")
    assert version in str(caught.value)
    assert "main" in str(caught.value)


def test_no_promoted_draft(house: House) -> None:
    house.run("draft")
    with pytest.raises(EyrieError, match="no draft is promoted"):
        provenance.why(house.root, "current")


def test_edited_record_is_found(house: House) -> None:
    pipeline = house.run()
    house.promote(pipeline)
    ctx = pipeline.context("responses")
    path = ctx.state.path / f"{short(ctx.fingerprint)}.json"
    record = atomic.read_json(path)
    record["identity"]["settings"]["value"] = 99
    path.write_text(json.dumps(record))
    broken = {link["stage"]: link["problems"] for link in provenance.why(house.root, "current")["chain"]}
    assert "does not hash to its fingerprint" in broken.pop("responses")[0]
    assert not any(broken.values())


def test_lost_record_and_lost_output_are_found(house: House) -> None:
    pipeline = house.run()
    house.promote(pipeline)
    tokens, dataset = pipeline.context("tokens"), pipeline.context("dataset")
    (tokens.out / "data.txt").write_text("torn")
    (dataset.state.path / f"{short(dataset.fingerprint)}.json").unlink()
    broken = {link["stage"]: link["problems"] for link in provenance.why(house.root, "current")["chain"]}
    assert broken["tokens"][0].startswith("data.txt is 4 bytes instead of")
    assert broken["dataset"] == ["no record of it is left on this host"]


def test_text_and_json_answers(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    house.promote(house.run(draft={"value": 7}))
    assert main(["why", "--root", str(house.root), "--text"]) == 0
    text = capsys.readouterr().out
    assert "(current), acceptance 2.50" in text
    assert text.index("<- draft") < text.index("<- hidden_states") < text.index("<- target")
    assert "value: 7" in text
    assert "The chain is whole." in text
    shutil.rmtree(house.root / "runs" / "main" / "tokens")
    assert main(["why", "--root", str(house.root)]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is False

"""Fingerprints: what changes them, what must not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyrie.core.fingerprint import HashCache, canonical, differences, fingerprint
from eyrie.core.pipeline import Pipeline

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=6))
def test_the_order_of_keys_does_not_count(value: dict[str, object]) -> None:
    turned = dict(reversed(value.items()))
    assert fingerprint(turned) == fingerprint(value)


@given(JSON, JSON)
def test_two_values_share_a_fingerprint_only_if_they_are_the_same_json(one: object, other: object) -> None:
    assert (fingerprint(one) == fingerprint(other)) == (canonical(one) == canonical(other))


def test_types_count() -> None:
    assert len({fingerprint(value) for value in (1, "1", True, None, [1], {"1": 1})}) == 6


def test_a_value_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        fingerprint({"rate": float("nan")})


def test_a_lone_surrogate_has_a_fingerprint() -> None:
    assert len(fingerprint({"text": "\ud83d"})) == 64


KEYS = st.text("abcxyz_", min_size=1, max_size=4)
TREE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(TREE, TREE)
def test_there_is_a_reason_exactly_where_the_fingerprint_differs(one: object, other: object) -> None:
    left, right = {"a": one}, {"a": other}
    assert (differences(left, right) == []) == (fingerprint(left) == fingerprint(right))


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (None, {}), ({"b": None}, {}), ([1], [1.0])])
def test_values_that_python_calls_equal_are_still_told_apart(one: object, other: object) -> None:
    assert differences({"a": one}, {"a": other}) != []


def test_differences_name_the_dotted_key() -> None:
    old, new = {"a": {"b": 1, "c": [1]}, "gone": 1}, {"a": {"b": 2, "c": [1]}, "come": 2}
    assert differences(old, new) == [
        {"name": "a.b", "current": 1, "desired": 2},
        {"name": "come", "current": None, "desired": 2},
        {"name": "gone", "current": 1, "desired": None},
    ]


def prints(pipeline: Pipeline) -> dict[str, str]:
    return {name: pipeline.context(name).fingerprint for name in ("dataset", "responses", "tokens")}


def test_a_change_reaches_exactly_the_stages_that_depend_on_it(pipeline: Callable[..., Pipeline]) -> None:
    before = prints(pipeline())
    changed = prints(pipeline(responses={"items": 7}))
    assert changed["dataset"] == before["dataset"]
    assert changed["responses"] != before["responses"]
    assert changed["tokens"] != before["tokens"]


def test_what_cannot_change_the_output_does_not_count(pipeline: Callable[..., Pipeline]) -> None:
    before = prints(pipeline())
    assert prints(pipeline(dataset={"pause_s": 2.0, "inner": {"note": "other words"}})) == before


def test_neither_root_nor_run_nor_host_counts(toys: object, tmp_path: Path) -> None:
    spec = toys.spec_of(tmp_path)
    other = {**spec, "root": str(tmp_path / "elsewhere"), "run": "second", "host": "far", "execution": {"threads": 9}}
    assert prints(Pipeline(spec)) == prints(Pipeline(other))


def test_one_changed_prompt_counts(pipeline: Callable[..., Pipeline], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\n")
    before = prints(pipeline(dataset={"prompts": str(prompts)}))
    prompts.write_text("one\ntoo\n")
    after = prints(pipeline(dataset={"prompts": str(prompts)}))
    assert all(before[name] != after[name] for name in before)


def test_returning_to_earlier_settings_returns_to_their_fingerprint(pipeline: Callable[..., Pipeline]) -> None:
    before = prints(pipeline())
    assert prints(pipeline(dataset={"items": 9})) != before
    assert prints(pipeline()) == before


def test_the_cache_reads_a_file_again_only_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("a")
    (tmp_path / "state").mkdir()
    cache = HashCache(tmp_path / "state" / "hashes.json")
    digest = cache.sha256(file)
    cache.save()
    reads: list[Path] = []
    monkeypatch.setattr("eyrie.core.fingerprint.file_sha256", lambda path: reads.append(path) or "new")
    again = HashCache(tmp_path / "state" / "hashes.json")
    assert again.sha256(file) == digest
    assert reads == []
    os.utime(file, ns=(1, 1))
    assert again.sha256(file) == "new"
    assert reads == [file]


def test_a_torn_cache_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "hashes.json"
    path.write_text('{"/a": [[1, 2')
    file = tmp_path / "file"
    file.write_text("a")
    assert len(HashCache(path).sha256(file)) == 64

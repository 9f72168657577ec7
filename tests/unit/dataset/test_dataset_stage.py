"""The whole stage: what it writes, its books, its fingerprint, what a second run does."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from dataset_run import SRC, prompts, rows, run, spec, summary
from dataset_toy import chat, jsonl

from eyrie.core import planner
from eyrie.core.errors import EyrieError, GateError, SpecError
from eyrie.core.pipeline import Pipeline
from eyrie.dataset.prompts import generated, open_prompts

pytestmark = pytest.mark.node


def local(path, **more):
    return {"kind": "local", "path": str(path), "adapter": "messages", **more}


def many(tmp_path, name, count, start=0):
    return local(jsonl(tmp_path / f"{name}.jsonl", [chat(f"{name} {n}", "a") for n in range(start, start + count)]))


def test_outputs_and_books(tmp_path):
    lines = [*(chat(f"q{n}", "a") for n in range(20)), "broken", chat("Q1", "again")]
    value = spec(
        tmp_path / "root",
        {"one": local(jsonl(tmp_path / "one.jsonl", lines)), "two": many(tmp_path, "t", 10)},
        heldout=6,
    )
    ctx = run(value)
    record = ctx.record()
    assert record["status"] == "done"
    account = record["account"]
    assert account["in"] == 32 == account["kept"] + sum(account["dropped"].values()) + sum(account["failed"].values())
    assert (account["kept"], account["dropped"], account["failed"]) == (
        24,
        {"duplicate": 1, "held_out": 6},
        {"bad_json": 1},
    )
    assert account["examples"]["bad_json"] == ["one.jsonl:21"]
    assert account["examples"]["duplicate"] == ["one.jsonl:22"]
    train, evaluation = rows(ctx), rows(ctx, "eval.parquet")
    assert list(train[0]) == ["id", "source", "row", "conversation", "tools"]
    assert {row["set"] for row in evaluation} == {"heldout", "open"}
    assert [row["set"] for row in evaluation].count("heldout") == 6
    assert not {row["id"] for row in train} & {row["id"] for row in evaluation}
    texts = {("one", n): f"q{n}" for n in range(20)} | {("two", n): f"t {n}" for n in range(10)}
    for row in train:
        assert json.loads(row["conversation"])[0]["content"] == texts[row["source"], row["row"]]
    assert summary(ctx)["sources"]["one"]["in"] == 22
    assert ctx.stage.verify(ctx) == []


def test_a_second_run_changes_nothing(tmp_path):
    value = spec(tmp_path / "root", {"one": many(tmp_path, "q", 5)})
    ctx = run(value)
    before = {path: path.stat().st_mtime_ns for path in ctx.out.iterdir()}
    again = run(value)
    assert {path: path.stat().st_mtime_ns for path in again.out.iterdir()} == before
    assert planner.plan(Pipeline(value).context("dataset"))["up_to_date"]


def test_one_changed_prompt_is_named_by_the_plan(tmp_path):
    value = spec(tmp_path / "root", {"one": many(tmp_path, "q", 5), "two": many(tmp_path, "r", 5)})
    first = run(value).fingerprint
    jsonl(tmp_path / "r.jsonl", [chat("another prompt", "a"), *(chat(f"r {n}", "a") for n in range(1, 5))])
    plan = planner.plan(Pipeline(value).context("dataset"))
    assert plan["fingerprint"] != first
    assert [item["name"] for item in plan["differences"]] == ["files.two.r.jsonl"]
    assert "another prompt" in prompts(run(value))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"samples": 3}, "settings.samples"),
        ({"seed": 7}, "settings.seed"),
        ({"max_prompt_tokens": 50}, "settings.max_prompt_tokens"),
        ({"on_source_failure": "continue"}, "settings.on_source_failure"),
        ({"refresh": 1}, "settings.refresh"),
    ],
)
def test_a_changed_setting_is_named_by_the_plan(tmp_path, change, name):
    registry = {"one": many(tmp_path, "q", 5)}
    run(spec(tmp_path / "root", registry))
    plan = planner.plan(Pipeline(spec(tmp_path / "root", registry, **change)).context("dataset"))
    assert name in [item["name"] for item in plan["differences"]]


@pytest.mark.parametrize(
    "change", [{"workers": 1}, {"worker_memory_mb": 900}, {"stall_s": 5}, {"downloads": 9}, {"offline": True}]
)
def test_settings_that_cannot_change_the_output_are_no_part_of_it(tmp_path, change):
    registry = {"one": many(tmp_path, "q", 5)}
    before = Pipeline(spec(tmp_path / "root", registry)).context("dataset").fingerprint
    assert Pipeline(spec(tmp_path / "root", registry, **change)).context("dataset").fingerprint == before


def test_paths_are_no_part_of_the_fingerprint(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    one = Pipeline(spec(tmp_path / "root", {"one": many(tmp_path, "q", 5)})).context("dataset").fingerprint
    two = (
        Pipeline(spec(tmp_path / "root", {"one": many(tmp_path / "elsewhere", "q", 5)})).context("dataset").fingerprint
    )
    assert one == two


def test_an_eleventh_source_runs_alone(tmp_path):
    registry = {f"s{n}": many(tmp_path, f"s{n}", 4) for n in range(10)}
    run(spec(tmp_path / "root", registry))
    ctx = run(spec(tmp_path / "root", registry | {"eleventh": many(tmp_path, "new", 4)}))
    reused = {name: entry["reused"] for name, entry in summary(ctx)["sources"].items()}
    assert reused == {f"s{n}": True for n in range(10)} | {"eleventh": False}


def test_quota_and_weight_make_only_a_new_mix(tmp_path):
    registry = {"one": many(tmp_path, "a", 40), "two": many(tmp_path, "b", 40)}
    run(spec(tmp_path / "root", registry))
    registry["one"] |= {"weight": 3}
    ctx = run(spec(tmp_path / "root", registry, samples=20))
    found = summary(ctx)["sources"]
    assert {name: (entry["reused"], entry["kept"]) for name, entry in found.items()} == {
        "one": (True, 15),
        "two": (True, 5),
    }
    registry["one"] |= {"quota": 8}
    found = summary(run(spec(tmp_path / "root", registry, samples=20)))["sources"]
    assert {name: entry["kept"] for name, entry in found.items()} == {"one": 8, "two": 12}
    assert found["one"]["dropped"] == {"over_quota": 32}


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_bytes_do_not_depend_on_the_workers(tmp_path, workers, monkeypatch):
    registry = {f"s{n}": many(tmp_path, f"s{n}", 50) for n in range(4)}
    base = spec(tmp_path / "base", registry, samples=120, heldout=9, workers=3)
    value = spec(tmp_path / "other", registry, samples=120, heldout=9, workers=workers)
    one, two = run(base), run(value)
    assert one.fingerprint == two.fingerprint
    for name in ("train.parquet", "eval.parquet"):
        assert (one.out / name).read_bytes() == (two.out / name).read_bytes()


def test_more_samples_are_a_superset_and_heldout_stays(tmp_path):
    registry = {"one": many(tmp_path, "a", 100)}
    small = run(spec(tmp_path / "root", registry, samples=20, heldout=10))
    large = run(spec(tmp_path / "root", registry, samples=50, heldout=10))
    assert set(prompts(small)) < set(prompts(large))
    assert prompts(small, "eval.parquet") == prompts(large, "eval.parquet")


def test_the_seed_decides_draw_and_order(tmp_path):
    registry = {"one": many(tmp_path, "a", 100)}
    zero, one = (prompts(run(spec(tmp_path / f"r{seed}", registry, samples=30, seed=seed))) for seed in (0, 1))
    assert set(zero) != set(one)
    everything = prompts(run(spec(tmp_path / "all", registry)))
    assert everything != sorted(everything)
    assert len(everything) == 100


def test_duplicates_and_benchmark_prompts(tmp_path):
    first = jsonl(tmp_path / "a.jsonl", [chat("What is  Go?", "a"), chat("only here", "b")])
    second = jsonl(
        tmp_path / "b.jsonl", [chat("what is go?", "c"), chat("\uff37\uff28\uff21\uff34 is go?", "d"), chat("new", "e")]
    )
    bench = jsonl(tmp_path / "bench.jsonl", [{"prompt": "Only Here"}, {"turns": ["something", "else"]}])
    ctx = run(spec(tmp_path / "root", {"a": local(first), "b": local(second)}, exclude=[str(bench)]))
    found = summary(ctx)["sources"]
    assert sorted(prompts(ctx)) == ["What is  Go?", "new"]
    assert found["a"]["dropped"] == {"eval_overlap": 1}
    assert found["b"]["dropped"] == {"duplicate_across": 2}
    assert found["b"]["examples"] == {"duplicate_across": ["b.jsonl:1", "b.jsonl:2"]}


def test_benchmarks_can_be_registry_entries(tmp_path):
    registry = {
        "a": many(tmp_path, "q", 6),
        "bench": local(jsonl(tmp_path / "bench.jsonl", [{"question": "Q 3"}]), adapter="prompt"),
    }
    ctx = run(spec(tmp_path / "root", registry, sources=["a"], exclude_sources=["bench"]))
    assert summary(ctx)["sources"]["a"]["dropped"] == {"eval_overlap": 1}
    assert "q 3" not in prompts(ctx)


def test_an_excluded_row_without_a_prompt_is_an_error(tmp_path):
    bench = jsonl(tmp_path / "bench.jsonl", [{"prompt": "x"}, {"answer": "y"}])
    with pytest.raises(EyrieError, match="holds no prompt") as caught:
        run(spec(tmp_path / "root", {"a": many(tmp_path, "q", 3)}, exclude=[str(bench)]))
    assert caught.value.where.endswith("bench.jsonl:2")


def test_deduplication_can_look_at_more_turns_or_be_off(tmp_path):
    lines = [chat("hi", "a", "one", "b"), chat("hi", "a", "two", "b"), chat("HI", "c", "One", "d")]
    registry = {"a": local(jsonl(tmp_path / "a.jsonl", lines))}
    assert len(rows(run(spec(tmp_path / "root", registry)))) == 1
    assert len(rows(run(spec(tmp_path / "root", registry, dedup_turns=2)))) == 2
    assert len(rows(run(spec(tmp_path / "root", registry, dedup="none")))) == 3


def test_near_duplicates(tmp_path):
    text = (
        "Describe how a bicycle pump moves air into a tyre, name each of its parts, say what all parts are made "
        "of, and explain what happens to the temperature of the air while it is pressed together by the piston."
    )
    lines = [
        chat(text, "a"),
        chat(text.replace("each", "all"), "b"),
        chat("Something else entirely, please.", "c"),
        chat("My neighbour plays loud music every evening! Draft a friendly note that I can leave at the door..", "d"),
    ]
    registry = {"a": local(jsonl(tmp_path / "a.jsonl", lines))}
    ctx = run(spec(tmp_path / "root", registry, dedup="minhash"))
    assert sorted(prompts(ctx)) == sorted([text, "Something else entirely, please."])
    assert summary(ctx)["sources"]["a"]["dropped"] == {"near_duplicate": 1, "near_eval": 1}


def test_token_limits_by_the_targets_tokenizer(tmp_path):
    def words(count):
        return "word " * count

    lines = [
        chat(words(200), "a"),
        chat("short", words(300)),
        chat("fits", "well"),
        chat("one", "a", words(200), "b", "more", "c"),
    ]
    registry = {"a": local(jsonl(tmp_path / "a.jsonl", lines))}
    ctx = run(spec(tmp_path / "root", registry, max_prompt_tokens=100, max_conversation_tokens=250))
    found = summary(ctx)["sources"]["a"]
    assert found["dropped"] == {"prompt_too_long": 1}
    assert found["notes"] == {"answer_over_limit": 1, "clipped": 1}
    assert {
        prompt: len(json.loads(row["conversation"])) for prompt, row in zip(prompts(ctx), rows(ctx), strict=True)
    } == {"short": 1, "fits": 2, "one": 2}


def test_generated_and_open_prompts(tmp_path):
    ctx = run(spec(tmp_path / "root", {"g": {"kind": "generated", "adapter": "prompt"}}, samples=300, heldout=20))
    train, heldout = prompts(ctx), prompts(ctx, "eval.parquet")
    assert len(set(train)) == 300
    assert not set(train) & set(heldout)
    assert heldout[20:] == open_prompts()
    assert set(train) | set(heldout[:20]) <= {row["prompt"] for row in generated(0)}
    assert [row["prompt"] for row in generated(0)] != [row["prompt"] for row in generated(1)]
    assert len({row["prompt"] for row in generated(0)}) > 2000


def test_the_package_source_reads_installed_data(tmp_path):
    entry = {
        "kind": "package",
        "package": "chatterbot-corpus",
        "files": ["chatterbot_corpus/data/english/science.yml"],
        "format": "yaml",
        "field": "conversations",
        "adapter": "alternating",
    }
    ctx = run(spec(tmp_path / "root", {"science": entry}))
    assert "what is a wavelength" in [prompt.lower() for prompt in prompts(ctx)]
    with pytest.raises(EyrieError, match="is not installed on the node"):
        run(spec(tmp_path / "root", {"none": entry | {"package": "eyrie-no-such-package"}}))


class TestFailures:
    def registry(self, tmp_path):
        bad = local(jsonl(tmp_path / "bad.jsonl", [*(chat(f"b{n}", "a") for n in range(8)), "x", "y"]))
        return {"good": many(tmp_path, "g", 5), "bad": bad, "fine": many(tmp_path, "f", 5)}

    def test_one_bad_source_leaves_the_others_done(self, tmp_path):
        registry = self.registry(tmp_path)
        with pytest.raises(EyrieError, match="1 of 3 sources failed: bad") as caught:
            run(spec(tmp_path / "root", registry))
        assert "2 of 10 rows are bad (20.0%, the limit is 5.0%)" in caught.value.why
        assert caught.value.where == "bad.jsonl:9"
        state = tmp_path / "root" / "runs" / "main" / "state" / "dataset" / "sources"
        verdicts = {path.stem: json.loads(path.read_text())["status"] for path in state.glob("*.json")}
        assert verdicts == {"good": "done", "bad": "failed", "fine": "done"}
        jsonl(tmp_path / "bad.jsonl", [chat(f"b{n}", "a") for n in range(8)])
        found = summary(run(spec(tmp_path / "root", registry)))["sources"]
        assert {name: entry["reused"] for name, entry in found.items()} == {"good": True, "bad": False, "fine": True}

    def test_policy_continue_goes_on_and_says_so(self, tmp_path):
        registry = self.registry(tmp_path)
        ctx = run(spec(tmp_path / "root", registry, on_source_failure="continue"))
        assert len(rows(ctx)) == 10
        assert summary(ctx)["sources"]["bad"]["status"] == "failed"
        assert any("WITHOUT source bad" in line for line in ctx.record()["figures"]["warnings"])
        jsonl(tmp_path / "bad.jsonl", [chat(f"b{n}", "a") for n in range(8)])
        again = run(spec(tmp_path / "root", registry, on_source_failure="continue"))
        assert len(rows(again)) == 18

    def test_a_higher_limit_takes_the_same_parts(self, tmp_path):
        registry = self.registry(tmp_path)
        with pytest.raises(EyrieError):
            run(spec(tmp_path / "root", registry))
        found = summary(run(spec(tmp_path / "root", registry, max_bad_share=0.3)))["sources"]
        assert found["bad"]["failed"] == {"bad_json": 2}
        assert found["bad"]["reused"]

    def test_no_limit_at_all_writes_nothing(self, tmp_path):
        value = spec(tmp_path / "root", {"bad": self.registry(tmp_path)["bad"]}, max_bad_share=0)
        with pytest.raises(EyrieError, match="rows are bad"):
            run(value)
        assert list((tmp_path / "root" / "runs" / "main" / "dataset").glob("*/train.parquet")) == []

    def test_a_source_of_another_schema_stops_early(self, tmp_path):
        lines = [{"text": f"row {n}"} for n in range(3000)] + [chat("q", "a")] * 30000
        with pytest.raises(EyrieError, match=r"rows are bad \(") as caught:
            run(spec(tmp_path / "root", {"wrong": local(jsonl(tmp_path / "w.jsonl", lines))}))
        assert "empty" in caught.value.why

    def test_all_rows_dropped_is_a_failure_of_the_source(self, tmp_path):
        registry = {"good": many(tmp_path, "g", 5), "none": local(jsonl(tmp_path / "n.jsonl", [""]))}
        with pytest.raises(EyrieError, match="nothing of 0 rows was kept"):
            run(spec(tmp_path / "root", registry))

    def test_a_missing_file_is_refused_by_the_gate(self, tmp_path):
        value = spec(tmp_path / "root", {"one": local(tmp_path / "nowhere.jsonl")})
        with pytest.raises(GateError, match=r"there is no file or folder .*nowhere.jsonl"):
            run(value)
        plan = planner.plan(Pipeline(value).context("dataset"))
        assert [gate["ok"] for gate in plan["gates"]] == [False]

    def test_too_few_samples_are_said_loudly(self, tmp_path):
        ctx = run(spec(tmp_path / "root", {"one": many(tmp_path, "q", 5)}, samples=50))
        assert ctx.record()["figures"]["warnings"] == ["50 conversations were asked for, only 5 are there."]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"kind": "hub"}, "needs 'repository'"),
        ({"kind": "hub", "repository": "a/b"}, "needs 'files'"),
        ({"kind": "local", "path": "x", "weight": 0}, "must be above 0"),
        ({"kind": "local", "path": "x", "columns": {"promt": "y"}}, "Did you mean 'prompt'"),
        ({"kind": "local", "path": "x", "adaptor": "y"}, "Did you mean 'adapter'"),
        ({"kind": "locale", "path": "x"}, "Did you mean 'local'"),
    ],
)
def test_a_wrong_entry_is_refused_with_the_right_name(tmp_path, entry, message):
    with pytest.raises(SpecError, match=message):
        Pipeline(spec(tmp_path / "root", {"one": {"adapter": "messages", **entry}})).context("dataset")


def test_a_misspelt_source_is_refused_with_the_right_name(tmp_path):
    with pytest.raises(SpecError, match="Did you mean 'sharegpt'"):
        Pipeline(spec(tmp_path / "root", {"sharegpt": local(tmp_path)}, sources=["shareqpt"])).context("dataset")


class TestVerify:
    @pytest.fixture
    def ctx(self, tmp_path):
        return run(spec(tmp_path / "root", {"one": many(tmp_path, "q", 30)}, heldout=5))

    def codes(self, ctx):
        return {fault.code for fault in ctx.stage.verify(ctx)}

    def test_a_flipped_byte(self, ctx):
        path = ctx.out / "train.parquet"
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)
        assert "checksum" in self.codes(ctx)

    def test_lost_rows(self, ctx):
        import pyarrow.parquet as pq

        table = pq.read_table(ctx.out / "train.parquet")
        pq.write_table(table.slice(0, 10), ctx.out / "train.parquet")
        assert {"checksum", "row-count"} <= self.codes(ctx)

    def test_evaluation_rows_in_training(self, ctx):
        import pyarrow.parquet as pq

        table = pq.read_table(ctx.out / "eval.parquet").drop_columns(["set"])
        pq.write_table(table, ctx.out / "train.parquet")
        assert "leak" in self.codes(ctx)

    def test_a_missing_file(self, ctx):
        (ctx.out / "eval.parquet").unlink()
        assert self.codes(ctx) == {"output-missing"}

    def test_books_that_do_not_add_up(self, ctx):
        path = ctx.out / "sources.json"
        value = json.loads(path.read_text())
        value["sources"]["one"]["in"] += 1
        path.write_text(json.dumps(value))
        assert "books" in self.codes(ctx)


def test_the_plan_is_fast_and_imports_nothing_heavy(tmp_path):
    value = spec(tmp_path / "root", {"one": many(tmp_path, "q", 5), "g": {"kind": "generated", "adapter": "prompt"}})
    (tmp_path / "spec.json").write_text(json.dumps(value))
    script = (
        "import sys, time; began = time.perf_counter()\n"
        "from eyrie.cli import main\n"
        f"main(['plan', 'dataset', '--spec', {str(tmp_path / 'spec.json')!r}])\n"
        "heavy = {'pyarrow', 'numpy', 'orjson', 'tokenizers', 'huggingface_hub', 'yaml', 'torch'} & set(sys.modules)\n"
        "print(sorted(heavy), time.perf_counter() - began, file=sys.stderr)\n"
    )
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={"PYTHONPATH": str(SRC)}, check=True
    )
    assert done.stderr.startswith("[]"), done.stderr
    assert json.loads(done.stdout)["up_to_date"] is False
    assert time.perf_counter() - began < 5

"""What files do to their readers: damage, encodings, names that lie, schemas that drift."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os

import pytest
from dataset_toy import chat, jsonl, read

from eyrie.core.errors import EyrieError
from eyrie.dataset import files, formats, readers, tasks

pytestmark = pytest.mark.node

ROWS = [chat(f"question {number}", f"answer {number}") for number in range(5)]
TEXT = "".join(json.dumps(row) + "\n" for row in ROWS)


def questions(got):
    return [texts[0] for texts in got.texts()]


FIVE = [f"question {number}" for number in range(5)]


def test_corrupt_lines_are_counted_with_their_places(tmp_path):
    lines = [
        ROWS[0],
        '{"messages":[{"role":"us',
        ROWS[1],
        "[1,2]",
        "null",
        "",
        "  ",
        '{"a":1}{"b":2}',
        '"text"',
        ROWS[2],
        "12",
    ]
    got = read(jsonl(tmp_path / "in.jsonl", lines), tmp_path / "out")
    assert questions(got) == FIVE[:3]
    assert got.failed == {"bad_json": 2, "not_object": 4}
    assert got.examples["bad_json"] == ["in.jsonl:2", "in.jsonl:8"]
    assert got.examples["not_object"] == ["in.jsonl:4", "in.jsonl:5", "in.jsonl:9"]
    assert got.book.entered == 9


def test_a_last_line_without_its_end(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(TEXT + '{"messages": [{"ro')
    got = read(path, tmp_path / "out")
    assert questions(got) == FIVE
    assert got.examples == {"bad_json": ["in.jsonl:6"]}


@pytest.mark.parametrize("deep", [100_000, 3])
def test_nesting_does_not_end_the_run(tmp_path, deep):
    got = read(jsonl(tmp_path / "in.jsonl", ["[" * deep, ROWS[0]]), tmp_path / "out", format="jsonl")
    assert questions(got) == FIVE[:1]
    assert got.failed == {"bad_json": 1}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"], ids=lambda name: name)
@pytest.mark.parametrize("document", [False, True], ids=["lines", "array"])
def test_encodings(tmp_path, encoding, document):
    rows = [chat("grüß 😀", "dich"), chat("x", "y")]
    text = (
        json.dumps(rows, ensure_ascii=False)
        if document
        else "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)
    )
    path = tmp_path / "in.jsonl"
    path.write_bytes(text.encode(encoding))
    got = read(path, tmp_path / "out")
    assert got.texts() == [["grüß 😀", "dich"], ["x", "y"]]
    assert (got.failed, got.notes) == ({}, {})


def test_bytes_that_are_no_utf8_are_mended_and_counted(tmp_path):
    lines = [b'{"messages":[{"role":"user","content":"caf\xe9"},{"role":"assistant","content":"ok"}]}', ROWS[1]]
    got = read(jsonl(tmp_path / "in.jsonl", lines), tmp_path / "out")
    assert got.texts()[0][0] == "caf\ufffd"
    assert got.notes == {"bad_utf8": 1}
    assert got.examples["bad_utf8"] == ["in.jsonl:1"]


@pytest.mark.parametrize("rows", [1, 2])
def test_lone_surrogates_are_mended_whatever_stands_beside_them(tmp_path, rows):
    lines = [
        '{"messages":[{"role":"user","content":"bad \\ud83d end"},{"role":"assistant","content":"ok"}]}',
        '{"messages":[{"role":"user","content":"fine \\ud83d\\ude00"},{"role":"assistant","content":"ok"}]}',
    ][:rows]
    got = read(jsonl(tmp_path / "in.jsonl", lines), tmp_path / "out")
    assert [texts[0] for texts in got.texts()] == ["bad \ufffd end", "fine 😀"][:rows]
    assert got.notes == {"lone_surrogate": 1}


def test_a_lone_surrogate_inside_tool_arguments(tmp_path):
    call = {"function": {"name": "f", "arguments": '{"a": "\\ud83d"}'}}
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x", "tool_calls": [call]}]}
    got = read(jsonl(tmp_path / "in.jsonl", [row]), tmp_path / "out")
    assert got.rows[0]["conversation"][1]["tool_calls"][0]["function"]["arguments"] == '{"a":"\ufffd"}'


def test_numbers_that_json_does_not_know(tmp_path):
    lines = [json.dumps({**ROWS[0], "score": float("nan")}), json.dumps({**ROWS[1], "n": 10**30})]
    assert questions(read(jsonl(tmp_path / "in.jsonl", lines), tmp_path / "out")) == FIVE[:2]


@pytest.mark.parametrize("name", ["in.json", "in.jsonl"])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_by_any_name(tmp_path, name, indent):
    path = tmp_path / name
    path.write_text(json.dumps(ROWS, indent=indent))
    assert questions(read(path, tmp_path / "out")) == FIVE


@pytest.mark.parametrize("name", ["in.json", "in.jsonl", "in.csv", "data"])
def test_lines_by_any_name(tmp_path, name):
    path = tmp_path / name
    path.write_text(TEXT)
    assert questions(read(path, tmp_path / "out")) == FIVE


def test_lines_whose_first_one_is_damaged(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"messages": [{"role": "us\n' + TEXT)
    got = read(path, tmp_path / "out")
    assert questions(got) == FIVE
    assert got.failed == {"bad_json": 1}


def test_values_one_after_another_over_several_lines(tmp_path):
    path = tmp_path / "in.json"
    path.write_text("\n".join(json.dumps(row, indent=1) for row in ROWS))
    assert questions(read(path, tmp_path / "out")) == FIVE


def test_rows_under_a_key(tmp_path):
    path = tmp_path / "in.json"
    path.write_text(json.dumps({"version": 1, "data": ROWS}))
    assert questions(read(path, tmp_path / "out", field="data")) == FIVE
    with pytest.raises(EyrieError, match="no list under 'rows'"):
        read(path, tmp_path / "other", field="rows")


def test_an_array_larger_than_the_readers_block(tmp_path, monkeypatch):
    monkeypatch.setattr("eyrie.dataset.readers.BLOCK", 64)
    path = tmp_path / "in.json"
    path.write_text(json.dumps([*ROWS, chat("ü" * 5000, "long")], ensure_ascii=False))
    got = read(path, tmp_path / "out")
    assert questions(got) == [*FIVE, "ü" * 5000]


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.99])
def test_a_torn_array_fails_instead_of_losing_its_rest(tmp_path, cut):
    path = tmp_path / "in.json"
    text = json.dumps(ROWS)
    path.write_text(text[: int(len(text) * cut)])
    with pytest.raises(EyrieError, match="damaged or ends early") as caught:
        read(path, tmp_path / "out")
    assert caught.value.code == "file-torn"


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", None)],
    ids=["gz", "bz2", "xz", "zst"],
)
class TestPacked:
    def data(self, pack, text=TEXT):
        import zstandard

        return (pack or zstandard.ZstdCompressor().compress)(text.encode())

    @pytest.mark.parametrize("lie", [False, True], ids=["named", "misnamed"])
    def test_read(self, tmp_path, suffix, pack, lie):
        path = tmp_path / f"in.jsonl{'' if lie else suffix}"
        path.write_bytes(self.data(pack))
        assert questions(read(path, tmp_path / "out")) == FIVE

    def test_torn(self, tmp_path, suffix, pack):
        text = "".join(json.dumps(chat(os.urandom(40).hex(), "a")) + "\n" for _ in range(4000))
        data = self.data(pack, text)
        path = tmp_path / f"in.jsonl{suffix}"
        path.write_bytes(data[: len(data) // 2])
        with pytest.raises(EyrieError, match="damaged or ends early") as caught:
            read(path, tmp_path / "out")
        assert caught.value.code == "file-torn"
        assert str(path) in caught.value.where


def test_shards_with_drifting_columns_become_one_schema(tmp_path):
    shards = [
        jsonl(tmp_path / "a.jsonl", [{"id": "1", "source": None, **chat("q0", "a")}]),
        jsonl(tmp_path / "b.jsonl", [{"id": "2", "source": "web", "score": 0.5, **chat("q1", "a")}]),
        jsonl(
            tmp_path / "c.jsonl", [{"id": 3, **chat("q2", "a")}, {"messages": json.dumps(chat("q3", "a")["messages"])}]
        ),
    ]
    for order in (shards, shards[::-1]):
        got = read(order, tmp_path / str(len(os.listdir(tmp_path))))
        assert sorted(questions(got)) == ["q0", "q1", "q2", "q3"]
        assert got.dropped == {}


def parquet(path, rows, schema=None):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=2)
    return path


def test_parquet_shards_with_other_structs(tmp_path):
    turn = chat("q0", "a")["messages"]
    shards = [
        parquet(tmp_path / "0.parquet", [{"id": "p0", "messages": turn}]),
        parquet(
            tmp_path / "1.parquet",
            [
                {
                    "id": "p1",
                    "messages": [
                        {"role": "user", "content": "q1", "reasoning": None},
                        {"role": "assistant", "content": "a", "reasoning": "why"},
                    ],
                }
            ],
        ),
        parquet(tmp_path / "2.parquet", [{"id": 7, "messages": json.dumps(chat("q2", "a")["messages"]), "extra": 1.5}]),
    ]
    got = read(shards, tmp_path / "out")
    assert questions(got) == ["q0", "q1", "q2"]
    assert "reasoning" not in got.rows[0]["conversation"][1]
    assert got.rows[1]["conversation"][1]["reasoning"] == "why"
    assert "reasoning" not in got.rows[1]["conversation"][0]


def test_parquet_structs_do_not_leak_nulls_into_tools(tmp_path):
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"a": 1, "b": None}}},
        {"type": "function", "function": {"name": "g", "parameters": {"a": None, "b": "x"}}},
    ]
    calls = [{"id": "c", "function": {"name": "f", "arguments": {"a": 1, "b": None}}}]
    row = {
        "messages": [
            {"role": "user", "content": "q", "tool_calls": None},
            {"role": "assistant", "content": None, "tool_calls": calls},
        ],
        "tools": tools,
    }
    got = read(parquet(tmp_path / "in.parquet", [row]), tmp_path / "out")
    assert [tool["function"]["parameters"] for tool in json.loads(got.rows[0]["tools"])] == [{"a": 1}, {"b": "x"}]
    assert got.rows[0]["conversation"][1]["tool_calls"][0]["function"]["arguments"] == '{"a":1}'


def test_parquet_row_groups_are_stretches(tmp_path, monkeypatch):
    path = parquet(tmp_path / "in.parquet", ROWS)
    whole = read(path, tmp_path / "whole")
    monkeypatch.setattr(tasks, "STRETCH_GROUPS_BYTES", 1)
    cut = read(path, tmp_path / "cut")
    assert questions(cut) == questions(whole) == FIVE
    assert [row["line"] for row in cut.rows] == [1, 2, 3, 4, 5]


def test_a_torn_parquet_file(tmp_path):
    path = parquet(tmp_path / "in.parquet", ROWS)
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    with pytest.raises(EyrieError, match="damaged or ends early"):
        read(path, tmp_path / "out")
    path.write_bytes(data[:8] + b"\xff" * 60 + data[68:])
    with pytest.raises(EyrieError, match="damaged or ends early"):
        read(path, tmp_path / "other")


def test_parquet_by_a_wrong_name_and_text_named_parquet(tmp_path):
    path = parquet(tmp_path / "in.jsonl", ROWS)
    assert questions(read(path, tmp_path / "out")) == FIVE
    fake = tmp_path / "in.parquet"
    fake.write_text("hello")
    with pytest.raises(EyrieError, match="no parquet file"):
        read(fake, tmp_path / "other")
    jsonl(fake, ROWS)
    assert questions(read(fake, tmp_path / "third")) == FIVE


def test_text_in_a_table_that_is_no_utf8(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    raw = pa.array([b"fine", b"caf\xe9"], pa.binary())
    table = pa.table({"prompt": pa.Array.from_buffers(pa.string(), 2, raw.buffers())})
    pq.write_table(table, tmp_path / "in.parquet")
    got = read(tmp_path / "in.parquet", tmp_path / "out", adapter="prompt")
    assert questions(got) == ["fine"]
    assert got.failed == {"bad_utf8": 1}
    pq.write_table(pa.table({"prompt": raw}), tmp_path / "binary.parquet")
    assert questions(read(tmp_path / "binary.parquet", tmp_path / "more", adapter="prompt")) == ["fine", "caf\ufffd"]


@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
def test_arrow(tmp_path, stream):
    import pyarrow as pa

    table = pa.Table.from_pylist(ROWS)
    path = tmp_path / "data-00000.arrow"
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, make(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    assert questions(read(path, tmp_path / "out")) == FIVE
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(EyrieError, match="damaged or ends early"):
        read(path, tmp_path / "torn")


def test_csv(tmp_path):
    path = tmp_path / "in.csv"
    path.write_bytes(b'\xef\xbb\xbfquestion,answer\n"a, ""b""\nc",d\nonly one\ne,f\n,g\n\nh,i,j\n')
    got = read(path, tmp_path / "out", adapter="pair")
    assert got.texts() == [['a, "b"\nc', "d"], ["e", "f"]]
    assert got.failed == {"bad_csv": 2}
    assert got.dropped == {"empty": 1}
    assert got.examples["bad_csv"] == ["in.csv:4", "in.csv:8"]
    tabs = tmp_path / "in.tsv"
    tabs.write_text("question\tanswer\nq\ta\n")
    assert read(tabs, tmp_path / "tabs", adapter="pair").texts() == [["q", "a"]]


def test_plain_text_is_a_prompt_a_line(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("first\n\n  second  \n")
    assert questions(read(path, tmp_path / "out", adapter="prompt")) == ["first", "second"]


def test_an_empty_file_has_no_rows(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(b"")
    got = read(tmp_path / "in.jsonl", tmp_path / "out")
    assert (got.rows, got.book.entered) == ([], 0)


def test_a_pointer_to_data_is_not_data(tmp_path):
    path = tmp_path / "in.parquet"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    with pytest.raises(EyrieError, match="Git LFS pointer"):
        formats.shape(path)


def test_a_loading_script_is_never_run(tmp_path):
    from dataset_toy import source

    (tmp_path / "old.py").write_text("raise SystemExit('executed')")
    with pytest.raises(EyrieError, match="loading script"):
        files.local(source(path=str(tmp_path)), "old")
    jsonl(tmp_path / "data.jsonl", ROWS)
    (tmp_path / "dataset_info.json").write_text("{}")
    assert [name for name, _ in files.local(source(path=str(tmp_path)), "old")] == ["data.jsonl"]


def test_stretches_read_like_the_whole(tmp_path, monkeypatch):
    """Wherever a file of lines is cut, its rows, places and books are the same."""
    lines = [*ROWS, "broken", chat("a" * 300, "b"), "", chat("ü" * 100, "c"), "[]"]
    path = jsonl(tmp_path / "in.jsonl", lines)
    whole = read(path, tmp_path / "whole")
    for size in (7, 64, 100, 333):
        monkeypatch.setattr(tasks, "STRETCH_BYTES", size)
        cut = read(path, tmp_path / f"cut{size}")
        assert cut.rows == whole.rows
        assert (cut.failed, cut.dropped, cut.examples) == (whole.failed, whole.dropped, whole.examples)


def test_a_stream_is_cut_into_parts(tmp_path, monkeypatch):
    path = tmp_path / "in.json"
    path.write_text(json.dumps([*ROWS, 3, *ROWS]))
    whole = read(path, tmp_path / "whole")
    monkeypatch.setattr(tasks, "PART_ROWS", 2)
    cut = read(path, tmp_path / "cut")
    assert cut.rows == whole.rows
    assert cut.examples == whole.examples == {"not_object": ["in.json:6"]}
    assert len(list((tmp_path / "cut").glob("*/*.rows"))) == 6


def test_packed_lines_are_cut_into_parts_and_taken_up_behind_them(tmp_path, monkeypatch):
    lines = [*ROWS, "broken", chat("a" * 300, "b"), "", chat("ü" * 100, "c"), "[]", *ROWS]
    whole = read(jsonl(tmp_path / "in.jsonl", lines), tmp_path / "whole")
    packed = tmp_path / "in.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "in.jsonl").read_bytes()))
    monkeypatch.setattr(tasks, "PART_ROWS", 3)
    for size in (50, 170, 500):
        monkeypatch.setattr(readers, "BLOCK", size)
        folder = tmp_path / f"cut{size}"
        cut = read(packed, folder)
        parts = sorted(folder.glob("*/*.json"))
        assert len(parts) > 2
        parts[-1].unlink()
        parts[-2].unlink()
        monkeypatch.setattr(readers, "BLOCK", size + 13)  # what is there ends in the middle of a block now
        again = read(packed, folder)
        for one in (cut, again):
            assert one.rows == whole.rows
            assert (one.failed, one.dropped) == (whole.failed, whole.dropped)
            assert one.examples == {
                reason: [place.replace("in.jsonl", "in.jsonl.gz") for place in places]
                for reason, places in whole.examples.items()
            }


def test_a_limit_in_rows(tmp_path):
    got = read(jsonl(tmp_path / "in.jsonl", [*ROWS, *ROWS]), tmp_path / "out", rows=3)
    assert questions(got) == FIVE[:3]
    assert got.book.entered == 3

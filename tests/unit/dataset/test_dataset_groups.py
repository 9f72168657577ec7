"""Row groups that are encoded one by one make the very file that pyarrow writes in one go."""

import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from eyrie.dataset import groups, output, thrift  # noqa: E402
from eyrie.dataset.sink import Sink  # noqa: E402

pytestmark = pytest.mark.node


def table(rows, number, evaluation=False):
    columns = {
        "id": [f"{number:04x}{row:028x}" for row in range(rows)],
        "source": [f"source {row % 3}" for row in range(rows)],
        "row": list(range(rows)),
        "conversation": [f"{number} " + "größer " * (row % 40) for row in range(rows)],
        "tools": [None if row % 4 else "[]" for row in range(rows)],
        "set": ["heldout"] * rows,
    }
    schema = output.schema(evaluation)
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def written(path, tables, evaluation):
    sink = Sink(path, output.schema(evaluation))
    for one in tables:
        sink.add(lambda one=one: one)
    return sink.finish()


@pytest.mark.parametrize("evaluation", [False, True])
@pytest.mark.parametrize("sizes", [[], [0], [5], [10, 0, 70_000, 3, 1], [1] * 40])
def test_the_file_is_what_one_writer_makes(tmp_path, sizes, evaluation):
    tables = [table(rows, number, evaluation) for number, rows in enumerate(sizes)]
    found = written(tmp_path / "ours.parquet", tables, evaluation)
    schema = output.schema(evaluation)
    with pq.ParquetWriter(tmp_path / "theirs.parquet", schema, **groups.options(schema)) as writer:
        for one in tables:
            if one.num_rows:
                writer.write_table(one, row_group_size=groups.ROW_GROUP)
    assert (tmp_path / "ours.parquet").read_bytes() == (tmp_path / "theirs.parquet").read_bytes()
    assert (found["rows"], found["bytes"]) == (sum(sizes), (tmp_path / "ours.parquet").stat().st_size)
    assert pq.read_table(tmp_path / "ours.parquet").equals(pa.concat_tables([schema.empty_table(), *tables]))


def test_what_fails_while_it_is_encoded_is_raised_and_leaves_nothing(tmp_path):
    sink = Sink(tmp_path / "train.parquet", output.schema())

    def broken():
        raise OSError(28, "No space left on device")

    sink.add(lambda: table(3, 0))
    sink.add(broken)
    with pytest.raises(OSError, match="No space left"):
        sink.finish()
    sink.abandon()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "texts", [["long enough for a view", "größer als zwölf", "another long text"], ["short", "x" * 40]]
)
def test_strings_as_views_are_the_strings(texts):
    import numpy as np

    from eyrie.dataset import columns

    field = pa.field("text", pa.string(), nullable=False)
    whole = pa.table(
        [pa.array(["first, and not looked at", *texts, "last one, cut off too"])], schema=pa.schema([field])
    )
    part = whole.slice(1, len(texts))
    rows = np.array([1, 0, 1])
    found, array = columns.views(part, 0, rows)
    assert array.to_pylist() == [texts[row] for row in rows]
    assert pa.types.is_string_view(found.type) == (min(map(len, texts)) > columns.IN_VIEW)
    array.validate(full=True)
    piece = groups.encode(pa.table([array], schema=pa.schema([found])))
    plain = groups.encode(pa.table([part.column(0).take(pa.array(rows))], schema=pa.schema([field])))
    assert (piece.pages, piece.footer) == (plain.pages, plain.footer)


value = st.deferred(lambda: st.one_of(*(kind.map(lambda it, number=number: (number, it)) for number, kind in kinds)))
numbers = st.integers(-(2**63), 2**63 - 1)
structs = st.deferred(
    lambda: st.dictionaries(st.integers(1, 300), value, max_size=4).map(lambda it: dict(sorted(it.items())))
)
lists = st.one_of(
    st.lists(st.binary(max_size=4), max_size=20).map(lambda it: (thrift.BINARY, it)),
    st.lists(numbers, max_size=20).map(lambda it: (thrift.I64, it)),
    st.lists(st.integers(1, 2), max_size=3).map(lambda it: (thrift.TRUE, it)),
    st.lists(structs, max_size=3).map(lambda it: (thrift.STRUCT, it)),
)
kinds = [
    (thrift.TRUE, st.just(True)),
    (thrift.FALSE, st.just(False)),
    (thrift.BYTE, st.integers(0, 255)),
    (thrift.I16, st.integers(-(2**15), 2**15 - 1)),
    (thrift.I32, st.integers(-(2**31), 2**31 - 1)),
    (thrift.I64, numbers),
    (thrift.DOUBLE, st.binary(min_size=8, max_size=8)),
    (thrift.BINARY, st.binary(max_size=200)),
    (thrift.LIST, lists),
    (thrift.STRUCT, structs),
]


@given(structs, st.binary(max_size=3))
@settings(max_examples=500, deadline=None)
def test_metadata_is_read_as_it_was_written(fields, behind):
    data = thrift.write(fields)
    assert thrift.read(data + behind) == (fields, len(data))
    assert thrift.write(thrift.read(data)[0]) == data


def test_a_map_is_refused():
    with pytest.raises(ValueError, match="kind 11"):
        thrift.read(bytes([0x10 | thrift.MAP, 0, 0]))

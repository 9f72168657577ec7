"""Properties of adapters, keys and the mix, over data that nobody would think of."""

from __future__ import annotations

import itertools
import json
import unicodedata

import pytest
from dataset_toy import jsonl, read, source
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eyrie.dataset import mix, readers
from eyrie.dataset.adapters import Adapter
from eyrie.dataset.keys import folded, prompt_key, turns_key
from eyrie.dataset.turn import ROLES
from eyrie.dataset.values import Reject, mended

pytestmark = pytest.mark.node

ADAPTERS = ["messages", "sharegpt", "pair", "prompt", "alternating", "hermes"]
WORDS = [
    "messages",
    "conversations",
    "role",
    "from",
    "content",
    "value",
    "prompt",
    "response",
    "tools",
    "tool_calls",
    "system",
    "function",
    "name",
    "arguments",
    "metadata",
    "reasoning",
    "reasoning_content",
    "type",
    "text",
    "user",
    "assistant",
    "tool",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "id",
    "tool_call_id",
]
leaf = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(WORDS),
    st.sampled_from(sorted(ROLES)),
)
anything = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(WORDS), st.text(max_size=6)), inner, max_size=5),
    ),
    max_leaves=24,
)
call = st.fixed_dictionaries(
    {"name": st.sampled_from(["f", "g"]), "arguments": st.sampled_from(["{}", '{"a":1}', {"b": "c"}, None])}
)
turn = st.fixed_dictionaries(
    {
        "role": st.one_of(st.sampled_from([*ROLES, "User ", "nobody"]), st.none()),
        "content": st.one_of(st.text(max_size=20), st.none()),
    },
    optional={
        "from": st.none(),
        "value": st.none(),
        "reasoning": st.one_of(st.none(), st.text(max_size=5)),
        "tool_calls": st.one_of(st.none(), st.lists(call, max_size=2)),
        "tool_call_id": st.one_of(st.none(), st.text(max_size=4)),
    },
)
row = st.fixed_dictionaries(
    {"messages": st.lists(turn, max_size=8)}, optional={"system": st.one_of(st.none(), st.text(max_size=8))}
)


def check(messages, tools):
    """What every canonical conversation is."""
    assert messages
    roles = [message["role"] for message in messages]
    assert "user" in roles
    assert set(roles) <= {"system", "user", "assistant", "tool"}
    body = [role for role in roles if role != "system"]
    assert body[0] == "user"
    for message in messages:
        assert isinstance(message["content"], str)
        assert set(message) <= {"role", "content", "reasoning", "tool_calls", "tool_call_id", "name"}
        assert all(value is not None for value in message.values())
        if message["role"] in ("user", "system") or (message["role"] == "assistant" and "tool_calls" not in message):
            assert message["content"].strip()
        for made in message.get("tool_calls", ()):
            assert made["id"]
            assert isinstance(json.loads(made["function"]["arguments"]), dict)
    for before, after in itertools.pairwise(messages):
        if before["role"] == after["role"] != "tool":
            assert "tool_calls" in before or "tool_calls" in after
    assert tools is None or isinstance(json.loads(tools), list)


@given(value=anything, adapter=st.sampled_from(ADAPTERS), table=st.booleans())
@settings(max_examples=600, deadline=None)
def test_an_adapter_gives_a_conversation_or_a_reason(value, adapter, table):
    try:
        messages, tools = Adapter(source(adapter=adapter), table)(mended(value, []), [])
    except Reject:
        return
    check(messages, tools)


@given(value=row)
@settings(max_examples=600, deadline=None)
def test_rows_that_look_right_keep_what_they_say(value):
    notes: list[str] = []
    try:
        messages, tools = Adapter(source())(value, notes)
    except Reject:
        return
    check(messages, tools)
    said = {str(item["content"]) for item in value["messages"] if item["content"] is not None} | {
        str(value.get("system"))
    }
    for message in messages:
        if message["role"] == "user":
            assert all(piece in said for piece in message["content"].split("\n\n")) or any(
                message["content"] in text or "\n\n" in text for text in said
            )


@given(value=row)
@settings(max_examples=300, deadline=None)
def test_the_canonical_form_is_its_own_canonical_form(value):
    try:
        messages, _ = Adapter(source())(value, [])
    except Reject:
        return
    again, _ = Adapter(source())({"messages": json.loads(json.dumps(messages))}, [])
    assert again == messages


@given(value=anything)
@settings(max_examples=300, deadline=None)
def test_any_json_line_is_parsed_or_a_fault_and_can_be_written(value):
    line = json.dumps(value).encode()
    parsed, fault, notes = readers.parse(line)
    assert not fault
    json.dumps(parsed, ensure_ascii=False).encode()
    if not notes and "NaN" not in line.decode() and "Infinity" not in line.decode():
        assert parsed == json.loads(line, parse_int=sixty_four_bits)


def sixty_four_bits(text: str) -> int | float:
    """A whole number as the parser takes it: exactly within 64 bits, beyond them as a float."""
    value = int(text)
    return value if -(2**63) <= value < 2**64 else float(value)


@given(data=st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_parsed_or_a_fault(data):
    value, fault, _ = readers.parse(data)
    assert fault in ("", "bad_json")
    if not fault:
        json.dumps(value, ensure_ascii=False).encode()


@given(lines=st.lists(st.one_of(row.map(json.dumps), st.text(max_size=20), anything.map(json.dumps)), max_size=12))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_books_balance_whatever_the_lines_are(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("lines")
    path = jsonl(folder / "in.jsonl", [line.replace("\n", " ").encode("utf-8", "surrogatepass") for line in lines])
    got = read(path, folder / "out", format="jsonl")
    book = got.book
    assert book.entered == book.kept + book.dropped.total() + book.failed.total()
    assert book.kept == len(got.rows)
    assert book.entered == sum(1 for line in path.read_bytes().split(b"\n") if line.strip())
    assert [item["row"] for item in got.rows] == sorted({item["row"] for item in got.rows})


@given(text=st.text(max_size=40))
@settings(max_examples=400, deadline=None)
def test_folding_sees_through_case_width_and_blanks(text):
    text = mended(text, [])
    assert folded(folded(text)) == folded(text)
    assert folded(f"  {text}\n") == folded(text)
    assert prompt_key(text.upper().lower()) == prompt_key(text.upper().lower().replace(" ", "\u2003  "))
    assert folded(unicodedata.normalize("NFKC", text)) == folded(text)


@given(texts=st.lists(st.text(max_size=6), min_size=1, max_size=4), turns=st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_the_key_of_one_turn_is_that_of_the_prompt(texts, turns):
    messages = [{"role": "user", "content": text} for text in texts]
    assert turns_key(messages, 1) == prompt_key(texts[0])
    assert turns_key(messages, turns) == turns_key(messages[:turns], 9)


@given(
    total=st.integers(0, 200),
    sources=st.lists(st.tuples(st.integers(0, 60), st.floats(0.01, 50)), min_size=1, max_size=8),
)
@settings(max_examples=300, deadline=None)
def test_the_share_of_each_source(total, sources):
    limits, weights = [item[0] for item in sources], [item[1] for item in sources]
    given_out = mix.allocate(total, limits, weights)
    assert sum(given_out) == min(total, sum(limits))
    assert all(0 <= count <= limit for count, limit in zip(given_out, limits, strict=True))
    open_ones = [index for index in range(len(limits)) if given_out[index] < limits[index]]
    for one in open_ones:  # a source that could give more has its share at least
        share = total * weights[one] / sum(weights)
        assert given_out[one] >= int(share) - 1


@given(keys=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=40), data=st.data())
@settings(max_examples=200, deadline=None)
def test_the_first_of_equal_keys_is_that_of_lowest_rank(keys, data):
    import numpy as np

    rank = data.draw(st.permutations(range(len(keys))))
    found = mix.firsts(np.array(keys, dtype=np.uint64), np.array(rank))
    for index, first in enumerate(found.tolist()):
        same = [other for other in range(len(keys)) if keys[other] == keys[index]]
        assert first == min(same, key=lambda other: rank[other])


@given(
    values=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=20),
    among=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=5),
)
@settings(max_examples=200, deadline=None)
def test_membership_compares_all_sixteen_bytes(values, among):
    import numpy as np

    mask = mix.member(np.array(values, dtype=np.uint64).reshape(-1, 2), np.array(among, dtype=np.uint64).reshape(-1, 2))
    assert mask.tolist() == [value in among for value in values]


plain_text = st.one_of(
    st.sampled_from(["q", " ", "", "<think>r</think>a", "x</think>y", "two\nlines"]), st.text(max_size=8)
)
plain_content = st.one_of(
    plain_text,
    st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": plain_text}), max_size=2),
    st.none(),
)
plain_turn = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "User", "tool"]), "content": plain_content},
        optional={
            "reasoning": plain_text,
            "thinking": st.one_of(st.none(), plain_text),
            "from": st.none(),
            "name": st.one_of(st.none(), st.just("n")),
            "tool_calls": st.none(),
            "language": st.just("English"),
            "metadata": st.one_of(st.none(), st.just({"thinking": "t"})),
        },
    ),
    st.fixed_dictionaries({"from": st.sampled_from(["human", "gpt", "system", "bot"]), "value": plain_content}),
)
wire_call = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["c1", "c2", ""]),
        "type": st.sampled_from(["function", "function", "other"]),
        "function": st.fixed_dictionaries(
            {
                "name": st.sampled_from(["f", " f", ""]),
                "arguments": st.sampled_from(
                    [
                        "{}",
                        '{"a": 1}',
                        '{"a":"\\u00fc\\/"}',
                        '{"a":1.5}',
                        '{"a":1e16}',
                        '{"a":123456789012345678901234567890}',
                        '{"a":[1]}',
                        '{"a":1,"a":true}',
                        "[1]",
                        "x",
                        "",
                    ]
                ),
            },
            optional={"more": st.none()},
        ),
    },
    optional={"index": st.just(0)},
)
called_turn = st.one_of(
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": plain_content, "tool_calls": st.lists(wire_call, max_size=2)},
        optional={"reasoning": plain_text},
    ),
    st.fixed_dictionaries(
        {"role": st.just("tool"), "content": plain_content, "tool_call_id": st.sampled_from(["c1", "c2", "", None])},
        optional={"name": st.sampled_from(["f", None])},
    ),
)
called_row = st.tuples(plain_text, st.lists(st.one_of(called_turn, called_turn, plain_turn), max_size=5)).map(
    lambda row: {"messages": [{"role": "user", "content": row[0]}, *row[1]]}
)
plain_row = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "messages": st.lists(plain_turn, max_size=5),
            "conversations": st.lists(plain_turn, max_size=5),
            "system": st.one_of(st.none(), plain_text),
            "system_prompt": st.one_of(st.none(), plain_text),
            "tools": st.one_of(st.none(), st.just("")),
            "reasoning": st.one_of(st.none(), plain_text),
        },
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "prompt": plain_content,
            "instruction": plain_content,
            "input": st.one_of(st.none(), plain_text),
            "response": plain_content,
            "output": plain_content,
        },
    ),
    called_row,
    anything,
)


@given(value=plain_row, adapter=st.sampled_from(ADAPTERS), table=st.booleans())
@settings(max_examples=2000, deadline=None)
def test_the_short_way_agrees_with_the_long_one(value, adapter, table):
    """Where it answers at all, it answers what the adapter does, and only for rows without tools and notes."""
    from eyrie.dataset import quick

    value = mended(value, [])
    mine = Adapter(source(adapter=adapter), table)
    short = quick.way(mine)(value)
    if short is not None:
        notes: list[str] = []
        messages, tools = mine(value, notes)
        assert (short, None) == (messages, tools)
        assert [list(message) for message in short] == [list(message) for message in messages], (
            "the order makes the bytes"
        )
        assert notes == []


def written(value, data):
    """A row as a line of JSON, as some writer or other spells it."""
    import orjson

    way = data.draw(st.sampled_from(["compact", "spaced", "ascii", "slashes", "members twice"]))
    if way == "compact":
        try:
            return orjson.dumps(value)
        except TypeError:
            way = "spaced"  # a whole number that is too large
    text = json.dumps(value, ensure_ascii=way == "ascii")
    if way == "slashes":
        text = text.replace("/", "\\/")
    if way == "members twice" and text.startswith("{") and value:
        text = f"{text[:-1]}, {json.dumps(dict(list(value.items())[:1]))[1:-1]}}}"
    return text.encode()


@given(value=plain_row, adapter=st.sampled_from(ADAPTERS), data=st.data())
@settings(max_examples=2000, deadline=None)
def test_the_shortest_way_agrees_with_the_long_one(value, adapter, data):
    """Where it answers at all for a clean line, it answers the very bytes of what the adapter makes of the line."""
    import orjson

    from eyrie.dataset import verbatim
    from eyrie.dataset.block import Block
    from eyrie.dataset.keys import text_keys

    line = written(mended(value, []), data)
    mine = Adapter(source(adapter=adapter))
    way = verbatim.way(mine)
    if way is None or Block(line).unclean() != set():
        return
    found = way.line(line)
    if found is not None:
        parsed, fault, notes = readers.parse(line)
        assert (fault, notes) == ("", [])
        messages, tools = mine(parsed, notes)
        assert (found[0], None, []) == (orjson.dumps(messages), tools, notes)
        first = next(message["content"] for message in messages if message["role"] == "user")
        assert json.loads(found[1]) == first
        assert text_keys([found[1]]) == prompt_key(first)


@given(
    pieces=st.lists(
        st.sampled_from(
            ["a", "\\\\", '\\"', "\\n", "\\t", "\\b", "\\u0041", "\\/", "\\x", "\\ud800", "\u00fc", "\t", "\x7f"]
        ),
        max_size=6,
    ),
    broken=st.booleans(),
)
@settings(max_examples=1500, deadline=None)
def test_a_text_passes_through_only_as_the_canonical_form_spells_it(pieces, broken):
    import orjson

    from eyrie.dataset import verbatim
    from eyrie.dataset.block import Block

    text = "".join(pieces).encode() + (b"\xff" if broken else b"")
    line = b'{"prompt":"x%b","n":"%b"}' % (text, text)
    lines = [b'{"prompt":"before"}', line, b'{"prompt":"behind"}']
    flagged = Block(b"\n".join(lines)).unclean()
    assert (flagged is None) == broken
    found = verbatim.way(Adapter(source(adapter="prompt"))).line(line) if flagged is not None else None
    if flagged is not None:
        assert flagged <= {1}
    if found and 1 not in flagged:
        assert found[0] == orjson.dumps([{"role": "user", "content": orjson.loads(line)["prompt"]}])


@given(
    values=st.lists(st.one_of(plain_row, st.just(None)), max_size=8), adapter=st.sampled_from(ADAPTERS), data=st.data()
)
@settings(max_examples=1000, deadline=None)
def test_a_block_gives_what_its_lines_give_one_by_one(values, adapter, data):
    """Blank lines, broken ones and rows of several forms among them; a row that spans lines belongs to none."""
    from eyrie.dataset import verbatim
    from eyrie.dataset.block import Block

    lines = [b"" if value is None else written(mended(value, []), data) for value in values]
    if data.draw(st.booleans()):
        lines = b"\n".join(lines).replace(b",", b",\n", 1).split(b"\n")
    mine = Adapter(source(adapter=adapter))
    if verbatim.way(mine) is None or not lines:
        return
    block = Block(b"\n".join(lines))
    some = sorted(data.draw(st.sets(st.integers(0, len(lines) - 1))))
    assert (block.count, block.lines(some)) == (len(lines), [lines[index] for index in some])
    alone = [verbatim.way(mine).line(line) if Block(line).unclean() == set() else None for line in lines]
    hits, rest = verbatim.way(mine).block(block)
    assert hits == [hit for hit in alone if hit]
    assert rest == [index for index, hit in enumerate(alone) if not hit]


FOLDED = ["a", "B", " ", "  ", "\n", "\t", '"', "\\", "\\n", "n", "\x7f", "\u00e9", "e\u0301", "\uff21", "\u00a0"]
FOLDED += ["\uff02", "\u2028", "\u00df", "\u0130", "\ufb01", "\uac00", "\u1100\u1161", "\u03c2", "\u00b4", "\u0301"]


@given(st.lists(st.lists(st.sampled_from(FOLDED), max_size=6).map("".join), max_size=5))
@settings(max_examples=2000, deadline=None)
def test_texts_are_keyed_together_as_they_are_one_by_one(texts):
    import orjson

    from eyrie.dataset.keys import text_keys

    assert text_keys([orjson.dumps(text) for text in texts]) == b"".join(map(prompt_key, texts))


ESCAPES = [b"\\", b"\\\\", b"n", b"t", b'"', b"f", b"a", b"\\n", b"\\\\f"]


@given(st.lists(st.lists(st.sampled_from(ESCAPES), max_size=8).map(b"".join), min_size=1, max_size=3))
@settings(max_examples=1500, deadline=None)
def test_lines_with_an_escape_in_another_spelling_are_found_exactly(lines):
    import re

    from eyrie.dataset.block import CANONICAL, Block

    lines = [line + b"x" for line in lines]
    other = {
        index
        for index, line in enumerate(lines)
        if any(escape[1:] not in list(map(bytes, zip(CANONICAL, strict=True))) for escape in re.findall(rb"\\.", line))
    }
    assert Block(b"\n".join(lines)).unclean() == other


def test_plain_rows_do_take_the_shortest_way():
    from dataset_toy import chat

    from eyrie.dataset import verbatim
    from eyrie.dataset.block import Block

    def takes(row, **entry):
        block = Block(json.dumps(row).encode())
        hits, _ = verbatim.way(Adapter(source(**entry))).block(block)
        return bool(hits)

    parts = [
        {"role": role, "content": [{"type": "text", "text": text}]}
        for role, text in (("user", "q"), ("assistant", "a"))
    ]
    thinking = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": "r"}]
    assert takes(chat("q\n", 'a "b"', "r", "b"))
    assert takes({"messages": parts})
    assert takes({"messages": thinking, "tools": None})
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"n": 1}'}}
    called = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "", "tool_call_id": "c1"},
        {"role": "assistant", "content": "a", "tool_calls": None},
    ]
    assert takes({"messages": called})
    assert takes({"conversations": chat("q", "a")["messages"], "system": "s"}, adapter="sharegpt")
    assert takes(
        {"instruction": "q", "output": "a", "input": None},
        adapter="pair",
        columns={"prompt": "instruction", "response": "output"},
    )
    assert takes({"prompt": "q"}, adapter="prompt")
    assert not takes(chat("q", None))


def test_blanks_that_folding_leaves_are_all_known():
    import sys
    import unicodedata

    from eyrie.dataset.keys import OTHER_BLANKS

    every = [chr(code) for code in range(0x20, sys.maxunicode + 1) if chr(code).isspace()]
    assert {blank for blank in every if unicodedata.normalize("NFKC", blank) != " "} == {*OTHER_BLANKS}


def test_lines_of_a_block_are_decoded_together_though_one_is_of_another_kind():
    from dataset_toy import chat

    from eyrie.dataset import verbatim
    from eyrie.dataset.block import Block

    way = verbatim.way(Adapter(source()))
    asked = []
    decoder = way.form.decoder

    class Counting:
        def decode_lines(self, data):
            asked.append("block")
            return decoder.decode_lines(data)

        def decode(self, line):
            asked.append("line")
            return decoder.decode(line)

    way.form = way.form._replace(decoder=Counting())
    rows = [chat("q1", "a1"), chat("q2", None), chat("q3", "\\frac{1}{2}"), chat("q4", "a4")]
    hits, rest = way.block(Block("\n".join(map(json.dumps, rows)).encode()))
    assert [json.loads(first) for _, first in hits] == ["q1", "q3", "q4"]
    assert (rest, asked) == ([1], ["block"])


def test_plain_rows_do_take_the_short_way():
    from dataset_toy import chat

    from eyrie.dataset import quick

    assert quick.way(Adapter(source()))(chat("q", "a", "r", "b")) is not None
    table = quick.way(Adapter(source(), table=True))
    empty = {"tool_calls": None, "reasoning": None, "language": "English"}
    assert table({"messages": [{**turn, **empty} for turn in chat("q", "a")["messages"]], "tools": None}) is not None
    assert quick.way(Adapter(source(adapter="sharegpt")))(
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    )
    assert quick.way(Adapter(source(adapter="pair")))({"prompt": "q", "response": "a"})
    assert quick.way(Adapter(source(adapter="prompt")))({"prompt": "q"})

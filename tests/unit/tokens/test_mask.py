"""Loss masks of rows without sampled ids: borders from differences of renders, whatever the template looks like."""

from __future__ import annotations

import json

import pytest
import toy

from eyrie.core.errors import EyrieError
from eyrie.tokens import build
from eyrie.tokens.settings import Settings
from eyrie.tokens.template import Template, TemplateError, Unstable, common, with_reasoning
from eyrie.tokens.tokenizer import Tokenizer

CONVERSATION = [toy.user("Q1"), toy.said("A1"), toy.user("Q2"), toy.said("A2")]


def rendered(tmp_path, template, conversation, merge=True, **kwargs):
    """(turns, tokenizer) of a conversation used as it is."""
    model = toy.make_model(tmp_path / "model", template, **kwargs)
    table = toy.table_of(tmp_path / "responses.parquet", toy.rows_of(conversation))
    tokenizer = Tokenizer.load(model)
    turns = build.rendered_turns(table, Template.load(model), tokenizer)
    return list(build.merge(turns) if merge else turns), tokenizer


def supervised(tmp_path, template, conversation, **kwargs):
    turns, tokenizer = rendered(tmp_path, template, conversation, **kwargs)
    return [text for turn in turns for text in toy.spans_text(tokenizer, turn.ids, turn.spans)]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (toy.PLAIN, ["A1<|e|>", "A2<|e|>"]),
        (toy.TAGGED, ["A1<|e|>", "A2<|e|>"]),
        (toy.STRICT, ["A1<|eot|>", "A2<|eot|>"]),
        (toy.BRACKETS, ["A1 [[/]]", "A2 [[/]]"]),
        (toy.KEEPING, ["A1<|e|>", "A2<|e|>"]),
    ],
    ids=["no-generation-tags", "generation-tags", "end-mark-is-not-eos", "unknown-markers", "reasoning-template"],
)
def test_answers_and_their_end_marks_are_supervised(tmp_path, template, expected):
    assert supervised(tmp_path, template, CONVERSATION) == expected


@pytest.mark.parametrize("template", [toy.PLAIN, toy.TAGGED, toy.STRICT, toy.BRACKETS, toy.THINKING, toy.KEEPING])
def test_no_token_of_a_question_is_supervised(tmp_path, template):
    conversation = [toy.user("ALPHA"), toy.said("one"), toy.user("BETA"), toy.said("two")]
    turns, tokenizer = rendered(tmp_path, template, conversation, merge=False)
    for turn in turns:
        inside = "".join(toy.spans_text(tokenizer, turn.ids, turn.spans))
        assert "ALPHA" not in inside
        assert "BETA" not in inside
        whole = tokenizer.decode([int(token) for token in turn.ids])
        assert "ALPHA" in whole


def test_leading_assistant_turn_is_refused_and_named(tmp_path):
    turns, _ = rendered(tmp_path, toy.TAGGED, [toy.said("A"), toy.user("user text")])
    assert [turn.refused for turn in turns] == ["leading_assistant"]


def test_row_without_user_is_refused_and_the_next_is_kept(tmp_path):
    conversation = [toy.said("hello"), toy.said("again")]
    turns, _ = rendered(tmp_path, toy.NEEDS_USER, conversation)
    assert {turn.refused for turn in turns} == {"leading_assistant"}
    assert supervised(tmp_path, toy.NEEDS_USER, [toy.user("Q"), toy.said("A")]) == ["A<|e|>"]


def test_template_error_is_a_reason_not_a_traceback(tmp_path):
    turns, _ = rendered(tmp_path, toy.STRICT, [{"role": "system", "content": "be kind"}, toy.user("Q"), toy.said("A")])
    assert [turn.refused for turn in turns] == ["template_error: no system role"]
    rows, _ = build.collect(iter(turns), Settings(), 300, tmp_path / "ids")
    assert rows.account.as_dict()["dropped"] == {"template_error": 1}
    assert "no system role" in rows.account.examples["template_error"][0]


def test_reasoning_of_the_last_turn_is_supervised_and_of_earlier_ones_absent(tmp_path):
    conversation = [toy.user("Q1"), toy.said("A1", "old"), toy.user("Q2"), toy.said("A2", "because")]
    turns, tokenizer = rendered(tmp_path, toy.THINKING, conversation)
    assert len(turns) == 2, "the template strips reasoning from history: one row per turn"
    first, second = (toy.spans_text(tokenizer, turn.ids, turn.spans)[0] for turn in turns)
    assert first == "old\n</think>\n\nA1<|e|>"
    assert second == "because\n</think>\n\nA2<|e|>"
    assert "old" not in tokenizer.decode([int(token) for token in turns[1].ids])


def test_reasoning_that_history_keeps_lets_turns_share_a_row(tmp_path):
    conversation = [toy.user("Q1"), toy.said("A1", "old"), toy.user("Q2"), toy.said("A2", "because")]
    turns, tokenizer = rendered(tmp_path, toy.KEEPING, conversation)
    assert len(turns) == 1
    assert turns[0].merged == 2
    assert toy.spans_text(tokenizer, turns[0].ids, turns[0].spans) == [
        "<think>old</think>A1<|e|>",
        "<think>because</think>A2<|e|>",
    ]


def test_mark_of_the_generation_prompt_is_not_supervised(tmp_path):
    assert supervised(tmp_path, toy.THINKING, [toy.user("Q"), toy.said("<think>r</think>A")]) == [
        "r\n</think>\n\nA<|e|>"
    ]


def test_empty_thinking_block_that_the_template_writes_is_not_supervised(tmp_path):
    assert supervised(tmp_path, toy.THINKING, [toy.user("write code"), toy.said("print(1)")]) == ["print(1)<|e|>"]


@pytest.mark.parametrize("content", ["a", "aa", "b", " a", "\n\na b", "0", "<|e|>x"])
def test_scaffold_ends_where_the_content_starts(tmp_path, content):
    text = supervised(tmp_path, toy.THINKING, [toy.user("Q"), toy.said(content)])[0]
    assert text.endswith("<|e|>")
    assert content.strip() in text
    assert "</think>" not in text


def test_orphan_closing_mark_is_split(tmp_path):
    content = "2+2 equals 4.\n</think>\n\nThe answer is 4."
    turns, tokenizer = rendered(tmp_path, toy.THINKING, [toy.user("2+2?"), toy.said(content)])
    whole = tokenizer.decode([int(token) for token in turns[0].ids])
    assert whole.count("<think>") == 1
    assert whole.count("</think>") == 1
    message = with_reasoning(toy.said(content))
    assert (message["reasoning_content"], message["content"]) == ("2+2 equals 4.", "The answer is 4.")


def test_marks_are_plain_text_for_a_template_that_does_not_think(tmp_path):
    content = "In HTML-like marks, </think> closes."
    assert supervised(tmp_path, toy.PLAIN, [toy.user("Q"), toy.said(content)]) == [content + "<|e|>"]


def test_text_is_given_one_beginning_of_sequence(tmp_path):
    turns, tokenizer = rendered(tmp_path, toy.STRICT, [toy.user("Q"), toy.said("A")], bos_by_tokenizer=True)
    assert tokenizer.decode([int(token) for token in turns[0].ids]).count("<|bos|>") == 1


def test_text_of_another_template_stops_after_the_probe(tmp_path):
    """Every row refused, or nothing supervised: the run stops early, with the reasons."""
    rows = [
        {**row, "id": f"c{number}"}
        for number in range(150)
        for row in toy.rows_of([{"role": "system", "content": "x"}, toy.user("Q"), toy.said("A")])
    ]
    model = toy.make_model(tmp_path / "model", toy.STRICT)
    table = toy.table_of(tmp_path / "responses.parquet", rows)
    turns = build.rendered_turns(table, Template.load(model), Tokenizer.load(model))
    with pytest.raises(EyrieError, match="supervised tokens = 0 in the first") as caught:
        build.collect(turns, Settings(), 300, tmp_path / "ids")
    assert "template_error" in caught.value.why


def test_history_that_changes_is_refused_as_unstable():
    """A template that rewrites a question once it is answered leaves no border to find."""
    text = (
        "{% for m in messages %}{% if m.role == 'user' and loop.last %}?{% endif %}{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    with pytest.raises(Unstable):
        Template(text, {}, []).span([toy.user("Q")], toy.said("A"))


def test_tools_reach_the_template(tmp_path):
    text = "{{ tools | tojson }}" + toy.PLAIN
    template = Template(text, {}, ["<|e|>"])
    tools = [{"type": "function", "function": {"name": "wetter", "description": "für Köln"}}]
    assert template.render([toy.user("Q")], tools).startswith(json.dumps(tools, ensure_ascii=False))


def test_tool_call_without_text_is_supervised(tmp_path):
    text = (
        "{% for m in messages %}<|s|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<call>"
        "{{ c.function.name }}{% endfor %}<|e|>\n{% endfor %}{% if add_generation_prompt %}<|s|>assistant\n{% endif %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    conversation = [toy.user("Q"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    assert supervised(tmp_path, text, conversation) == ["<call>weather<|e|>"]


def test_code_of_a_template_runs_in_a_sandbox():
    with pytest.raises(TemplateError):
        Template("{{ messages.__class__.__mro__[1].__subclasses__() }}", {}, []).render([toy.user("Q")])


def test_missing_and_broken_templates_are_named(tmp_path):
    model = toy.make_model(tmp_path / "model")
    (model / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(EyrieError) as broken:
        Template.load(model)
    assert broken.value.code == "template-syntax"
    (model / "chat_template.jinja").unlink()
    with pytest.raises(EyrieError) as missing:
        Template.load(model)
    assert missing.value.code == "template-missing"


def test_declared_template_replaces_the_models_own(tmp_path):
    model = toy.make_model(tmp_path / "model", toy.PLAIN)
    assert Template.load(model, toy.BRACKETS).render([toy.user("Q")]) == "[[user]] Q [[/]]\n"


@pytest.mark.parametrize(("template", "opens"), [(toy.THINKING, True), (toy.PLAIN, False), (toy.KEEPING, False)])
def test_a_prompt_that_opens_thinking_is_known(tmp_path, template, opens):
    assert Template(template, {"bos_token": "<|bos|>"}, []).opens("<think>", "</think>") is opens


@pytest.mark.parametrize(
    ("first", "second", "length"), [("", "", 0), ("a", "b", 0), ("abc", "abd", 2), ("abc", "abc", 3), ("ab", "abc", 2)]
)
def test_common_beginning(first, second, length):
    assert common(first, second) == length


def test_renders_equal_transformers(tmp_path):
    """The same text as transformers renders, for every toy template that it renders at all."""
    from transformers.utils.chat_template_utils import render_jinja_template

    for text in (toy.PLAIN, toy.TAGGED, toy.THINKING, toy.KEEPING, toy.BRACKETS):
        for prompt in (False, True):
            theirs, _ = render_jinja_template([CONVERSATION], chat_template=text, add_generation_prompt=prompt)
            assert Template(text, {}, []).render(CONVERSATION, prompt=prompt) == theirs[0]


def test_blank_before_every_text_is_kept_out_of_the_answer(tmp_path):
    """A tokenizer that puts a blank before each text encodes the whole; the border is found by offsets."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Library

    library = Library(models.BPE(vocab={letter: at for at, letter in enumerate("▁abcdefghijxy:;")}, merges=[]))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    library.decoder = decoders.Metaspace(prepend_scheme="always")
    library.add_special_tokens([AddedToken("<|e|>", special=True)])
    tokenizer = Tokenizer(fast=library)
    [(ids, border)] = tokenizer.encode_parts([("ab:", "cd<|e|>")])
    assert ids == library.encode("ab:cd<|e|>", add_special_tokens=False).ids
    assert [library.id_to_token(token) for token in ids[border:]] == ["c", "d", "<|e|>"]


class TestTokenizer:
    def test_code_of_a_model_is_not_run_unasked(self, tmp_path):
        (tmp_path / "tokenization_own.py").write_text("raise SystemExit('this code was run')\n")
        toy.write(
            tmp_path / "tokenizer_config.json",
            {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}},
        )
        with pytest.raises(EyrieError) as caught:
            Tokenizer.load(tmp_path)
        assert caught.value.code == "needs-trust-remote-code"
        assert "trust_remote_code: true" in caught.value.todo

    def test_special_token_that_splits_is_refused(self, tmp_path):
        model = toy.make_model(tmp_path / "model")
        toy.write(model / "tokenizer_config.json", {"added_tokens_decoder": {"999": {"content": "<thinking>"}}})
        with pytest.raises(EyrieError) as caught:
            Tokenizer.load(model)
        assert caught.value.code == "tokenizer-unfaithful"
        assert "<thinking>" in caught.value.what

    def test_missing_tokenizer_is_named(self, tmp_path):
        with pytest.raises(EyrieError) as caught:
            Tokenizer.load(tmp_path)
        assert caught.value.code == "tokenizer-missing"

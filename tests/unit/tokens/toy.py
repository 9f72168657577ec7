"""A toy target for the tests: one token a byte, control tokens as single ids, any chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BOS, EOS, EOT, START, END, THINK, UNTHINK, CALL = (
    "<|bos|>",
    "<|eos|>",
    "<|eot|>",
    "<|s|>",
    "<|e|>",
    "<think>",
    "</think>",
    "<call>",
)
CONTROL = [BOS, EOS, EOT, START, END, THINK, UNTHINK, CALL]

PLAIN = (
    "{% for m in messages %}<|s|>{{ m.role }}\n{{ m.content }}<|e|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|s|>assistant\n{% endif %}"
)
TAGGED = (
    "{% for m in messages %}<|s|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|e|>"
    "{% endgeneration %}{% else %}{{ m.content }}<|e|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|s|>assistant\n{% endif %}"
)
STRICT = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<|eot|>\n{% endfor %}"
    "{% if add_generation_prompt %}<start>model\n{% endif %}"
)
#: thinks in the generation prompt, shows reasoning of the last turn only, writes an empty block where there is none
THINKING = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}<|s|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% if loop.index0 > ns.last %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}{% endif %}"
    "{{ m.content }}<|e|>\n{% endfor %}{% if add_generation_prompt %}<|s|>assistant\n<think>\n{% endif %}"
)
#: shows reasoning of every turn where there is some; the model opens the block itself
KEEPING = (
    "{% for m in messages %}<|s|>{{ m.role }}\n{% if m.reasoning_content %}<think>{{ m.reasoning_content }}"
    "</think>{% endif %}{{ m.content }}<|e|>\n{% endfor %}{% if add_generation_prompt %}<|s|>assistant\n{% endif %}"
)
BRACKETS = (
    "{% for m in messages %}[[{{ m.role }}]] {{ m.content }} [[/]]\n{% endfor %}"
    "{% if add_generation_prompt %}[[assistant]] {% endif %}"
)
NEEDS_USER = (
    "{% if not (messages | selectattr('role', 'equalto', 'user') | list) %}"
    "{{ raise_exception('No user query found.') }}{% endif %}" + PLAIN
)


def make_model(
    folder: Path, template: str = PLAIN, bos_by_tokenizer: bool = False, vocab_size: int | None = None
) -> Path:
    """A model folder: tokenizer.json, tokenizer_config.json, config.json, chat_template.jinja."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    folder.mkdir(parents=True, exist_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    if bos_by_tokenizer:
        bos = tokenizer.token_to_id(BOS)
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos)])
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder / "tokenizer_config.json", {"bos_token": BOS, "eos_token": EOS})
    size = vocab_size or tokenizer.get_vocab_size()
    write(folder / "config.json", {"vocab_size": size, "eos_token_id": tokenizer.token_to_id(EOS)})
    write(folder / "generation_config.json", {"eos_token_id": [tokenizer.token_to_id(EOS), tokenizer.token_to_id(EOT)]})
    (folder / "chat_template.jinja").write_text(template)
    return folder


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, reasoning: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": text, **({"reasoning": reasoning} if reasoning else {})}


def rows_of(conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What responses.parquet holds of a conversation that is used as it is: one row an assistant turn."""
    rows = []
    for at, message in enumerate(conversation):
        if message["role"] == "assistant":
            rows.append(
                {
                    "id": "c",
                    "source": "s",
                    "turn": len(rows),
                    "messages": json.dumps(conversation[:at]),
                    "tools": None,
                    "prompt_ids": [],
                    "output_ids": [],
                    "text": message["content"],
                    "reasoning": message.get("reasoning"),
                    "tool_calls": json.dumps(message["tool_calls"]) if message.get("tool_calls") else None,
                    "finish_reason": "dataset",
                    "sampling": None,
                }
            )
    return rows


def table_of(path: Path, rows: list[dict[str, Any]]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from eyrie.responses.output import schema

    pq.write_table(pa.Table.from_pylist(rows, schema=schema()), path)
    return path


def spans_text(tokenizer: Any, ids: Any, spans: list[tuple[int, int]]) -> list[str]:
    """The supervised texts of a row."""
    return [tokenizer.decode([int(token) for token in ids[start:end]]) for start, end in spans]

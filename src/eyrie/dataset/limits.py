"""Token-length limits by the target's own tokenizer, counted in batches, without its chat template."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyrie.core.errors import EyrieError
from eyrie.dataset.book import Book

if TYPE_CHECKING:
    from eyrie.dataset.process import Job

#: tokens that a template adds around one message, on the safe side
MESSAGE_OVERHEAD = 8
NO_LIMIT = 1 << 60


def counter(path: str, trust_remote_code: bool = False) -> Any:
    """A function from a list of texts to their token counts.

    path: a tokenizer.json, or a model's folder, whose tokenizer is loaded as the tokens stage loads it: one that is
    code in the folder (tiktoken models) needs trust_remote_code. Raises EyrieError.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism; threads under a fork hang
    from eyrie.tokens.tokenizer import Tokenizer

    file = Path(path)
    if file.is_file():
        import tokenizers

        fast = tokenizers.Tokenizer.from_file(path)
        fast.no_truncation()
        fast.no_padding()
        tokenizer = Tokenizer(fast=fast)
    elif file.is_dir():
        with _alone(file):
            tokenizer = Tokenizer.load(file, trust_remote_code)
    else:
        raise EyrieError(
            "token limits need the target's tokenizer, and it is not there.",
            where=path,
            todo="Bring the target (playbooks/train.yml does), or set the dataset's token limits to 0.",
            code="tokenizer-missing",
        )
    return lambda texts: [len(ids) for ids in tokenizer.encode_batch(texts)]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One worker at a time: transformers copies a model's code into its cache, where another may be reading it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class Limits:
    """Drops and clips rows that are too long; rows are (messages, tools, ordinal, line) of one file."""

    def __init__(self, job: Job, file: int = 0):
        self.job, self.file = job, file
        self.prompt = job.max_prompt_tokens or NO_LIMIT
        self.conversation = job.max_conversation_tokens or NO_LIMIT
        self.active = min(self.prompt, self.conversation) < NO_LIMIT
        self._count: Any = None

    def apply(self, rows: list[Any], book: Book) -> list[Any]:
        """The rows that fit, clipped where they stop fitting; the books hold the others.

        `prompt_too_long` (dropped): the first question does not fit. `clipped` (noted): a later question, or a tool's
        result, does not fit with its history; it is cut with all behind it. `answer_over_limit` (noted): an answer ends
        beyond the limit; it is cut with all behind it, its question stays, since the target answers for itself.
        """
        if not self.active:
            return rows
        smallest = min(self.prompt, self.conversation)
        # a text has at most as many tokens as bytes, so a short row needs no counting
        long = [index for index, row in enumerate(rows) if _upper(row) > smallest]
        if not long:
            return rows
        kept = dict(enumerate(rows))
        for index, sizes in zip(long, self._counts([rows[index] for index in long]), strict=True):
            fitted = self._fit(rows[index], sizes, book)
            if fitted is None:
                del kept[index]
            else:
                kept[index] = fitted
        return list(kept.values())

    def _counts(self, rows: list[Any]) -> list[list[int]]:
        """Tokens of each message of each row; the tools count with the first."""
        if self._count is None:
            self._count = counter(self.job.tokenizer, self.job.trust_remote_code)
        flat = iter(self._count([text for row in rows for text in _texts(row)]))
        return [[next(flat) + MESSAGE_OVERHEAD for _ in row[0]] for row in rows]

    def _fit(self, row: Any, sizes: list[int], book: Book) -> Any:
        messages, tools, ordinal, line = row
        total = 0
        for index, (message, size) in enumerate(zip(messages, sizes, strict=True)):
            total += size
            answer = message["role"] == "assistant"
            if total <= (self.conversation if answer else min(self.prompt, self.conversation)):
                continue
            if not any(earlier["role"] == "user" for earlier in messages[:index]):
                book.drop("prompt_too_long", self.file, line)
                return None
            book.note(["answer_over_limit" if answer else "clipped"], self.file, line)
            return messages[:index], tools, ordinal, line
        return row


def _texts(row: Any) -> list[str]:
    messages, tools = row[0], row[1]
    texts = [
        message["content"]
        + message.get("reasoning", "")
        + "".join(call["function"]["name"] + call["function"]["arguments"] for call in message.get("tool_calls", ()))
        for message in messages
    ]
    texts[0] += tools or ""
    return texts


def _upper(row: Any) -> int:
    return sum(len(text.encode()) + MESSAGE_OVERHEAD for text in _texts(row))

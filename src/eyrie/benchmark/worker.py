"""The load generator's process: `vllm bench serve`, imported once for all cells.

`python -m eyrie.benchmark.worker` reads one JSON request a line on standard input and answers one JSON object a
line on standard output. Importing vLLM's benchmark takes seconds of CPU; a process of its own for each cell would
spend more on imports than on measuring. What runs is vLLM's own command line and its own code.

Requests: {"op": "render", ...} applies the chat template; {"op": "bench", "argv": [...], "eos": [...]} measures.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

Handler = Callable[[dict[str, Any]], dict[str, Any]]


class Bench:
    """vLLM's benchmark and the target's tokenizer, kept between requests."""

    def __init__(self) -> None:
        # transformers first: vLLM's benchmark module alone runs into a circular import
        from transformers import AutoTokenizer
        from vllm.benchmarks import serve
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        self._serve, self._tokenizers = serve, AutoTokenizer
        self._parser = FlexibleArgumentParser()
        serve.add_cli_args(self._parser)
        self._tokenizer: Any = None

    def render(self, request: dict[str, Any]) -> dict[str, Any]:
        """Prompts as the server would render them: {'prompts': [{'text', 'tokens'}], 'eos': [token id]}."""
        self._tokenizer = self._tokenizers.from_pretrained(
            request["model"], trust_remote_code=bool(request.get("trust_remote_code"))
        )
        options = {"chat_template": request["chat_template"]} if request.get("chat_template") else {}
        found = []
        for item in request["prompts"]:
            text = self._tokenizer.apply_chat_template(
                item["messages"], tools=item.get("tools") or None, add_generation_prompt=True, tokenize=False, **options
            )
            found.append({"text": text, "tokens": len(self._tokenizer(text, add_special_tokens=False).input_ids)})
        return {"prompts": found, "eos": eos_ids(request["model"], self._tokenizer.eos_token_id)}

    def bench(self, request: dict[str, Any]) -> dict[str, Any]:
        """One cell: vLLM's result without its bulk, plus what only the texts can tell."""
        result: dict[str, Any] = self._serve.main(self._parser.parse_args(request["argv"]))
        texts = result.pop("generated_texts", [])
        itls = result.pop("itls", [])
        answer: dict[str, Any] = {
            key: value for key, value in result.items() if isinstance(value, (int, float, str, type(None)))
        }
        answer["errors"] = result.get("errors", [])
        answer["output_lens"] = result.get("output_lens", [])
        answer["latencies"] = result.get("latencies", [])
        answer["chunks"] = [len(gaps) + 1 if gaps else int(bool(text)) for gaps, text in zip(itls, texts, strict=True)]
        answer["digests"] = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]
        if request.get("eos"):
            answer["past_end"] = sum(self._past_end(text, set(request["eos"])) for text in texts)
        return answer

    def _past_end(self, text: str, eos: set[int]) -> int:
        """Tokens after the first end token of a text with special tokens kept."""
        ids = self._tokenizer(text, add_special_tokens=False).input_ids
        return next((len(ids) - place - 1 for place, token in enumerate(ids) if token in eos), 0)


def eos_ids(model: str, of_tokenizer: int | None) -> list[int]:
    """End tokens as the server takes them: generation_config.json's, and the tokenizer's."""
    found = {of_tokenizer} if of_tokenizer is not None else set()
    try:
        with open(os.path.join(model, "generation_config.json"), encoding="utf-8") as stream:
            value = json.load(stream).get("eos_token_id")
    except (OSError, ValueError):
        value = None
    found |= set(value) if isinstance(value, list) else ({value} if value is not None else set())
    return sorted(found)


def answer(line: str, handlers: dict[str, Handler]) -> dict[str, Any]:
    """The reply to one request line; what goes wrong is told, not raised."""
    try:
        request = json.loads(line)
        return handlers[request["op"]](request)
    except SystemExit as error:  # argparse refuses an argument
        return {"error": f"vllm bench serve refused its arguments (exit status {error.code})"}
    except Exception as error:
        import traceback

        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> int:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # vLLM prints its tables; replies must be alone on their channel
    bench = Bench()
    handlers: dict[str, Handler] = {"render": bench.render, "bench": bench.bench}
    replies.write(json.dumps({"ready": True}) + "\n")
    replies.flush()
    for line in sys.stdin:
        replies.write(json.dumps(answer(line, handlers), allow_nan=True) + "\n")
        replies.flush()
    replies.close()
    os._exit(0)  # vLLM's native modules complain for seconds when they are taken down in order


if __name__ == "__main__":
    sys.exit(main())

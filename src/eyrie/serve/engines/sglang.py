"""SGLang: baseline and EAGLE-3 serving. It captures no hidden states over its API: `extract` stays with vLLM."""

from __future__ import annotations

import re
from typing import Any

from eyrie.core.errors import SpecError
from eyrie.serve import http
from eyrie.serve.engines.base import METHODS, Engine, InForce, Request
from eyrie.supervise.interpreter import venv_python

_SHARD = re.compile(r"Loading safetensors (?:checkpoint )?shards?:\s+\d+% Completed \| (\d+)/(\d+)")
STEPS = (
    ("Load weight begin", "loading the model"),
    ("Load weight end", "weights loaded"),
    ("KV Cache is allocated", "key-value cache allocated"),
    ("Capture cuda graph begin", "capturing graphs"),
    ("Capture draft cuda graph begin", "capturing the draft's graphs"),
    ("Application startup complete", "warming up"),
    ("The server is fired up and ready to roll", "ready"),
)
#: SGLang's names -> the method as we call it
ALGORITHMS = {"": "", "NONE": "", "EAGLE3": "eagle3", "EAGLE": "eagle", "NEXTN": "mtp", "NGRAM": "ngram"}


class SGLang(Engine):
    name = "sglang"
    health = "/health"

    def command(self) -> list[str]:
        return [venv_python(), "-m", "sglang.launch_server"]

    def positional(self, request: Request) -> list[str]:
        return ["--model-path", str(request.model)]

    def arguments(self, request: Request) -> dict[str, Any]:
        if request.profile == "extract":
            raise SpecError(
                "the extract profile needs vLLM.",
                where="server.engine",
                code="engine-cannot-extract",
                why="SGLang hands out no hidden states through its API.",
                todo="Set eyrie_server_engine to vllm for capture; eagle3 may still be served by SGLang.",
            )
        target = request.target
        args: dict[str, Any] = {
            "served_model_name": target.name,
            "host": request.settings.host,
            "port": request.settings.port,
            "context_length": target.max_model_len,
            "dtype": target.dtype,
            "enable_metrics": True,
        }
        if target.trust_remote_code:
            args["trust_remote_code"] = True
        if request.device == "cpu":
            args["device"] = "cpu"
        if request.profile == "eagle3" and request.draft is not None:
            args |= {
                "speculative_algorithm": "EAGLE3",
                "speculative_draft_model_path": str(request.draft),
                # a chain, as trained and as vLLM drafts: k steps, one candidate each, plus the bonus token
                "speculative_num_steps": request.num_speculative_tokens,
                "speculative_eagle_topk": 1,
                "speculative_num_draft_tokens": request.num_speculative_tokens + 1,
                **request.settings.profiles.eagle3.speculative,
            }
        return args

    def flag_words(self, args: dict[str, Any]) -> dict[str, Any]:
        """SGLang's switches have no --no- form: false means leaving it out."""
        return {key: value for key, value in args.items() if value is not False}

    def method(self, profile: str, args: dict[str, Any]) -> str:
        if profile == "eagle3":
            return ALGORITHMS.get(str(args.get("speculative_algorithm") or ""), "")
        return METHODS[profile]

    def in_force(self, base_url: str, log: list[str]) -> InForce:
        info = server_info(base_url)
        if "speculative_algorithm" not in info:
            return InForce(None)
        name = str(info["speculative_algorithm"] or "")
        return InForce(
            ALGORITHMS.get(name.upper(), name.lower()),
            str(info.get("speculative_draft_model_path") or ""),
            info.get("speculative_num_steps"),
            "/server_info",
        )

    def loading(self, log: list[str]) -> str:
        for line in reversed(log):
            if found := _SHARD.search(line):
                return f"loading shard {found[1]}/{found[2]}"
            for mark, text in STEPS:
                if mark in line:
                    return text
        return ""

    def acceptance(self, base_url: str, before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
        """SGLang keeps a running average since its start (bonus token included), not counters per draft."""
        states = server_info(base_url).get("internal_states") or [{}]
        length = states[0].get("avg_spec_accept_length")
        return {
            "drafts": None,
            "draft_tokens": None,
            "accepted": None,
            "length": None if length is None else float(length),
            "per_position": [],
            "formula": "avg_spec_accept_length of SGLang, since its start",
        }


def server_info(base_url: str) -> dict[str, Any]:
    """GET /server_info, under its older name where the newer one is missing."""
    for path in ("/server_info", "/get_server_info"):
        answer = http.get(base_url, path)
        if answer.status == 200:
            value = answer.json
            return value if isinstance(value, dict) else {}
    return {}

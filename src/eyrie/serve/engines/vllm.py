"""vLLM."""

from __future__ import annotations

import re
from typing import Any

from eyrie.serve import metrics
from eyrie.serve.engines.base import METHODS, Engine, InForce, Request
from eyrie.supervise.interpreter import venv_python

_SPECULATIVE = re.compile(r"speculative_config=(None|SpeculativeConfig\((?P<body>[^)]*)\))")
_FIELD = re.compile(r"(method|model|num_spec_tokens)=(?:'([^']*)'|([^,\s]+))")
_SHARD = re.compile(r"Loading safetensors (?:checkpoint )?shards?:\s+\d+% Completed \| (\d+)/(\d+)")
_CAPTURE = re.compile(r"Capturing (?:CUDA )?graphs?[^:]*:\s+(\d+)%\|[^|]*\| (\d+)/(\d+)", re.IGNORECASE)
#: what vLLM 0.3x says, in the order of a start, and what a person wants to read
STEPS = (
    ("Initializing a V1 LLM engine", "starting the engine"),
    ("Starting to load model", "loading the model"),
    ("Loading weights took", "weights loaded"),
    ("Loading drafter model", "loading the draft"),
    ("Dynamo bytecode transform", "compiling"),
    ("torch.compile takes", "compiled"),
    ("GPU KV cache size", "key-value cache allocated"),
    ("CPU KV cache size", "key-value cache allocated"),
    ("init engine", "engine ready"),
    ("Application startup complete", "ready"),
)


class VLLM(Engine):
    name = "vllm"

    def command(self) -> list[str]:
        return [venv_python(), "-m", "vllm.entrypoints.cli.main", "serve"]

    def positional(self, request: Request) -> list[str]:
        return [str(request.model)]

    def arguments(self, request: Request) -> dict[str, Any]:
        target, settings = request.target, request.settings
        args: dict[str, Any] = {
            "served_model_name": target.name,
            "host": settings.host,
            "port": settings.port,
            "max_model_len": target.max_model_len,
            "dtype": target.dtype,
            "disable_uvicorn_access_log": True,  # a line per request would be most of the log
        }
        if target.trust_remote_code:
            args["trust_remote_code"] = True
        if settings.ray.used:
            args["distributed_executor_backend"] = "ray"
        if request.profile == "extract":
            args |= _extract(request)
        elif request.profile == "eagle3":
            args |= _eagle3(request)
        return args

    def method(self, profile: str, args: dict[str, Any]) -> str:
        if profile == "eagle3":
            return str((args.get("speculative_config") or {}).get("method", ""))
        return METHODS[profile]

    def in_force(self, base_url: str, log: list[str]) -> InForce:
        """From the line in which the engine states its configuration."""
        for line in reversed(log):
            found = _SPECULATIVE.search(line)
            if not found:
                continue
            if found["body"] is None:
                return InForce("", source="engine log")
            fields = {name: text or word for name, text, word in _FIELD.findall(found["body"])}
            tokens = fields.get("num_spec_tokens", "")
            draft = fields.get("model", "")
            return InForce(
                fields.get("method"),
                "" if draft == "None" else draft,
                int(tokens) if tokens.isdecimal() else None,
                "engine log",
            )
        return InForce(None)

    def loading(self, log: list[str]) -> str:
        for line in reversed(log):
            if found := _SHARD.search(line):
                return f"loading shard {found[1]}/{found[2]}"
            if found := _CAPTURE.search(line):
                return f"capturing graphs {found[2]}/{found[3]}"
            for mark, text in STEPS:
                if mark in line:
                    return text
        return ""

    def acceptance(self, base_url: str, before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
        return metrics.acceptance(before, after)


def _extract(request: Request) -> dict[str, Any]:
    """Capture of hidden states: whole prompts in one piece, every token computed anew."""
    target, profile = request.target, request.settings.profiles.extract
    layers = {"eagle_aux_hidden_state_layer_ids": target.captured_layers}
    on_cpu = request.device == "cpu"
    connector: dict[str, Any] = {
        "kv_connector": "CpuHiddenStatesConnector" if on_cpu else "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {**profile.connector, "shared_storage_path": str(request.storage)},
    }
    if on_cpu:
        connector["kv_connector_module_path"] = "eyrie.serve.cpu_connector"
    return {
        "speculative_config": {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": layers},
        },
        "kv_transfer_config": connector,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": target.max_model_len,
    }


def _eagle3(request: Request) -> dict[str, Any]:
    if request.draft is None:  # a variant that brings its own speculative config (n-gram)
        return {}
    return {
        "speculative_config": {
            **request.settings.profiles.eagle3.speculative,
            "method": "eagle3",
            "model": str(request.draft),
            "num_speculative_tokens": request.num_speculative_tokens,
        }
    }

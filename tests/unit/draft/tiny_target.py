"""A random Llama of eight layers, twenty-four short conversations, and their real states from its forward pass."""

import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from eyrie.hidden_states import files, manifest
from eyrie.hidden_states.keys import Shape, sample_key
from eyrie.hidden_states.store import Entry, Store

LAYERS, HIDDEN, VOCAB, DRAFT_VOCAB = (2, 4, 5, 8), 32, 64, 48
SHAPE = Shape(LAYERS, HIDDEN, "bf16", "tiny", "none")


class Tiny:
    def __init__(self, folder, conversations=24):
        self.folder = folder
        self.target = folder / "target"
        self.tokens = folder / "tokens"
        self.states = folder / "runs" / "hidden_states"
        self._model()
        rng = random.Random(7)
        self.rows = []
        for number in range(conversations):
            for turn in range(1 + number % 2):
                length = rng.randint(18, 40)
                ids = [(number * 5 + at * (3 + turn)) % VOCAB for at in range(length)]
                self.rows.append((f"c{number}", ids, [0] * 4 + [1] * (length - 4)))
        self._tokens()
        self._states()

    def _model(self):
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=64, num_hidden_layers=8, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=256, pad_token_id=0, eos_token_id=1, bos_token_id=2,
            head_dim=16,
        )  # fmt: skip
        self.model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
        self.model.save_pretrained(self.target)
        tokenizer = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": {f"t{i}": i for i in range(VOCAB)}, "unk_token": "t0"},
        }
        (self.target / "tokenizer.json").write_text(json.dumps(tokenizer))
        named = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "t0", "eos_token": "t1", "unk_token": "t0"}
        (self.target / "tokenizer_config.json").write_text(json.dumps(named))

    def _tokens(self):
        from datasets import Dataset

        data = Dataset.from_dict(
            {
                "input_ids": [ids for _, ids, _ in self.rows],
                "loss_mask": [mask for _, _, mask in self.rows],
                "seq_len": [len(ids) for _, ids, _ in self.rows],
            }
        )
        data.save_to_disk(str(self.tokens / "data"))
        parquet.write_table(
            pa.table(
                {
                    "id": [name for name, _, _ in self.rows],
                    "length": [len(ids) for _, ids, _ in self.rows],
                    "supervised": [sum(mask) for _, _, mask in self.rows],
                }
            ),
            self.tokens / "samples.parquet",
        )
        kept = np.arange(VOCAB - DRAFT_VOCAB, VOCAB)
        mask = np.zeros(VOCAB, dtype=bool)
        mask[kept] = True
        (self.tokens / "vocab").mkdir()
        np.save(self.tokens / "vocab/d2t.npy", kept - np.arange(DRAFT_VOCAB))
        np.save(self.tokens / "vocab/t2d.npy", mask)

    def forward(self, ids):
        """The captured states of token ids, [seq, 4, hidden] bf16, as vLLM hands them out."""
        import torch

        before = []
        hook = self.model.model.norm.register_forward_pre_hook(lambda module, args: before.append(args[0]))
        with torch.no_grad():
            out = self.model(torch.tensor([ids]), output_hidden_states=True)
        hook.remove()
        every = [*out.hidden_states[:-1], before[0]]
        return torch.stack([every[layer][0] for layer in LAYERS], dim=1).contiguous()

    def _states(self):
        import torch
        from safetensors.torch import save_file

        out = self.states / "fixed"
        (out / manifest.LINKS).mkdir(parents=True)
        lines = []
        with Store(self.states / "store") as store:
            for row, (_, ids, _) in enumerate(self.rows):
                key = sample_key(ids, SHAPE)
                path = store.file(key)
                path.parent.mkdir(parents=True, exist_ok=True)
                save_file({"hidden_states": self.forward(ids), "token_ids": torch.tensor(ids)}, path)
                names = ",".join(map(str, LAYERS))
                entry = Entry(key, len(ids), path.stat().st_size, "bf16", names, files.checksum(path), SHAPE.digest)
                store.record([entry])
                (out / manifest.LINKS / f"hs_{row}.safetensors").symlink_to(path)
                lines.append({"row": row, "key": key, "length": len(ids), "bytes": entry.bytes, "dtype": "bf16"})
                lines[-1].update(layers=names, checksum=entry.checksum)
        (out / manifest.NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.out = out

"""verify: re-read data/, samples.parquet and the draft vocabulary and name every fault."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from eyrie.core import atomic
from eyrie.core.errors import EyrieError
from eyrie.core.stage import Fault

MAX_FAULTS = 20
AGAIN = "Run the stage tokens again."


def data_rows(folder: Path) -> Any:
    """(ids int32 [n], mask int8 [n], seq_len) of each row of a saved data set, in order."""
    import pyarrow as pa

    state = atomic.read_json(folder / "state.json", {}) or {}
    for entry in state.get("_data_files") or []:
        with pa.OSFile(str(folder / entry["filename"])) as stream, pa.ipc.open_stream(stream) as reader:
            for batch in reader:
                ids, mask = batch.column(0), batch.column(1)
                ids_at, mask_at = ids.offsets.to_numpy(), mask.offsets.to_numpy()
                ids_all, mask_all, lengths = ids.values.to_numpy(), mask.values.to_numpy(), batch.column(2).to_numpy()
                for row in range(batch.num_rows):
                    yield (
                        ids_all[ids_at[row] : ids_at[row + 1]],
                        mask_all[mask_at[row] : mask_at[row + 1]],
                        int(lengths[row]),
                    )


def verify(out: Path, size: int, record: dict[str, Any]) -> list[Fault]:
    """Every row against its sample (key, length, supervised count), ids within the vocabulary, tables consistent."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    faults: list[Fault] = []
    try:
        samples = pq.read_table(out / "samples.parquet").to_pylist()
        count = 0
        supervised = np.zeros(size, dtype=np.int64)
        for count, (ids, mask, length) in enumerate(data_rows(out / "data"), start=1):
            where = f"{out / 'data'} row {count - 1}"
            if count > len(samples):
                break
            sample = samples[count - 1]
            if len(ids) and (ids.min() < 0 or ids.max() >= size):
                faults.append(Fault(where, f"token ids lie outside the vocabulary of {size}", AGAIN, "token-outside"))
                continue
            supervised += np.bincount(ids[mask == 1], minlength=size)
            if not (len(ids) == len(mask) == length == sample["length"]):
                faults.append(Fault(where, "ids, mask and lengths differ", AGAIN, "row-length"))
            elif int(mask.sum()) != sample["supervised"] or not mask.any():
                faults.append(Fault(where, f"{int(mask.sum())} tokens are supervised", AGAIN, "row-mask"))
            elif hashlib.sha256(np.ascontiguousarray(ids, "<i4").tobytes()).hexdigest() != sample["key"]:
                faults.append(Fault(where, "its ids are not those of its key", AGAIN, "row-key"))
            if len(faults) >= MAX_FAULTS:
                return faults
        if count != len(samples):
            faults.append(Fault(str(out / "data"), f"{count} rows, but {len(samples)} samples", AGAIN, "row-count"))
        expected = (record.get("figures") or {}).get("supervised_tokens")
        if expected is not None and int(supervised.sum()) != expected:
            faults.append(
                Fault(str(out), f"{int(supervised.sum())} supervised tokens, recorded {expected}", AGAIN, "count")
            )
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        faults.append(Fault(str(out), f"cannot be read: {error}", AGAIN, "data-unreadable"))
    return faults + _verify_vocab(out, size)


def _verify_vocab(out: Path, size: int) -> list[Fault]:
    import numpy as np

    from eyrie.tokens import vocab

    said = atomic.read_json(out / "vocab.json", {}) or {}
    if not said.get("reduced"):
        return []
    try:
        d2t, t2d = np.load(out / "vocab" / "d2t.npy"), np.load(out / "vocab" / "t2d.npy")
        vocab.check_tables(d2t, t2d, size, said.get("draft_vocab_size"))
        missing = [token for token in said.get("required_tokens", {}) if not t2d[int(token)]]
    except (OSError, ValueError) as error:
        return [Fault(str(out / "vocab"), f"cannot be read: {error}", AGAIN, "vocab-unreadable")]
    except EyrieError as error:
        return [Fault(str(out / "vocab"), error.what, AGAIN, error.code)]
    if missing:
        return [Fault(str(out / "vocab"), f"required tokens {missing[:5]} are not in it", AGAIN, "vocab-required")]
    return []

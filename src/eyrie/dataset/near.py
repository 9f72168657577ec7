"""Near-duplicates of first user turns by MinHash (datasketch): signatures in the workers, one index in the mix."""

from __future__ import annotations

from typing import Any

from eyrie.dataset.keys import folded

SHINGLE = 5  # characters of the folded text
LONGEST = 4096  # characters of a prompt that are compared
UNIQUE, NEAR, NEAR_EVAL = 0, 1, 2


def shingles(text: str) -> list[bytes]:
    """Overlapping pieces of a prompt; a short prompt is one piece."""
    text = folded(text)[:LONGEST]
    count = max(1, len(text) - SHINGLE + 1)
    return list({text[index : index + SHINGLE].encode("utf-8", "surrogatepass") for index in range(count)})


def signature(text: str, permutations: int) -> Any:
    """MinHash values, uint32 [permutations]."""
    import xxhash
    from datasketch import MinHash

    mine = MinHash(num_perm=permutations, seed=1, hashfunc=xxhash.xxh32_intdigest)
    mine.update_batch(shingles(text))
    return mine.hashvalues.astype("uint32")


def signatures_of(rows: list[Any], permutations: int) -> Any:
    """Signatures of rows (messages, ...), uint32 [rows, permutations]."""
    import numpy as np

    out = np.zeros((len(rows), permutations), dtype=np.uint32)
    for index, row in enumerate(rows):
        out[index] = signature(next(item["content"] for item in row[0] if item["role"] == "user"), permutations)
    return out


def find(signatures: Any, threshold: float, excluded: Any) -> Any:
    """Per row, in order: UNIQUE, NEAR an earlier row, or NEAR_EVAL an excluded prompt (int8).

    signatures, excluded: uint32 [rows, permutations]. A row counts as near when the estimated Jaccard similarity of
    its shingles with an earlier kept row's is at least the threshold.
    """
    import numpy as np
    from datasketch import MinHash, MinHashLSH

    permutations = signatures.shape[1]
    # candidates are compared by their signatures below, so the index may rather find too many than miss one
    index = MinHashLSH(threshold=threshold, num_perm=permutations, weights=(0.1, 0.9))
    verdict = np.zeros(len(signatures), dtype=np.int8)
    for base, values in ((-len(excluded), excluded), (0, signatures)):
        for number, line in enumerate(values):
            mine = MinHash(num_perm=permutations, seed=1, hashvalues=line.astype("uint64"))
            if base == 0:
                found = [key for key in index.query(mine) if _similar(line, key, signatures, excluded) >= threshold]
                if found:
                    verdict[number] = NEAR_EVAL if min(found) < 0 else NEAR
                    continue
            index.insert(base + number, mine, check_duplication=False)
    return verdict


def _similar(line: Any, key: int, signatures: Any, excluded: Any) -> float:
    other = excluded[key] if key < 0 else signatures[key]
    return float((line == other).mean())

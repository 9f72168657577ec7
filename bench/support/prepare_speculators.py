"""speculators' own preparation, timed after its imports: MODEL DATA.jsonl OUTPUT SEQ_LENGTH [RENDER_URL]."""

from __future__ import annotations

import json
import sys
import time

from speculators.data_generation.preprocessing import load_and_preprocess_dataset


def main() -> None:
    model, data, output, length = sys.argv[1:5]
    start = time.perf_counter()
    dataset, _ = load_and_preprocess_dataset(
        model,
        [data],
        seq_length=int(length),
        build_dataset_num_proc=2,
        token_freq_path=f"{output}/token_freq.pt",
        render_endpoint=sys.argv[5] if len(sys.argv) > 5 else None,
        skip_token_freq=False,
    )
    dataset.save_to_disk(output)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "rows": len(dataset), "tokens": sum(dataset.with_format(None)["seq_len"])}))


if __name__ == "__main__":
    main()

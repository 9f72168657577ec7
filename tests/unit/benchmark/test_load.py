"""The load generator's process: ready, asked, slow, dead, and stopped."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from eyrie.benchmark import worker
from eyrie.benchmark.load import Generator
from eyrie.core.errors import EyrieError, Interrupted

ECHO = """
import json, sys, time, os
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["op"] == "die":
        print("the last words", file=sys.stderr, flush=True)
        sys.exit(3)
    if request["op"] == "sleep":
        time.sleep(60)
    if request["op"] == "fail":
        print(json.dumps({"error": "ValueError: no such model"}), flush=True)
        continue
    print(json.dumps({"echo": request, "pid": os.getpid(), "big": "x" * 300000}), flush=True)
"""


def generator(tmp_path: Path, tick: object = lambda: None, script: str = ECHO) -> Generator:
    file = tmp_path / "worker.py"
    file.write_text(script)
    return Generator(tmp_path / "bench.log", tick, [sys.executable, str(file)])  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_answers_come_in_order_from_one_process_that_ends_with_the_block(tmp_path: Path) -> None:
    with generator(tmp_path) as asked:
        answers = [asked.ask({"op": "echo", "n": number}, 10) for number in range(3)]
    assert [answer["echo"]["n"] for answer in answers] == [0, 1, 2]
    assert len({answer["pid"] for answer in answers}) == 1
    assert not alive(answers[0]["pid"])


def test_an_error_is_told_and_the_process_goes_on(tmp_path: Path) -> None:
    with generator(tmp_path) as asked:
        with pytest.raises(EyrieError, match="no such model") as caught:
            asked.ask({"op": "fail"}, 10)
        assert caught.value.code == "bench-failed"
        assert asked.ask({"op": "echo"}, 10)["echo"] == {"op": "echo"}


def test_a_death_shows_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(EyrieError, match="the last words") as caught, generator(tmp_path) as asked:
        asked.ask({"op": "die"}, 10)
    assert caught.value.code == "bench-died"
    assert "status 3" in caught.value.what


def test_a_process_that_dies_before_it_is_ready_is_noticed(tmp_path: Path) -> None:
    script = "import sys; sys.exit('ModuleNotFoundError: vllm')"
    with pytest.raises(EyrieError, match="ModuleNotFoundError: vllm"), generator(tmp_path, script=script) as asked:
        asked.ask({"op": "echo"}, 10)


def test_too_long_is_an_error_and_leaves_no_process(tmp_path: Path) -> None:
    def overstep() -> None:
        with generator(tmp_path) as asked:
            pids.append(asked.ask({"op": "echo"}, 10)["pid"])
            asked.ask({"op": "sleep"}, 0.3)

    pids: list[int] = []
    with pytest.raises(EyrieError, match="longer than 0 s") as caught:
        overstep()
    assert caught.value.code == "bench-timeout"
    assert not alive(pids[0])


def test_a_stop_is_heeded_in_the_middle_of_a_cell(tmp_path: Path) -> None:
    begin = time.monotonic()
    asking: list[int] = []

    def tick() -> None:
        if asking and time.monotonic() - begin > 0.5:
            raise Interrupted("asked to stop")

    def measure() -> None:
        with generator(tmp_path, tick) as asked:
            asking.append(asked.ask({"op": "echo"}, 10)["pid"])
            asked.ask({"op": "sleep"}, 60)

    with pytest.raises(Interrupted):
        measure()
    assert time.monotonic() - begin < 10
    assert not alive(asking[0])


def test_what_goes_wrong_in_the_worker_is_an_answer() -> None:
    def refuse(request: dict) -> dict:
        raise SystemExit(2)

    def fail(request: dict) -> dict:
        raise KeyError("mean_ttft_ms")

    handlers = {"refuse": refuse, "fail": fail, "good": lambda request: {"n": request["n"]}}
    assert worker.answer(json.dumps({"op": "good", "n": 4}), handlers) == {"n": 4}
    assert "exit status 2" in worker.answer('{"op": "refuse"}', handlers)["error"]
    assert "KeyError: 'mean_ttft_ms'" in worker.answer('{"op": "fail"}', handlers)["error"]
    assert "JSONDecodeError" in worker.answer("{", handlers)["error"]


@pytest.mark.parametrize(
    ("config", "of_tokenizer", "expected"),
    [('{"eos_token_id": 2}', 2, [2]), ('{"eos_token_id": [7, 9]}', 2, [2, 7, 9]), ("{}", 2, [2]), (None, None, [])],
)
def test_end_tokens(tmp_path: Path, config: str | None, of_tokenizer: int | None, expected: list[int]) -> None:
    if config:
        (tmp_path / "generation_config.json").write_text(config)
    assert worker.eos_ids(str(tmp_path), of_tokenizer) == expected

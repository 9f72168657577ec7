"""Notifications: sent at a stage's end, by command and webhook, with secrets kept out; never a stage's failure."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from small_house import House

from eyrie.cli import main
from eyrie.core import runner
from eyrie.core.errors import EyrieError, SpecError
from eyrie.core.pipeline import Pipeline
from eyrie.ops import notify

CATCH = "import sys, os; open(sys.argv[1], 'a').write(os.environ['EYRIE_EVENT'] + ' ' + sys.stdin.read() + chr(10))"
TOKEN = "hf_" + "Z9y8X7w6V5u4"


@pytest.fixture
def caught(tmp_path: Path) -> Path:
    return tmp_path / "events"


def hooked(house: House, caught: Path, on: list[str], **settings: dict[str, Any]) -> Pipeline:
    spec = house.spec(**settings)
    spec["execution"] = {"notify": {"on": on, "command": [sys.executable, "-c", CATCH, str(caught)]}}
    return Pipeline(spec)


def events(caught: Path) -> list[tuple[str, dict[str, Any]]]:
    lines = caught.read_text().splitlines() if caught.exists() else []
    return [(line.split(" ", 1)[0], json.loads(line.split(" ", 1)[1])) for line in lines]


def test_done_is_told_once_and_not_again_when_up_to_date(house: House, caught: Path) -> None:
    for _ in range(2):
        runner.run(hooked(house, caught, ["done"]), "target")
    ((name, told),) = events(caught)
    assert name == "stage.done"
    assert told["text"].startswith("here/main: target done after 0 s, 10 of 10 kept")


def test_failure_is_told_with_cause_and_cure(house: House, caught: Path) -> None:
    house.run("dataset")
    fail = {"fail": f"[Errno 28] No space left on device: '/x' token={TOKEN}"}
    with pytest.raises(EyrieError):
        runner.run(hooked(house, caught, ["failed"], responses=fail), "responses")
    ((name, told),) = events(caught)
    assert name == "stage.failed"
    assert told["doctor"]["id"] == "disk-full"
    assert "Cure:" in told["text"]
    assert TOKEN not in caught.read_text()


def test_only_the_events_asked_for(house: House, caught: Path) -> None:
    runner.run(hooked(house, caught, ["failed"]), "target")
    assert events(caught) == []


@pytest.mark.parametrize("command", [["/no/such/program"], [sys.executable, "-c", "import sys; sys.exit('refused')"]])
def test_a_broken_hook_never_fails_the_stage(
    house: House, command: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    spec = house.spec()
    spec["execution"] = {"notify": {"on": ["done"], "command": command}}
    assert runner.run(Pipeline(spec), "target")["status"] == "done"
    assert "the notification was not sent" in caplog.text


def test_misspelt_setting_is_told_and_the_stage_runs(house: House, caplog: pytest.LogCaptureFixture) -> None:
    spec = house.spec()
    spec["execution"] = {"notify": {"on": ["done"], "command": ["true"], "timeout": 3}}
    assert runner.run(Pipeline(spec), "target")["status"] == "done"
    assert "Did you mean 'timeout_s'" in caplog.text


class Catcher(BaseHTTPRequestHandler):
    answers: ClassVar[list[int]] = []
    seen: ClassVar[list[tuple[str | None, dict[str, Any]]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.headers.get("Authorization"), body))
        status = self.answers.pop(0) if self.answers else 204
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        return None


@pytest.fixture
def server() -> Any:
    Catcher.answers, Catcher.seen = [], []
    http = HTTPServer(("127.0.0.1", 0), Catcher)
    thread = threading.Thread(target=http.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}/hook"
    http.shutdown()
    thread.join()
    http.server_close()


def private(path: Path, text: str) -> str:
    path.write_text(text + "\n")
    path.chmod(0o600)
    return str(path)


def webhook(tmp_path: Path, url: str) -> notify.Settings:
    declared = {
        "webhook": {"url_file": private(tmp_path / "url", url), "token_file": private(tmp_path / "token", TOKEN)}
    }
    wanted = notify.settings({"notify": declared})
    assert wanted is not None
    return wanted


def test_webhook_with_address_and_token_from_files(tmp_path: Path, server: str) -> None:
    notify.send({"event": "stage.done"}, webhook(tmp_path, server))
    assert Catcher.seen == [(f"Bearer {TOKEN}", {"event": "stage.done"})]


@pytest.mark.parametrize(("answers", "sent"), [([503, 429, 204], 3), ([404], 1), ([302], 1), ([500, 500, 500], 3)])
def test_webhook_tries_again_only_where_it_helps(tmp_path: Path, server: str, answers: list[int], sent: int) -> None:
    Catcher.answers = list(answers)
    waits: list[float] = []
    if answers[-1] == 204:
        notify.send({"event": "x"}, webhook(tmp_path, server), waits.append)
    else:
        with pytest.raises(EyrieError) as caught:
            notify.send({"event": "x"}, webhook(tmp_path, server), waits.append)
        assert f"HTTP {answers[-1]}" in str(caught.value)
        assert server not in str(caught.value)
    assert len(Catcher.seen) == sent
    assert len(waits) == sent - 1


def test_secret_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o644)
    with pytest.raises(EyrieError, match="others may read"):
        notify.secret(path)


@pytest.mark.parametrize(
    "declared",
    [
        {"webhook": {"url": "ftp://x"}},
        {"webhook": {"url": "http://a", "url_file": "/b"}},
        {"command": ["x"], "on": ["no"]},
    ],
)
def test_wrong_settings_are_refused(declared: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        notify.settings({"notify": declared})


@pytest.mark.parametrize("declared", [None, {}, {"on": ["done"], "command": [], "webhook": {}}])
def test_no_hook(declared: Any) -> None:
    assert notify.settings({"notify": declared}) is None


def test_test_event_by_command(house: House, caught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = house.spec()
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec))
    assert main(["notify", "--spec", str(path)]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "notify-none"
    spec["execution"] = {"notify": {"command": [sys.executable, "-c", CATCH, str(caught)]}}
    path.write_text(json.dumps(spec))
    assert main(["notify", "--spec", str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == {"sent": ["command"]}
    assert events(caught)[0][0] == "test"
